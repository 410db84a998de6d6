"""What passes between the process that runs tests and the process that holds the code under test: messages of plain values.

Both processes load this file, inside the sandbox: so it imports nothing of Milonga. Invariants:
- A value is copied if it is plain: of exactly one of the types below, with plain members. Anything else is referred to by a
  number, and stays in its process: no method of an object ever runs in the other one.
- A message that is malformed or too long is `Closed`, as if the other process had ended.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from datetime import date, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any

LONGEST = 8 << 20
"""Bytes of a message."""
DEPTH, BITS = 50, 10_000
"""Of nested values, and of an integer."""
ITEMS: dict[type, str] = {list: "list", tuple: "tuple", set: "set", frozenset: "frozenset"}
PARTS: dict[type, Callable[[Any], list[Any]]] = {
    float: lambda value: [repr(value)],
    bytes: lambda value: [value.hex()],
    bytearray: lambda value: [value.hex()],
    complex: lambda value: [repr(value.real), repr(value.imag)],
    range: lambda value: [value.start, value.stop, value.step],
    slice: lambda value: [value.start, value.stop, value.step],
    Decimal: lambda value: [str(value)],
    Fraction: lambda value: [value.numerator, value.denominator],
    date: lambda value: [value.year, value.month, value.day],
    timedelta: lambda value: [value.days, value.seconds, value.microseconds],
}
"""Plain types that are made from parts, and their parts. Types compare by identity: a subclass is not plain."""
MAKERS: dict[str, Callable[..., Any]] = {kind.__name__: kind for kind in PARTS} | {
    "bytes": bytes.fromhex,
    "bytearray": bytearray.fromhex,
    "complex": lambda real, imag: complex(float(real), float(imag)),
    "datetime": datetime,
    **{name: (lambda *items, kind=kind: kind(items)) for kind, name in ITEMS.items()},
    "dict": lambda *pairs: dict(pairs),
}
Refer = Callable[[Any], list[Any]]
Resolve = Callable[[str, list[Any]], Any]


class Closed(Exception):
    """The other process has ended, or no longer says what it should."""


class Stays(TypeError):
    """A value that cannot be sent, nor referred to."""


class Wire:
    """Two pipes: one to read from, one to write to."""

    def __init__(self, source: int, sink: int) -> None:
        self.source, self.sink = source, sink

    def send(self, message: list[Any]) -> None:
        body = json.dumps(message).encode()
        if len(body) > LONGEST:
            raise Stays("too much to be sent")
        data = len(body).to_bytes(4, "big") + body
        try:
            while data:
                data = data[os.write(self.sink, data) :]
        except OSError:
            raise Closed("the other process has ended") from None

    def receive(self) -> list[Any]:
        size = int.from_bytes(self._read(4), "big")
        if size > LONGEST:
            raise Closed("a message is too long")
        try:
            message = json.loads(self._read(size))
        except (ValueError, RecursionError):
            raise Closed("a message is no JSON") from None
        if not isinstance(message, list) or not message or not isinstance(message[0], str):
            raise Closed("a message has another form")
        return message

    def _read(self, size: int) -> bytes:
        found = bytearray()
        while len(found) < size:
            piece = os.read(self.source, size - len(found))
            if not piece:
                raise Closed("the other process has ended")
            found += piece
        return bytes(found)


def pack(value: Any, refer: Refer, depth: int = DEPTH) -> Any:
    """Pack a value into JSON data: scalars as they are, all else as a list of a word and what belongs to it. What is not plain
    is what `refer` makes of it."""
    kind = type(value)
    if value is None or kind is bool or kind is str or (kind is int and value.bit_length() <= BITS):
        return value
    if depth == 0:
        raise Stays("nested too deeply")
    if kind in ITEMS:
        return [ITEMS[kind], *(pack(item, refer, depth - 1) for item in value)]
    if kind is dict:
        return ["dict", *(pack(pair, refer, depth - 1) for pair in value.items())]
    if kind is datetime and value.tzinfo is None and not value.fold:
        parts = (value.year, value.month, value.day, value.hour, value.minute, value.second, value.microsecond)
        return ["datetime", *parts]
    if kind in PARTS:
        return [kind.__name__, *PARTS[kind](value)]
    return refer(value)


def unpack(data: Any, resolve: Resolve) -> Any:
    """Unpack a value; `resolve` finds what a reference means. `Closed` if the data are malformed."""
    if data is None or isinstance(data, str | bool | int):
        return data
    if not isinstance(data, list) or not data or not isinstance(data[0], str):
        raise Closed("a value has another form")
    word, *parts = data
    if word not in MAKERS:
        return resolve(word, parts)
    try:
        return MAKERS[word](*(unpack(part, resolve) for part in parts))
    except (ValueError, TypeError, ArithmeticError, RecursionError):
        raise Closed("a value has another form") from None
