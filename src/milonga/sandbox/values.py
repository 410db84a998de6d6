"""Values of programs as data: one text for each value, a reader of literals that runs nothing, and equality of texts.

Invariants:
- A value is of exactly these types, at every depth: None, bool, int, float, str, bytes, list, tuple, set, dict. A subclass is
  none of them, so that nothing with an equality, a hash or a repr of its own is ever compared.
- Two values have the same canonical text exactly if they have the same types and contents: True, 1 and 1.0 differ. The text is
  JSON in ASCII, with the order of sets and dicts taken out of it.
- Every function here is bounded: in depth, nodes, bits of an integer, and characters. What exceeds a bound is `InvalidValue`,
  never cut short.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any, NewType

from milonga.sandbox.codec import DEPTH, InvalidValue, decode, encode, tag_value

Value = None | bool | int | float | str | bytes | list[Any] | tuple[Any, ...] | set[Any] | dict[Any, Any]
Canonical = NewType("Canonical", str)
"""The text of a value; made by `canonical` only."""

__all__ = [
    "ANSWER",
    "Canonical",
    "InvalidValue",
    "Value",
    "decode",
    "is_same_value",
    "parse_arguments",
    "parse_literal",
    "to_canonical",
]
ANSWER = 4_000
"""Characters of a literal that a model wrote."""


def to_canonical(value: object) -> Canonical:
    """Return the canonical text of a value; `InvalidValue` if it is not plain or exceeds a bound."""
    return Canonical(encode(value))


def is_same_value(left: str, right: str, *, numeric: bool = False, tolerance: float | None = None) -> bool:
    """Whether two canonical texts stand for the same value.

    `numeric` makes True, 1 and 1.0 equal, at every depth. `tolerance` is relative and holds for floats (with `numeric` for all
    numbers) that stand in lists, tuples, values of dicts, or alone; members of sets and keys of dicts are compared exactly.
    """
    if left == right:
        return True
    if not numeric and tolerance is None:
        return False
    one, other = decode(left), decode(right)
    if numeric:
        one, other = _unify_numbers(one), _unify_numbers(other)
    return _is_close(one, other, tolerance or 0.0, {int, float} if numeric else {float})


# -------------------------------------------------------------------------------------------------------------- equality


def _unify_numbers(value: Any) -> Any:
    """Convert every bool, and every float that is whole, to an int."""
    if isinstance(value, bool | int) or (isinstance(value, float) and value.is_integer()):
        return int(value)
    if isinstance(value, dict):
        return {_unify_numbers(k): _unify_numbers(v) for k, v in value.items()}
    if isinstance(value, list | tuple | set):
        return type(value)(_unify_numbers(item) for item in value)
    return value


def _is_close(left: Any, right: Any, tolerance: float, loose: set[type]) -> bool:
    """Structural equality; numbers whose types are both in `loose` may differ by the tolerance."""
    kinds = {type(left), type(right)}
    if kinds <= loose:
        return _are_numbers_close(left, right, tolerance)
    if len(kinds) > 1:
        return False
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(_is_close(a, b, tolerance, loose) for a, b in zip(left, right, strict=True))
    if isinstance(left, dict):
        ours, others = ({_make_key(k): v for k, v in side.items()} for side in (left, right))
        return ours.keys() == others.keys() and all(_is_close(v, others[k], tolerance, loose) for k, v in ours.items())
    return _make_key(left) == _make_key(right)


def _make_key(value: Any) -> str:
    return json.dumps(tag_value(value))


def _are_numbers_close(left: int | float, right: int | float, tolerance: float) -> bool:
    if left == right or (left != left and right != right):  # the latter: both are nan
        return True
    try:
        return tolerance > 0 and math.isclose(left, right, rel_tol=tolerance)
    except OverflowError:  # an integer beyond the floats
        return False


# -------------------------------------------------------------------------------------------------------------- literals

TOKEN = re.compile(
    r"""\s*(?:
        (?P<float>\d+\.\d*(?:[eE][+-]?\d+)?|\.\d+(?:[eE][+-]?\d+)?|\d+[eE][+-]?\d+)
      | (?P<int>\d+)
      | (?P<string>b?(?:'(?:[^'\\\n]|\\.)*'|"(?:[^"\\\n]|\\.)*"))
      | (?P<word>[A-Za-z_]+)
      | (?P<mark>[][(){},:+-])
    )""",
    re.VERBOSE | re.ASCII,
)
ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|([0-7]{1,3})|(.))")
LETTERS = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "f": "\f", "v": "\v", "\\": "\\", "'": "'", '"': '"'}
WORDS = {"True": True, "False": False, "None": None}


def parse_literal(text: str) -> Value:
    """Parse a Python literal, as a model may write it; `InvalidValue` for anything else. Nothing is evaluated.

    Numbers in decimals with a sign, strings and bytes without other prefixes, True, False, None, lists, tuples (also without
    brackets, as `1, 2`), sets, `set()` and dicts.
    """
    if len(text) > ANSWER:
        raise InvalidValue(f"longer than {ANSWER} characters")
    reader = _Reader(text.strip())
    items, commas = reader.read_items("", DEPTH)
    if not items:
        raise InvalidValue("nothing to read")
    value = tuple(items) if commas else items[0]
    to_canonical(value)  # within the bounds
    return value


def parse_arguments(text: str) -> tuple[Any, ...]:
    """Parse the arguments of a call: `[1,2],3` are two. They are data: `1) or (1` is `InvalidValue`."""
    value = parse_literal(f"{text}," if text.strip() else "()")
    assert isinstance(value, tuple)
    return value


class _Reader:
    """A recursive-descent parser of literals; depth is bounded, so that no text can exhaust the stack."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.kind, self.token = "", ""
        self.advance()

    def advance(self) -> None:
        """Go to the next token; behind the last one its text is empty."""
        match = TOKEN.match(self.text, self.at)
        if match is None:
            if self.text[self.at :].strip():
                self.fail(self.text[self.at :])
            self.kind, self.token = "", ""
            return
        self.kind, self.token, self.at = str(match.lastgroup), match[match.lastgroup or 0], match.end()

    def fail(self, where: str) -> Any:
        raise InvalidValue(f"not a literal: cannot read {where[:40]!r}" if where else "not a literal: it ends too early")

    def take_mark(self, mark: str) -> bool:
        if self.kind == "mark" and self.token == mark:
            self.advance()
            return True
        return False

    def read_items(self, end: str, depth: int) -> tuple[list[Any], int]:
        """Read comma-separated values up to the mark `end` (or the end of the text); return them and the number of commas."""
        items: list[Any] = []
        commas = 0
        while self.token != end or (end and self.kind != "mark"):
            items.append(self.read_value(depth))
            if not self.take_mark(","):
                break
            commas += 1
        if self.token != end or self.kind == "string":
            self.fail(self.token)
        if end:
            self.advance()
        return items, commas

    def read_value(self, depth: int) -> Any:
        if depth < 0:
            raise InvalidValue(f"nested deeper than {DEPTH}")
        if self.kind == "string":
            return _unescape_string(self.take_token())
        if self.kind == "word":
            return self.read_word()
        if self.take_mark("["):
            return self.read_items("]", depth - 1)[0]
        if self.take_mark("("):
            items, commas = self.read_items(")", depth - 1)
            return items[0] if len(items) == 1 and not commas else tuple(items)
        if self.take_mark("{"):
            return self.read_braces(depth - 1)
        return self.read_number()

    def take_token(self) -> str:
        token = self.token
        self.advance()
        return token

    def read_number(self) -> int | float:
        sign = -1 if self.take_mark("-") else 1
        if sign == 1:
            self.take_mark("+")
        if self.kind == "float":
            return sign * float(self.take_token())
        if self.kind != "int" or (self.token[0] == "0" and self.token.strip("0")):
            self.fail(self.token)
        return sign * int(self.take_token())

    def read_word(self) -> Any:
        word = self.take_token()
        if word == "set" and self.take_mark("(") and self.take_mark(")"):
            return set()
        return WORDS[word] if word in WORDS else self.fail(word)

    def read_braces(self, depth: int) -> Any:
        """Read what follows an opening brace: a dict, or a set."""
        if self.take_mark("}"):
            return {}
        first = self.read_value(depth)
        try:
            if not self.take_mark(":"):
                rest = self.read_items("}", depth)[0] if self.take_mark(",") else self.expect_end()
                return {first, *rest}
            made = {first: self.read_value(depth)}
            while self.take_mark(",") and self.token != "}":
                key = self.read_value(depth)
                if not self.take_mark(":"):
                    self.fail(self.token)
                made[key] = self.read_value(depth)
        except TypeError:
            raise InvalidValue("not a literal: a list, set or dict as a member of a set or a key") from None
        self.expect_end()
        return made

    def expect_end(self) -> list[Any]:
        """Expect the closing brace; return no items."""
        return [] if self.take_mark("}") else self.fail(self.token)


def _unescape_string(token: str) -> str | bytes:
    """Unescape a string token. As in Python an unknown escape stays as it is; character names (`\\N`) are not supported."""
    is_bytes = token[0] == "b"
    body = token[2:-1] if is_bytes else token[1:-1]

    def character(match: re.Match[str]) -> str:
        two, four, eight, octal, letter = match.groups()
        if letter is not None:
            if letter == "N" or (is_bytes and letter in "uU"):
                raise InvalidValue("not a literal: a character by its name")
            return LETTERS.get(letter, match[0])
        if is_bytes and (four or eight):
            return match[0]
        code = int(octal, 8) if octal else int(two or four or eight, 16)
        if code > 0x10FFFF or (is_bytes and code > 255):
            raise InvalidValue("not a literal: no such character")
        return chr(code)

    made = ESCAPE.sub(character, body)
    if not is_bytes:
        return made
    if not body.isascii():
        raise InvalidValue("not a literal: bytes with a character that is not ASCII")
    return made.encode("latin-1")
