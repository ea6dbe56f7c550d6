"""Shares that tell whether a declaration is what a person means: how chats end, what is empty, what is shared."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from draftmill.inspect.conversation import Conversation, Turn, as_turn, characters, role_meant, texts_of

CHARACTERS_PER_TOKEN = 4
"""For the estimate of lengths: a usual ratio for English text; tokenize knows the exact number."""


def shares(conversation: Conversation, context: int) -> Iterator[str]:
    """One line a share. `context`: tokens over which a row is long."""
    chats = [[turn for it in found if (turn := as_turn(it))] for _, found in conversation.place.lists if found]
    lasts = conversation.last_roles()
    total = sum(lasts.values())
    if any(role_meant(label) == "assistant" for label in conversation.labels):
        yield f"last turn not the assistant's: {_share(total - lasts['assistant'], total)}"
    for label, empty, count in _empty_by_label(conversation):
        yield f"no text in turns of {label}: {_share(empty, count)}"
    for title, role in (("system text", "system"), ("first user turn", "user")):
        texts = [text for chat in chats if (text := _first(conversation, chat, role))]
        if texts:
            yield f"most frequent {title}: {_share(Counter(texts).most_common(1)[0][1], len(texts))}"
    long = sum(_length(conversation, chat) > context * CHARACTERS_PER_TOKEN for chat in chats)
    yield f"rows over {context} tokens (estimated): {_share(long, len(chats))}"


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.0%} ({part} of {whole})" if whole else "none"


def _empty_by_label(conversation: Conversation) -> Iterator[tuple[str, int, int]]:
    empty, total = Counter[str](), Counter[str]()
    for turn in conversation.turns:
        label = str(turn.get(conversation.role))
        total[label] += 1
        empty[label] += not any(characters(turn.get(key)) for key in conversation.texts)
    return ((label, empty[label], count) for label, count in total.most_common() if empty[label])


def _text(conversation: Conversation, turn: Turn) -> str:
    return next((text for key in conversation.texts if (text := "".join(texts_of(turn.get(key))))), "")


def _first(conversation: Conversation, chat: list[Turn], role: str) -> str:
    turns = (turn for turn in chat if role_meant(turn.get(conversation.role)) == role)
    return next((text for turn in turns if (text := _text(conversation, turn))), "")


def _length(conversation: Conversation, chat: list[Turn]) -> int:
    return sum(characters(turn.get(key)) for turn in chat for key in conversation.texts)
