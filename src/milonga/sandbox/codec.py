"""Encoding of values as text and back, shared by both sides of a sandbox process.

The process that runs a program loads this file alone, for every program: so it imports nothing of Milonga, and nothing slow.
What the text looks like and what its bounds are for is said in `values`.
"""

from __future__ import annotations

import json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

DEPTH, NODES = 20, 10_000
BITS = 4096
"""Of an integer."""
CHARACTERS = 10_000
"""Of a string; bytes alike."""
TEXT = 16_000
"""Characters of a canonical text."""


class InvalidValue(ValueError):
    """Not a plain value within the bounds; the message says why."""


def encode(value: object) -> str:
    """Encode a value as text; `InvalidValue` if it is not plain or exceeds a bound."""
    text = json.dumps(tag_value(value), separators=(",", ":"))
    if len(text) > TEXT:
        raise InvalidValue(f"longer than {TEXT} characters")
    return text


def decode(text: str) -> Any:
    """Decode a canonical text into a new value; `InvalidValue` for any other text. Safe on output of a hostile process."""
    if len(text) > TEXT:
        raise InvalidValue(f"longer than {TEXT} characters")
    try:
        value = _untag_value(json.loads(text, parse_constant=_refuse, parse_float=_refuse), DEPTH)
        is_canonical = encode(value) == text
    except InvalidValue:
        raise
    except Exception as error:  # whatever a text brings about, it is only not canonical
        raise InvalidValue(f"not a canonical text: {type(error).__name__}") from None
    if not is_canonical:
        raise InvalidValue("not a canonical text: written in another way")
    return value


def tag_value(value: Any) -> Any:
    """Convert a value to JSON data, with tags for types that JSON lacks."""
    return _tag_value(value, DEPTH, _Budget())


class _Budget:
    """Nodes that may still be visited."""

    def __init__(self) -> None:
        self.left = NODES

    def spend(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise InvalidValue(f"more than {NODES} nodes")


def _tag_value(value: Any, depth: int, budget: _Budget) -> Any:
    """Convert recursively: a type that JSON lacks becomes an object with one key, the type. Types compare by identity."""
    budget.spend()
    kind = type(value)
    if value is None or kind is bool:
        return value
    if kind is int:
        if value.bit_length() > BITS:
            raise InvalidValue(f"an integer of more than {BITS} bits")
        return value
    if kind is float:
        return {"float": float.__repr__(value)}
    if kind is str or kind is bytes:
        if len(value) > CHARACTERS:
            raise InvalidValue(f"a string of more than {CHARACTERS} characters")
        return value if kind is str else {"bytes": value.hex()}
    if kind not in (list, tuple, set, dict):
        raise InvalidValue(f"not a plain value: {str(kind.__name__)[:100]}")
    if depth == 0:
        raise InvalidValue(f"nested deeper than {DEPTH}")
    if kind is dict:
        pairs = [[_tag_value(k, depth - 1, budget), _tag_value(v, depth - 1, budget)] for k, v in value.items()]
        return {"dict": sorted(pairs, key=lambda pair: json.dumps(pair[0]))}
    items = [_tag_value(item, depth - 1, budget) for item in value]
    if kind is set:
        items.sort(key=json.dumps)
    return items if kind is list else {kind.__name__: items}


def _untag_value(data: Any, depth: int) -> Any:
    if data is None or isinstance(data, bool | int | str):
        return data
    if depth < 0:
        raise InvalidValue(f"nested deeper than {DEPTH}")
    if isinstance(data, list):
        return [_untag_value(item, depth - 1) for item in data]
    ((tag, content),) = data.items()
    if tag == "float":
        return float(content)
    if tag == "bytes":
        return bytes.fromhex(content)
    if tag == "dict":
        return {_untag_value(k, depth - 1): _untag_value(v, depth - 1) for k, v in content}
    items = [_untag_value(item, depth - 1) for item in content]
    return tuple(items) if tag == "tuple" else set(items) if tag == "set" else _refuse(tag)


def _refuse(word: str) -> Any:
    raise InvalidValue(f"not a canonical text: {word[:40]}")
