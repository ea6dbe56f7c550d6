"""Which list of a row is the conversation, and which keys of its turns hold the role and the text.

A conversation is a list of objects with a key whose values are texts, at most 12 different ones, in 95 % of the
turns, most of them known role names, at least one meaning user.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from statistics import mean
from typing import Any

from draftmill.extract.schema import ROLES
from draftmill.inspect import names
from draftmill.inspect.places import Keys, Place, path_text

MAX_LABELS = 12
TEXT_KEYS = ("text", "value", "content")
TURN_SHARE = 0.95
FILLED_SHARE = 0.8
"""A second key of the text fills so many of the turns where the first is empty, and at most the rest of the others."""
MAX_SPEAKERS = 4
CHANGE_SHARE = 0.8
"""A talk of unknown speakers: at least this share of turns is not by the speaker of the turn before."""
MIN_CHARACTERS = 8
"""… and turns have at least so many characters on average."""
Turn = dict[str, Any]
Block = dict[str, Any]
"""Keys of a declaration: a block of `turns`, or the whole of `schema`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Conversation:
    """A list that is a conversation; keys of turns may be one level deep, as `author.role`."""

    place: Place
    role: str
    labels: Counter[Any]
    texts: tuple[str, ...]
    """Keys of the text; the second is filled where the first is empty."""
    parts: Counter[str]
    """Types of parts, where contents are lists."""

    @property
    def turns(self) -> Iterator[Turn]:
        """All turns, flattened by one level."""
        return (turn for element in self.place.elements() if (turn := as_turn(element)))

    def system_answers(self) -> bool:
        """Whether `system` is who answers, as in dialogues about tasks: all labels are known, none is the assistant's,
        and most turns of the system follow another turn.
        """
        meant = set(map(role_meant, self.labels))
        if meant & {"assistant", None} or "system" not in meant:
            return False
        talks = [[as_turn(element) or {} for element in turns] for _, turns in self.place.lists]
        places = [place for talk in talks for place, it in enumerate(talk) if role_meant(it.get(self.role)) == "system"]
        return sum(place > 0 for place in places) * 2 > len(places)

    def last_roles(self) -> Counter[str | None]:
        """How conversations end: role of the last turn, counted."""
        return self._roles_at(-1)

    def first_roles(self) -> Counter[str | None]:
        """How conversations begin: role of the first turn, counted."""
        return self._roles_at(0)

    def _roles_at(self, place: int) -> Counter[str | None]:
        turns = (as_turn(turns[place]) for _, turns in self.place.lists if turns)
        return Counter(role_meant(turn.get(self.role)) for turn in turns if turn)


def role_meant(label: object) -> str | None:
    """The role that a label means, its case aside, or None if it is unknown."""
    if not isinstance(label, str):
        return None
    plain = label.strip().lower()
    return ROLES.get(label) or ROLES.get(plain) or names.LABELS.get(plain)


def as_turn(element: Any) -> Turn | None:
    """An element with the keys that a path may name: a flat object, or `[0]` and `[1]` of ["user", "hello"]."""
    if isinstance(element, dict):
        return flat(element)
    if isinstance(element, list) and len(element) > 1 and isinstance(element[0], str):
        return {f"[{place}]": item for place, item in enumerate(element)}
    return None


def inner_path(key: str) -> str:
    """The path of a key of a turn: `author.role` is two steps, `[0]` is one."""
    return key if key.startswith("[") else path_text(key.split("."))


def flat(turn: Mapping[str, Any]) -> Turn:
    """A turn with the members of its objects beside its own: {author: {role}} gives `author.role` too."""
    inner = {
        f"{key}.{name}": item for key, value in turn.items() if isinstance(value, dict) for name, item in value.items()
    }
    return {**turn, **inner}


def find_conversations(places: Mapping[Keys, Place]) -> list[Conversation]:
    """All conversations, the likeliest first: most rows, then the usual names, then the shortest path."""
    found = [it for keys, place in places.items() if not _in_tree(keys) and (it := as_conversation(place))]
    return sorted(found, key=lambda it: (-len(it.place.rows), _name_rank(it.place.keys), len(it.place.keys)))


def _in_tree(keys: Keys) -> bool:
    """Whether the path goes through a list of its own name: replies of replies, of which each is another talk."""
    return keys[-1:] != (None,) and keys[-1:] != () and keys[-1] in keys[:-1]


def _name_rank(keys: Keys) -> int:
    last = next((key for key in reversed(keys) if key is not None), "")
    if last in names.CONVERSATIONS:
        return names.CONVERSATIONS.index(last)
    return len(names.CONVERSATIONS) + (last == "rejected")


def find_unnamed(places: Mapping[Keys, Place]) -> Conversation | None:
    """A list that looks like a talk of two to four speakers who take turns, though nobody knows their labels."""
    for place in sorted(places.values(), key=lambda it: (-len(it.rows), len(it.keys))):
        conversation = as_conversation(place, known=False)
        if conversation and _take_turns(conversation):
            return conversation
    return None


def _take_turns(conversation: Conversation) -> bool:
    labels = [[turn.get(conversation.role) for turn in turns] for _, turns in conversation.place.lists]
    changes = [one != other for row in labels for one, other in pairwise(row)]
    total = sum(characters(turn.get(conversation.texts[0])) for turn in conversation.turns)
    return bool(changes) and mean(changes) >= CHANGE_SHARE and total >= MIN_CHARACTERS * sum(map(len, labels))


def as_conversation(place: Place, known: bool = True) -> Conversation | None:
    """`place` as a conversation, if it is one; `known`: by labels that are known roles."""
    elements = list(place.elements())
    turns = [turn for element in elements if (known or isinstance(element, dict)) and (turn := as_turn(element))]
    if not turns or len(turns) < TURN_SHARE * len(elements):
        return None
    found = _role_key(turns, known) if known else _role_key(_uncounted(place, turns), known)
    if found is None:
        return None
    role, labels = found
    texts = text_keys(turns, role)
    if not texts:
        return None
    return Conversation(place=place, role=role, labels=labels, texts=texts, parts=part_types(turns, texts[0]))


def _uncounted(place: Place, turns: list[Turn]) -> list[Turn]:
    """The turns without the keys that only number them, if a talk is longer than a question and an answer."""
    talks = [[turn for turn in found if isinstance(turn, dict)] for _, found in place.lists]
    longest = max(talks, key=len)
    counted = {key for key in longest[0] if len(longest) > 2 and _counts(talks, key)}
    return [{key: value for key, value in turn.items() if key not in counted} for turn in turns]


def _counts(talks: list[list[Turn]], key: str) -> bool:
    steps = [(one.get(key), other.get(key)) for talk in talks for one, other in pairwise(talk)]
    return all(isinstance(one, int) and other == one + 1 for one, other in steps)


def _role_key(turns: list[Turn], by_name: bool) -> tuple[str, Counter[Any]] | None:
    best: tuple[float, str, Counter[Any]] | None = None
    for key in dict.fromkeys(key for turn in turns for key in turn if key not in names.ADDRESSEES):
        # Numbers may be labels, but only a person knows which.
        kind = str if by_name else str | int
        labels = Counter(value for turn in turns if isinstance(value := turn.get(key), kind) and value != "")
        total = sum(labels.values())
        if total < TURN_SHARE * len(turns) or len(labels) > MAX_LABELS:
            continue
        known = {label: count for label, count in labels.items() if role_meant(label)}
        if by_name and ("user" not in map(role_meant, known) or 2 * len(known) <= len(labels)):
            continue
        if not by_name and (not 2 <= len(labels) <= MAX_SPEAKERS or any(label in names.PARTS for label in labels)):
            continue
        share = sum(known.values()) / total
        if best is None or share > best[0]:
            best = share, key, labels
    return best and best[1:]


def text_keys(turns: list[Turn], role: str) -> tuple[str, ...]:
    """The key of the text, and a second one if it is filled where the first is empty, and only there.

    It is the key with most characters, unless one that is called like a text is filled in most turns.
    """
    used = (role, *names.NO_TEXT)
    # A member of an object counts only if no plain key holds text: `content.parts`, not `info.source`.
    keys = [
        key
        for key in dict.fromkeys(key for turn in turns for key in turn)
        if key not in used and not key.endswith("type")
    ]
    amounts = {key: sum(characters(turn.get(key)) for turn in turns) for key in keys}
    plain = [key for key in keys if "." not in key and amounts[key]]
    candidates = plain or [key for key in keys if amounts[key]]
    telling = [key for key in candidates if not _is_constant(turns, key)]
    if not telling:
        return ()
    named = [
        key for key in ("content", "value", "text") if key in candidates and 2 * len(_filled(turns, key)) > len(turns)
    ]
    first = named[0] if named else max(telling, key=lambda key: amounts[key])
    holes = [
        turn for turn in turns if not characters(turn.get(first)) and not any(turn.get(key) for key in names.CALLS)
    ]
    # A text inside an object stands where others have a text: {"content": {"answer": …}}.
    inside = [key for key in keys if key.startswith(f"{first}.")]
    fillers = {key: sum(characters(turn.get(key)) for turn in holes) for key in (*candidates, *inside) if key != first}
    second = max(fillers, key=lambda key: fillers[key], default=None)
    if second is None or len(_filled(holes, second)) < max(1, FILLED_SHARE * len(holes)):
        return (first,)
    if second in inside:
        return second, first  # an object is no text, but it is not empty either
    beside = _filled(_filled(turns, first), second)  # a model's name, or a date, stands beside texts too
    return (first, second) if len(beside) <= (1 - FILLED_SHARE) * len(turns) else (first,)


def _is_constant(turns: list[Turn], key: str) -> bool:
    """Whether a key that is not called like a text says the same in all turns: {"object": "thread.message"}."""
    said = [turn[key] for turn in turns if turn.get(key)]
    return key not in TEXT_KEYS and len(said) > 1 and all(value == said[0] for value in said)


def _filled(turns: list[Turn], key: str) -> list[Turn]:
    return [turn for turn in turns if characters(turn.get(key))]


def characters(value: Any) -> int:
    """Characters of a text, or of the text parts of a content that is a list."""
    return sum(len(text.strip()) for text in texts_of(value))


def texts_of(value: Any) -> Iterator[str]:
    """The texts in a content: itself, or those of its parts."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for part in value:
            if isinstance(part, str):
                yield part
            elif isinstance(part, dict) and is_text(part):
                yield from (part[key] for key in TEXT_KEYS if isinstance(part.get(key), str))


def is_text(part: Mapping[str, Any]) -> bool:
    """Whether a part is text: by its type, or if it has none, by what it holds; one with a role is a turn."""
    kind = part.get("type")
    if kind is None:
        return "role" not in part and any(isinstance(part.get(key), str) for key in TEXT_KEYS)
    return isinstance(kind, str) and kind.endswith("text")


def part_kind(part: Mapping[str, Any]) -> str:
    """The type of a part, or its first key, if it has none."""
    return str(part.get("type") or next(iter(part), "empty"))


def part_types(turns: Iterable[Turn], key: str) -> Counter[str]:
    """Types of the parts that are no text, counted."""
    parts = (part for turn in turns if isinstance(turn.get(key), list) for part in turn[key] if isinstance(part, dict))
    return Counter(part_kind(part) for part in parts if not is_text(part))
