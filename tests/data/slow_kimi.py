"""A tokenizer without a Rust side whose chat rendering is Python code: one token a byte, for tests."""

import json

from transformers import PreTrainedTokenizer


class SlowKimi(PreTrainedTokenizer):
    """Bytes as characters U+0100 and up, plus the special tokens listed in tokenizer_config.json."""

    model_input_names = ("input_ids", "attention_mask")

    def __init__(self, specials=(), **kwargs):
        self._bytes = {chr(256 + byte): byte for byte in range(256)}
        super().__init__(specials=list(specials), **kwargs)
        self.add_tokens(list(specials), special_tokens=True)

    @property
    def vocab_size(self):
        return 256

    def get_vocab(self):
        return {**self._bytes, **self.added_tokens_encoder}

    def _tokenize(self, text, **kwargs):
        return [chr(256 + byte) for byte in text.encode("utf-8")]

    def _convert_token_to_id(self, token):
        return self._bytes.get(token, 0)

    def _convert_id_to_token(self, index):
        return chr(256 + index)

    def convert_tokens_to_string(self, tokens):
        parts = [bytes([self._bytes[token]]) if token in self._bytes else token.encode() for token in tokens]
        return b"".join(parts).decode("utf-8", "replace")

    def save_vocabulary(self, save_directory, filename_prefix=None):
        return ()

    def apply_chat_template(self, conversation, tools=None, add_generation_prompt=False, tokenize=True, **kwargs):
        """The conversation in the manner of Kimi K2 Thinking, declarations of tools in a form of their own."""
        closed = max(
            (i for i, m in enumerate(conversation[:-1]) if m["role"] == "assistant" and not m.get("tool_calls")),
            default=-1,
        )
        parts = [self._declare(tools)] if tools else []
        for index, message in enumerate(conversation):
            parts.append(self._turn(message, index > closed))
        if add_generation_prompt:
            parts.append("<|im_assistant|>assistant<|im_middle|>")
        text = "".join(parts)
        return self.encode(text) if tokenize else text

    @staticmethod
    def _declare(tools):
        lines = ["# Tools", "namespace functions {"]
        for tool in tools:
            function = tool["function"]
            lines += [f"// {function.get('description', '')}", f"type {function['name']} = (_: "]
            lines += [json.dumps(function.get("parameters", {}), ensure_ascii=False), ") => any;"]
        return "<|im_system|>tool_declare<|im_middle|>" + "\n".join([*lines, "}"]) + "<|im_end|>"

    @staticmethod
    def _turn(message, keeps_reasoning):
        role, content = message["role"], message.get("content") or ""
        if role == "tool":
            return f"<|im_system|>tool<|im_middle|>## Return of {message.get('tool_call_id')}\n{content}<|im_end|>"
        if role != "assistant":
            return f"<|im_{role}|>{role}<|im_middle|>{content}<|im_end|>"
        thought = message.get("reasoning_content") or "" if keeps_reasoning else ""
        calls = ""
        for call in message.get("tool_calls") or []:
            arguments = call["function"]["arguments"]
            arguments = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
            calls += f"<|tool_call_begin|>{call['id']}<|tool_call_argument_begin|>{arguments}<|tool_call_end|>"
        if calls:
            calls = f"<|tool_calls_section_begin|>{calls}<|tool_calls_section_end|>"
        return f"<|im_assistant|>assistant<|im_middle|><think>{thought}</think>{content}{calls}<|im_end|>"
