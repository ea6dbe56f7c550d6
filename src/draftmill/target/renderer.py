"""The renderer border: messages to text and ids for one target, and generated ids back to a message."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import jinja2

from draftmill.errors import ConfigError
from draftmill.files import digest
from draftmill.target.card import Card, read_card
from draftmill.target.config import Target
from draftmill.target.encoding import Encoder, Piece
from draftmill.target.parse import parse_answer
from draftmill.target.prepare import prepare
from draftmill.target.spans import Layout, SpanFinder, Way
from draftmill.target.template import Message, RenderError, Template

Tools = Sequence[Any] | None


def renderer(target: Target) -> Renderer:
    """The renderer of a target, whose tokenizer is made or fetched at first use."""
    return Renderer(target, prepare(target))


class Renderer:
    """Renders, encodes and parses as the target's servers do, always in the same way.

    Messages are those of a `conversation` column: role, content, and where there are any reasoning, tool_calls,
    tool_call_id, name, flag; `tools` is a list in OpenAI form or None.
    """

    def __init__(self, target: Target, folder: Path) -> None:
        self.target, self.folder = target, folder
        self.card, backend = read_card(folder, target.trust_remote_code)
        self.encoder = Encoder(self.card, backend, self._load_tokenizer)
        self.template = self._make_template(target, self.card)
        self.ends = [*self._eos_texts(), *target.end_of_turn]
        self.eos_ids = tuple(sorted({*self.card.eos_ids, *self._ids_of(target.end_of_turn)}))
        way: Way = "generation" if self.template and self.template.has_generation_blocks else "marks"
        way = way if target.spans == "auto" else "boundary"
        tags = [target.reasoning.open, target.reasoning.close] if target.reasoning else []
        specials = [text for text in self.card.special_tokens if text not in tags]
        self.finder = SpanFinder(self._render, way, self.ends, specials)

    @property
    def tokenizer(self) -> Any:
        """The tokenizer as transformers loads it; its import takes seconds."""
        return self.encoder.tokenizer

    @cached_property
    def digest(self) -> str:
        """Of all that decides texts and ids: template, its settings, the tokenizer's files."""
        target = self.target
        reasoning = dataclasses.asdict(target.reasoning) if target.reasoning else None
        settings = [target.template_kwargs, target.today, target.special_tokens_in_content, reasoning]
        source = self.template.source if self.template else "python"
        return digest([source, *settings, target.tool_calls, target.end_of_turn, self.card.digest])

    def text(self, messages: Sequence[Message], tools: Tools, generation_prompt: bool) -> str:
        """The rendered conversation. Raises RenderError with the template's message."""
        return self._render(messages, tools, generation_prompt, None)

    def prompt_ids(self, messages: Sequence[Message], tools: Tools) -> list[int]:
        """The ids a server is sent: the conversation and the generation prompt, encoded in the same pieces as the
        training row will be. Raises RenderError.
        """
        layout = self.finder.layout(messages, tools, True)
        pieces = self.encoder.encode(layout.pieces(self.target.special_tokens_in_content))
        return [i for ids in pieces for i in ids]

    def rows(self, messages: Sequence[Message], tools: Tools) -> list[Layout]:
        """The texts and spans of a conversation's training rows (spans.SpanFinder.rows)."""
        return self.finder.rows(messages, tools)

    def encode(self, text: str) -> list[int]:
        """The ids of a text in which special tokens are special; nothing is added."""
        return self.encoder.encode([Piece(text, True)])[0]

    def decode(self, ids: Sequence[int]) -> str:
        """The text of `ids`, special tokens included."""
        return self.encoder.decode(ids)

    def parse(self, answer: str | Sequence[int]) -> dict[str, Any]:
        """The assistant message of a generated text or its ids, with or without the end token."""
        text = answer if isinstance(answer, str) else self.decode(answer)
        for end in self.ends:
            text = text.removesuffix(end)
        return parse_answer(text, self.target.reasoning, self.target.tool_calls)

    def _render(
        self, messages: Sequence[Message], tools: Tools, generation_prompt: bool, marks: tuple[str, str] | None
    ) -> str:
        messages = [self._for_template(message) for message in messages]
        if self.template is not None:
            return self.template.render(messages, tools or None, generation_prompt, marks)
        try:
            rendered = self.tokenizer.apply_chat_template(
                messages,
                tools=tools or None,
                add_generation_prompt=generation_prompt,
                tokenize=False,
                **self.target.template_kwargs,
            )
        except (jinja2.TemplateError, TypeError, ValueError, KeyError, IndexError, AttributeError) as error:
            raise RenderError(str(error) or type(error).__name__) from None
        return str(rendered)

    @staticmethod
    def _for_template(message: Message) -> Message:
        """The message under the names that templates read; `flag` is ours alone."""
        thought = message.get("reasoning")
        if thought is None and "flag" not in message:
            return message
        plain = {key: value for key, value in message.items() if key not in ("reasoning", "flag")}
        return plain if thought is None else {**plain, "reasoning_content": thought, "thinking": thought}

    def _load_tokenizer(self) -> Any:
        from transformers import AutoTokenizer

        trust = self.target.trust_remote_code
        return AutoTokenizer.from_pretrained(self.folder, trust_remote_code=trust, local_files_only=True)

    @staticmethod
    def _make_template(target: Target, card: Card) -> Template | None:
        """The configured template, else the tokenizer's; None where Python code renders."""
        if target.chat_template is not None:
            path = Path(target.chat_template)
            if not path.is_file():
                raise ConfigError("no such template", file=path, key="target.chat_template")
            source: str | None = path.read_text(encoding="utf-8")
        elif card.renders_itself:
            return None
        else:
            source = card.template
        if source is None:
            fix = "name one in target.chat_template, such as conf/target/chatml_tools.jinja"
            raise ConfigError("the tokenizer has no chat template", key="target.chat_template", fix=fix)
        return Template(source, {**card.variables, **target.template_kwargs}, target.today)

    def _eos_texts(self) -> list[str]:
        return [self.encoder.decode([i]) for i in self.card.eos_ids]

    def _ids_of(self, texts: Sequence[str]) -> list[int]:
        found = [self.encoder.id_of(text) for text in texts]
        if None in found:
            text = texts[found.index(None)]
            raise ConfigError(f"'{text}' is not one token of this model", key="target.end_of_turn")
        return [i for i in found if i is not None]
