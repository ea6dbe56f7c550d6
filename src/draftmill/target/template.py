"""Chat templates in Jinja's immutable sandbox, with `{% generation %}` blocks made visible.

Templates come from model repositories: they are data of strangers and get no more than messages and tools.
The filters and names offered are those that Hugging Face transformers offers to templates.
"""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from draftmill.errors import DataError

Message = Mapping[str, Any]

_DICT_NAMES = frozenset(dir(dict))
_LOOP_NAMES = frozenset(("first", "last", "index", "index0", "revindex", "revindex0", "length", "previtem", "nextitem"))
_PLAIN_JSON = json.JSONEncoder(ensure_ascii=False)


class RenderError(DataError):
    """The template refuses a conversation, or fails on it."""


class Template:
    """A compiled chat template.

    `variables` are what the template sees beside the conversation (bos_token, …); `today` is an ISO date.
    Raises RenderError if the text is not a template.
    """

    def __init__(self, source: str, variables: Mapping[str, Any], today: str = "2025-01-01") -> None:
        environment = _Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=[GenerationBlock, loopcontrols])
        environment.filters["tojson"] = _tojson
        environment.globals.update(
            raise_exception=_raise_exception, strftime_now=_fixed_clock(today), namespace=_Namespace
        )
        self.source, self._variables = source, dict(variables)
        try:
            self._compiled = environment.from_string(source)
        except jinja2.TemplateError as error:
            raise RenderError(f"the chat template does not compile: {error}") from None
        self.has_generation_blocks = re.search(r"\{%[-+]?\s*generation\s*[-+]?%\}", source) is not None

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[Any] | None,
        generation_prompt: bool,
        marks: tuple[str, str] | None = None,
    ) -> str:
        """The conversation as text; `marks` are written around each generation block's text.

        Raises RenderError with the template's own message.
        """
        try:
            return self._compiled.render(
                self._variables,
                messages=messages,
                tools=tools,
                documents=None,
                add_generation_prompt=generation_prompt,
                generation_marks=marks,
            )
        except (jinja2.TemplateError, TypeError, ValueError, KeyError, IndexError, AttributeError) as error:
            raise RenderError(str(error) or type(error).__name__) from None


class GenerationBlock(Extension):
    """`{% generation %}…{% endgeneration %}`: the text the model generates, between two marks if asked for."""

    tags = {"generation"}  # noqa: RUF012  (jinja's own form)

    def parse(self, parser: Parser) -> nodes.Node:
        """The block as a call of `_wrap`."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_wrap"), [], [], body).set_lineno(line)

    @staticmethod
    @jinja2.pass_context
    def _wrap(context: jinja2.runtime.Context, caller: Callable[[], str]) -> str:
        marks = context.get("generation_marks")
        return f"{marks[0]}{caller()}{marks[1]}" if marks else caller()


class _Sandbox(ImmutableSandboxedEnvironment):
    """Jinja's sandbox with short cuts for what templates do most: `message.content` and `loop.last`.

    The answers are those of the sandbox, which would try the attribute, check it, and come to the same value;
    that took most of the time of a trajectory's render.
    """

    def getattr(self, obj: Any, attribute: str) -> Any:
        """The value of `obj.attribute` in a template."""
        if type(obj) is dict and attribute not in _DICT_NAMES:
            return obj[attribute] if attribute in obj else self.undefined(obj=obj, name=attribute)
        if type(obj) is jinja2.runtime.LoopContext and attribute in _LOOP_NAMES:
            return getattr(obj, attribute)
        return super().getattr(obj, attribute)


class _Namespace(jinja2.utils.Namespace):
    """Jinja's namespace without underscore names, which could reach Python's internals."""

    def __setitem__(self, name: str, value: object) -> None:
        if name.startswith("_"):
            raise jinja2.exceptions.SecurityError(f"a template may not set {name!r}")
        super().__setitem__(name, value)


def _tojson(value: object, ensure_ascii: bool = False, indent: int | None = None, **more: Any) -> str:
    # Jinja's own filter escapes < and > for HTML; a model sees plain JSON.
    if not (ensure_ascii or indent or more):
        return _PLAIN_JSON.encode(value)
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **more)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _fixed_clock(today: str) -> Callable[[str], str]:
    date = datetime.datetime.fromisoformat(today)
    return lambda form: date.strftime(form)
