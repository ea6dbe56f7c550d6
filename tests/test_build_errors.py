"""What a person who made a mistake is told: the file, the key, what was found, the fix; exit code 1, no traceback."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest
from dvc.lock import make_lock
from tinybuild import Space, copied, new

from draftmill.compose.composition import composed
from draftmill.compose.ensure import recompose
from draftmill.errors import ConfigError, DraftmillError
from draftmill.gc import collect
from draftmill.mend import mend
from draftmill.pipeline import address


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Space:
    """A project that was never built; tests leave it as they found it."""
    space = new(tmp_path_factory.mktemp("errors") / "project")
    assert space.draftmill("compose").code == 0
    return space


def composing(space: Space, name: str, text: str | None, patch: pytest.MonkeyPatch) -> str:
    """What composing with a file's text replaced (None: removed) says; it must fail and leave params.yaml alone."""
    path, composed = space.path(name), space.path("params.yaml").read_bytes()
    before = path.read_text(encoding="utf-8") if path.exists() else None
    path.unlink(missing_ok=True)
    if text is not None:
        space.write(name, text)
    patch.chdir(space.root)
    try:
        with pytest.raises(ConfigError) as caught:
            recompose()
    finally:
        path.unlink(missing_ok=True)
        if before is not None:
            space.write(name, before)
    assert space.path("params.yaml").read_bytes() == composed
    return str(caught.value)


ALPHA = "conf/dataset/alpha.yaml"
GOOD = "source: {files: data/alpha.jsonl}\nschema: {prompt: question}\n"


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        (ALPHA, GOOD + "quota: many\n", ["conf/dataset/alpha.yaml", "quota", "many"]),
        (ALPHA, GOOD + "qouta: 4\n", ["conf/dataset/alpha.yaml", "qouta", "quota"]),
        (ALPHA, "source: {files: data/alpha.jsonl}\nschema: {promt: question}\n", ["alpha.yaml", "promt", "prompt"]),
        (ALPHA, "source: {file: data/alpha.jsonl}\nschema: {prompt: question}\n", ["alpha.yaml", "file", "files"]),
        (ALPHA, GOOD + "mask: asistant\n", ["alpha.yaml", "asistant", "assistant"]),
        (ALPHA, "schema: {prompt: question\n", ["conf/dataset/alpha.yaml", "not valid YAML at line 2"]),
        ("conf/dataset/My-Set.yaml", GOOD, ["conf/dataset/My-Set.yaml", "a-z, 0-9 and _", "my_set.yaml"]),
        ("conf/experiment/tiny.yaml", "# @package _global_\nquota_cap: some\n", ["quota_cap", "whole number", "some"]),
        ("conf/experiment/tiny.yaml", "# @package _global_\nsource_mode: sampel\n", ["source_mode", "sample"]),
        (
            "conf/experiment/tiny.yaml",
            "# @package _global_\ndefaults:\n  - override /target: tinny\n",
            ["conf/target", "tinny", "tiny"],
        ),
        (
            "conf/experiment/tiny.yaml",
            "# @package _global_\nsampling: {temprature: 1.0}\n",
            ["conf/sampling/default.yaml", "temprature", "temperature"],
        ),
        (
            "conf/experiment/tiny.yaml",
            "# @package _global_\nblend: {allocate: {agents: {match: no_such, take: all}}}\n",
            ["allocate.agents", "no_such"],
        ),
        (
            ALPHA,
            GOOD.replace("alpha.jsonl", "alfa.jsonl"),
            ["alpha.yaml", "source", "data/alfa.jsonl", "data/alpha.jsonl"],
        ),
        (
            "conf/experiment/tiny.yaml",
            "# @package _global_\ndraftr: {layers: [1]}\n",
            ["conf/experiment/tiny.yaml", "unknown key 'draftr'", "did you mean 'drafter'?"],
        ),
        (
            "conf/experiment/tiny.yaml",
            "# @package _global_\nrun: {thread: 2}\n",
            ["conf/run/default.yaml", "run.thread", "did you mean 'threads'?"],
        ),
        (ALPHA, GOOD + "description: ${nope}\n", ["conf/dataset/alpha.yaml: description", "nope"]),
        (ALPHA, GOOD + "description: ${oc.env:HOME}\n", ["oc.env:HOME", "params.yaml, which is committed"]),
        (
            "conf/experiment/tiny.yaml",
            "# @package _global_\nrun: {workers: many}\n",
            ["conf/run/default.yaml", "run.workers", "whole number"],
        ),
        (ALPHA, GOOD + 'description: "\\ud800"\n', ["cannot be written as YAML", "description"]),
        (ALPHA, GOOD + "description: " + "[" * 3000 + "\n", ["conf/dataset/alpha.yaml", "nested too deeply"]),
        (ALPHA, GOOD.replace("alpha.jsonl", "x" * 5000), ["conf/dataset/alpha.yaml", "cannot be a path"]),
        (ALPHA, "- source\n", ["conf/dataset/alpha.yaml", "must be a map"]),
        (ALPHA, 'source: {files: "\0"}\n', ["conf/dataset/alpha.yaml", "a character that YAML forbids"]),
        ("conf/dataset/more/beta.yaml", GOOD, ["conf/dataset/more/beta.yaml", "move it to conf/dataset/beta.yaml"]),
        ("conf/target/chatml_tools.jinja", None, ["conf/target/chatml_tools.jinja", "no such file"]),
        (
            "conf/experiment/tiny.yaml",
            "# @package _global_\nrun: {device: potato}\n",
            ["conf/run/default.yaml: run.device", "found: potato", "fix: "],
        ),
        (ALPHA, GOOD.replace("alpha.jsonl", "*.jsnl"), ["conf/dataset/alpha.yaml: source", "data/*.jsnl", "fix: "]),
        (
            ALPHA,
            GOOD.replace("data/alpha.jsonl", "[data/alpha.jsonl, data/alpa.jsonl]"),
            ["conf/dataset/alpha.yaml: source", "data/alpa.jsonl", "did you mean data/alpha.jsonl?"],
        ),
        (ALPHA, GOOD + "description: ${ 5\n", ["conf/dataset/alpha.yaml: description: '${' at line 3", "found: ${ 5"]),
        (ALPHA, GOOD + "tags: [a, '${']\n", ["conf/dataset/alpha.yaml: tags[1]: '${' at line 3", "fix: "]),
        (ALPHA, GOOD + "defaults: [bet]\n", ["conf/dataset/alpha.yaml: defaults", "bet", "did you mean 'beta'?"]),
        ("conf/blend/default.yaml", "sise: 3\n", ["conf/blend/default.yaml: sise", "did you mean 'size'?"]),
        (
            "conf/blend/default.yaml",
            "allocate: {all: {match: none, take: all}}\n",
            ["conf/blend/default.yaml: allocate.all", "none"],
        ),
    ],
)
def test_a_faulty_configuration(
    project: Space, name: str, text: str | None, told: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everything is checked before anything runs, and params.yaml stays as it was."""
    said = composing(project, name, text, monkeypatch)
    for part in told:
        assert part in said, (part, said)


def test_bytes_that_are_no_text_and_links_to_nowhere(project: Space, monkeypatch: pytest.MonkeyPatch) -> None:
    said = []
    for source, more in ("data/alpha.jsonl", b"# \xff\n"), ("data/loop", b""):
        path, before = project.path(ALPHA), project.path(ALPHA).read_bytes()
        path.write_bytes(f"source: {{files: {source}}}\nschema: {{prompt: question}}\n".encode() + more)
        monkeypatch.chdir(project.root)
        Path("data/loop").symlink_to("loop")
        try:
            with pytest.raises(ConfigError) as caught:
                recompose()
        finally:
            Path("data/loop").unlink()
            path.write_bytes(before)
        said.append(str(caught.value))
    assert "conf/dataset/alpha.yaml: is not UTF-8" in said[0]
    assert "is a link that leads nowhere" in said[1]


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("sampling.temprature=1", ["sampling.temprature", "did you mean 'temperature'?"]),
        ("datasets.alfa.quota=3", ["datasets.alfa.quota", "did you mean 'alpha'?"]),
        ("nope=1", ["nope: there is no 'nope'", "known here: "]),
        ("=", ["=: is no override", "fix: key=value"]),
        ("quota_cap=[1", ["quota_cap=[1: is no override"]),
        ("experiment=tiny,quickstart", ["gives several values"]),
        ("experiment=tinny", ["conf/experiment: there is no 'tinny'", "did you mean 'tiny'?"]),
        ("seed.more=1", ["seed.more", "no keys of its own"]),
    ],
)
def test_a_wrong_override(project: Space, override: str, told: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """`draftmill plan` and sweeps name what was written and what was probably meant."""
    monkeypatch.chdir(project.root)
    with pytest.raises(DraftmillError) as caught:
        composed([override])
    for part in told:
        assert part in str(caught.value), (part, str(caught.value))


def test_half_written_lock_files_are_mended(project: Space, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a kill left of DVC's files, and nothing else; not while a build holds DVC's lock."""
    monkeypatch.chdir(project.root)
    good = "schema: '2.0'\nstages:\n  a:\n    cmd: b\n"
    texts = {".dvc/tmp/rwlock": "", "dvc.lock": good[:-6] + "dep", "pipeline/extract/dvc.lock": good}
    for name, text in texts.items():
        project.write(name, text)
    with make_lock(".dvc/tmp/lock", tmp_dir=".dvc/tmp"):
        assert mend() == []
    assert [path.as_posix() for path in mend()] == [".dvc/tmp/rwlock", "dvc.lock"]
    assert mend() == [] and project.path("pipeline/extract/dvc.lock").exists()
    project.path("pipeline/extract/dvc.lock").unlink()


def test_gc_belongs_into_a_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Elsewhere there is nothing to free, and it says so."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"params\.yaml: not there yet"):
        collect()


def test_a_fault_ends_the_command_with_one_message(project: Space) -> None:
    """Exit code 1 and the message, no traceback; dvc stops before any other stage."""
    before = project.path(ALPHA).read_text(encoding="utf-8")
    project.write(ALPHA, GOOD + "qouta: 4\n")
    done, built = project.draftmill("compose"), project.dvc("repro")
    project.write(ALPHA, before)
    assert done.code == 1 and done.text.startswith("error: conf/dataset/alpha.yaml") and "Traceback" not in done.text
    assert built.code != 0 and built.ran == [] and "qouta" in built.text and "Traceback" not in built.text


def test_no_dataset_at_all(project: Space, monkeypatch: pytest.MonkeyPatch) -> None:
    """A project whose datasets are all disabled cannot be built."""
    before = project.path("conf/dataset/beta.yaml").read_text(encoding="utf-8")
    project.write("conf/dataset/beta.yaml", before + "enabled: false\n")
    said = composing(project, ALPHA, GOOD + "enabled: false\n", monkeypatch)
    project.write("conf/dataset/beta.yaml", before)
    assert "conf/blend" in said or "no dataset takes part" in said


def test_use(project: Space) -> None:
    """`draftmill use` edits one line, and knows the experiments there are."""
    unknown = project.draftmill("use", "tinny")
    assert unknown.code == 1 and "did you mean 'tiny'?" in unknown.text
    before = project.path("conf/config.yaml").read_text(encoding="utf-8")
    assert project.draftmill("use", "quickstart").code == 0
    after = project.path("conf/config.yaml").read_text(encoding="utf-8")
    assert after == before.replace("experiment: tiny", "experiment: quickstart")
    assert project.draftmill("use", "tiny").code == 0


@pytest.mark.parametrize(
    ("old", "new_text", "told"),
    [
        ("prompt: question", "prompt: questoin", ["alpha", "questoin", "question"]),
        ("{prompt: question, id: key}", "{turns: {each: chat}}", ["alpha", "critic"]),
    ],
)
def test_data_that_does_not_fit(tmp_path: Path, old: str, new_text: str, told: list[str]) -> None:
    """extract fails with one message, and the earlier output comes back with the command that the message names."""
    space = copied(tmp_path)
    rows = space.path("build/extract/alpha/rows.parquet").read_bytes()
    if "chat" in new_text:
        turns = '{"chat": [{"role": "user", "content": "a"}, {"role": "critic", "content": "b"}]}\n'
        space.write("data/alpha.jsonl", turns * 3)
    space.edit("conf/dataset/alpha.yaml", old, new_text)
    done = space.dvc("repro", address("extract@alpha"))
    assert done.code != 0 and "Traceback" not in done.text
    for part in told:
        assert part in done.text, (part, done.text)
    assert f"dvc checkout {address('extract@alpha')}" in done.text, done.text
    assert space.dvc("checkout", address("extract@alpha")).code == 0
    assert space.path("build/extract/alpha/rows.parquet").read_bytes() == rows


def test_one_bad_dataset_does_not_stop_the_others(tmp_path: Path) -> None:
    """`dvc repro --keep-going` builds what it can; blend waits for the dataset that failed."""
    space = copied(tmp_path)
    space.edit("conf/dataset/alpha.yaml", "prompt: question", "prompt: nothing_here")
    space.edit("conf/dataset/beta.yaml", "mask: assistant", "mask: all")
    done = space.dvc("repro", "--keep-going")
    assert done.code != 0
    assert done.ran == ["extract@alpha", "tokenize@beta"] or done.ran == ["tokenize@beta", "extract@alpha"]


def test_two_builds_at_once(tmp_path: Path) -> None:
    """The second one waits, or says who holds the lock; what is built is whole."""
    space = copied(tmp_path)
    space.edit("conf/dataset/alpha.yaml", "quota: 4", "quota: 5")
    command = [str(space.python), "-m", "dvc", "repro", address("hidden_states@alpha")]
    first = subprocess.Popen(
        command, cwd=space.root, env=space.environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    time.sleep(1.5)
    second = space.dvc("repro", address("hidden_states@alpha"))
    text, _ = first.communicate(timeout=120)
    ended = (first.returncode, second.code)
    assert ended == (0, 0) or ("lock" in text + second.text.lower() or "busy" in text + second.text), second.text
    assert space.repro("hidden_states@alpha") == []
    assert space.metrics("generate", "alpha")["rows_out"] == 5
