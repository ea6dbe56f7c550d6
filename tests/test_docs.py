"""The documentation keeps up with the program: every command line it shows exists, every link leads somewhere."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import typer
from typer.main import get_command

from draftmill.cli import application

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^[ ]*```(?:sh|bash|console)\n(.*?)^[ ]*```", re.M | re.S)
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")


def command_lines(page: Path) -> list[str]:
    """Lines of shell blocks (without prompts and output) and inline code that call draftmill or make."""
    text = page.read_text(encoding="utf-8")
    lines = [line for block in BLOCK.findall(text) for line in block.replace("\\\n", " ").splitlines()]
    lines += re.findall(r"`((?:draftmill|make) [^`\n]+)`", text)
    return [line.strip().removeprefix("$ ") for line in lines if re.match(r"\s*(\$ )?(draftmill|make) ", line)]


def words_of(line: str) -> list[str]:
    return shlex.split(
        re.split(r"\s[|>&;#]", line)[0].replace("…", "").replace("[", "").replace("]", ""), comments=True
    )


# The decisions name commands that were rejected.
@pytest.mark.parametrize("page", [page for page in PAGES if page.name != "DECISIONS.md"], ids=lambda page: page.name)
def test_every_command_shown_exists(page: Path) -> None:
    root = get_command(application())
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M)
    for line in command_lines(page):
        program, *words = words_of(line)
        if program == "make":
            assert [word for word in words if "=" not in word and word not in targets] == [], line
            continue
        command, context = root, typer.Context(root)
        while words and hasattr(command, "commands") and not words[0].startswith("-"):
            assert words[0] in command.commands, f"{page.name}: {line}: no command '{words[0]}'"
            command = command.get_command(context, words.pop(0))
        known = {option for parameter in command.params for option in parameter.opts} | {"--help"}
        unknown = [word for word in words if word.startswith("--") and word.split("=")[0] not in known]
        assert unknown == [], f"{page.name}: {line}: no option {unknown}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_somewhere(page: Path) -> None:
    targets = [target for target in LINK.findall(page.read_text(encoding="utf-8")) if "://" not in target]
    missing = [target for target in targets if not (page.parent / target).exists()]
    assert missing == []


def test_every_page_is_reachable_from_the_readme() -> None:
    text = PAGES[0].read_text(encoding="utf-8")
    assert [page.name for page in PAGES[2:] if f"docs/{page.name}" not in text] == []
