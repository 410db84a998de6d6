"""What the functions of the procedural `code` task do: words in a row, each with its English and its piece of Python.

A function is a row of words such as `even *2 sum`. Each word adds to the piece of code on its track (what is kept, what becomes
of an item, what comes out), and the pieces make one expression of the tiny dialect, which is a Python expression too. So a
solution has a step for each word, its piece, and every step has an exact truth given the steps before it.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

from milonga.sandbox.values import Canonical, decode
from milonga.tasks.expressions import evaluate

Track = Literal["source", "keep", "each", "end", "test", "then", "else"]
Arguments = Mapping[str, Any]
STARTS: dict[Track, str] = {"keep": "x", "each": "x", "test": "n", "then": "n", "else": "n", "end": ""}
"""What the first word of a track begins with; the source begins with an argument."""


@dataclass(frozen=True)
class Word:
    """One thing to do. `code` makes its piece out of the piece before it on the same track."""

    text: str
    english: str
    code: Callable[[str], str]


def _find_operators(piece: str) -> set[str]:
    """Find the operators of a piece outside its brackets and strings; works on any text."""
    found, depth, quoted = set(), 0, False
    for character in piece:
        quoted ^= character == "'"
        depth += 0 if quoted else (character in "([") - (character in ")]")
        if depth == 0 and not quoted and character in "+-*%/<>= ":
            found.add(character)
    return found


def add_brackets(piece: str, loose: str) -> str:
    """Add brackets if the piece contains one of these operators, which would bind too loosely."""
    return f"({piece})" if _find_operators(piece) & set(loose) else piece


TIGHT = "+-*%/<>= "
"""Operators that an index, a call or a power binds more tightly than."""
DIGITS, FACTORS = range(1, 10), range(2, 6)
LETTERS = "abcde"


def _make_additions(k: object) -> list[Word]:
    """Make the words that add or subtract `k`: a digit or the argument n."""
    return [
        Word(f"+{k}", f"add {k}", lambda p: f"{p}+{k}"),
        Word(f"-{k}", f"subtract {k}", lambda p: f"{p}-{k}"),
    ]


def _make_product(k: object) -> Word:
    return Word(f"*{k}", f"multiply by {k}", lambda p: f"{add_brackets(p, '+- ')}*{k}")


def _make_divisions(k: int) -> list[Word]:
    return [
        Word(f"/{k}", f"divide by {k}, rounding down", lambda p: f"{add_brackets(p, '+- ')}//{k}"),
        Word(f"%{k}", f"take the remainder of dividing by {k}", lambda p: f"{add_brackets(p, '+- ')}%{k}"),
    ]


SQUARE = Word("sq", "square", lambda p: f"{add_brackets(p, TIGHT)}**2")


def _make_conditions(k: object) -> list[Word]:
    return [
        Word(f">{k}", f"greater than {k}", lambda p: f"{p}>{k}"),
        Word(f"<{k}", f"less than {k}", lambda p: f"{p}<{k}"),
    ]


PARITY = [
    Word("even", "even", lambda p: f"{add_brackets(p, '+-')}%2==0"),
    Word("odd", "odd", lambda p: f"{add_brackets(p, '+-')}%2==1"),
]


def _make_cuts(most: int) -> list[Word]:
    """Make the words that take, drop or reverse items of a list or string."""
    take = [Word(f"take{k}", f"take the first {k}", lambda p, k=k: f"{add_brackets(p, TIGHT)}[:{k}]") for k in range(1, most)]  # type: ignore[misc]
    drop = [Word(f"drop{k}", f"drop the first {k}", lambda p, k=k: f"{add_brackets(p, TIGHT)}[{k}:]") for k in range(1, most)]  # type: ignore[misc]
    return [*take, *drop, Word("rev", "reverse", lambda p: f"{add_brackets(p, TIGHT)}[::-1]")]


SUMS = [*(word for k in DIGITS for word in _make_additions(k)), *(_make_product(k) for k in FACTORS)]
KEEP = [*PARITY, *(word for k in DIGITS for word in _make_conditions(k))]
EACH = [*SUMS, SQUARE]
ENDS = [
    Word("sum", "return their sum", lambda p: "sum"),
    Word("len", "return how many there are", lambda p: "len"),
    Word("max", "return the largest, or 0 if there are none", lambda p: "max"),
]
ORDER = [Word("sort", "sort", lambda p: f"sorted({p})"), *_make_cuts(4)]
PICKS = [
    Word("first", "return the first", lambda p: f"{add_brackets(p, TIGHT)}[0]"),
    Word("last", "return the last", lambda p: f"{add_brackets(p, TIGHT)}[-1]"),
]
TEXT = [
    *_make_cuts(4),
    Word("up", "turn into capitals", lambda p: f"{add_brackets(p, TIGHT)}.upper()"),
    Word("twice", "write twice", lambda p: f"{add_brackets(p, '+ ')}*2"),
    *(Word(f"+{c}", f"append '{c}'", lambda p, c=c: f"{p}+'{c}'") for c in LETTERS),  # type: ignore[misc]
]
COUNTS = [
    Word(f"count{c}", f"return how often '{c}' occurs", lambda p, c=c: f"{add_brackets(p, TIGHT)}.count('{c}')")  # type: ignore[misc]
    for c in LETTERS
]
NUMBER = [*SUMS, *(word for k in FACTORS for word in _make_divisions(k)), SQUARE]
BY_N = [*_make_additions("n"), _make_product("n")]
KEEP_BY_N = _make_conditions("n")

Slot = tuple[Track, Sequence[Word]]


@dataclass(frozen=True)
class Family:
    """A shape of functions. `shape` draws the slots of a row of so many words."""

    name: str
    signature: str
    """The names of the arguments: a list `a`, a number `n`, a string `s`."""
    least: int
    """Words that a row has at least: shorter ones would be too few for three disjoint splits."""
    shape: Callable[[int, random.Random], list[Slot]]
    words: Mapping[Track, Sequence[Word]]
    """All words of each track."""

    def find_word(self, track: Track, text: str) -> Word:
        return next(word for word in self.words[track] if word.text == text)


def _repeat_slot(track: Track, words: Sequence[Word], count: int) -> list[Slot]:
    return [(track, words)] * count


def _make_fold_slots(count: int, rng: random.Random) -> list[Slot]:
    keep: list[Slot] = [("keep", KEEP)] if count > 2 or rng.random() < 0.5 else []
    return [*keep, *_repeat_slot("each", EACH, count - 1 - len(keep)), ("end", ENDS)]


def _make_each_slots(count: int, rng: random.Random) -> list[Slot]:
    keep: list[Slot] = [("keep", KEEP)] if rng.random() < 0.5 else []
    return [*keep, *_repeat_slot("each", EACH, count - len(keep))]


def _make_order_slots(count: int, rng: random.Random) -> list[Slot]:
    last = PICKS if rng.random() < 0.5 else ORDER
    return [*_repeat_slot("source", ORDER, count - 1), ("source", last)]


def _make_case_slots(count: int, rng: random.Random) -> list[Slot]:
    first = (count - 1 + rng.randint(0, 1)) // 2
    return [("test", KEEP), *_repeat_slot("then", SUMS, first), *_repeat_slot("else", SUMS, count - 1 - first)]


def _make_text_slots(count: int, rng: random.Random) -> list[Slot]:
    last = COUNTS if rng.random() < 0.3 else TEXT
    return [*_repeat_slot("source", TEXT, count - 1), ("source", last)]


def _make_pair_slots(count: int, rng: random.Random) -> list[Slot]:
    kept = rng.random() < 0.5
    keep: list[Slot] = [("keep", KEEP_BY_N if kept else KEEP)] if kept or count > 2 else []
    by_n: list[Slot] = [] if kept else [("each", BY_N)]
    return [*keep, *by_n, *_repeat_slot("each", EACH, count - 1 - len(keep) - len(by_n)), ("end", ENDS)]


def _make_mixed_slots(count: int, rng: random.Random) -> list[Slot]:
    first = rng.randint(1, count - 2)
    return [*_repeat_slot("source", ORDER, first), *_repeat_slot("each", EACH, count - 1 - first), ("end", ENDS)]


BRANCHES: dict[Track, Sequence[Word]] = {"test": KEEP, "then": SUMS, "else": SUMS}
FAMILIES = {
    family.name: family
    for family in (
        Family("number", "n", 2, lambda count, rng: _repeat_slot("source", NUMBER, count), {"source": NUMBER}),
        Family("case", "n", 3, _make_case_slots, BRANCHES),
        Family("fold", "a", 2, _make_fold_slots, {"keep": KEEP, "each": EACH, "end": ENDS}),
        Family("each", "a", 1, _make_each_slots, {"keep": KEEP, "each": EACH}),
        Family("order", "a", 2, _make_order_slots, {"source": [*ORDER, *PICKS]}),
        Family("mixed", "a", 3, _make_mixed_slots, {"source": ORDER, "each": EACH, "end": ENDS}),
        Family("pair", "an", 3, _make_pair_slots, {"keep": [*KEEP, *KEEP_BY_N], "each": [*EACH, *BY_N], "end": ENDS}),
        Family("text", "s", 1, _make_text_slots, {"source": [*TEXT, *COUNTS]}),
    )
}


@dataclass(frozen=True)
class Row:
    """A function: its family and its words, each with its track."""

    family: str
    slots: tuple[tuple[Track, str], ...]

    @property
    def signature(self) -> str:
        return FAMILIES[self.family].signature

    @property
    def words(self) -> list[Word]:
        return [FAMILIES[self.family].find_word(track, text) for track, text in self.slots]

    @property
    def text(self) -> str:
        """The row as a prompt for a small model. Only a case marks where its other branch begins."""
        out, before = [], ""
        for track, word in self.slots:
            out += ["else"] if track == "else" and before != "else" else []
            out.append(word)
            before = track
        return f"{','.join(self.signature)}:{' '.join(out)}"

    def derive_pieces(self, steps: Sequence[str]) -> list[str]:
        """Derive the right piece for each word, given the pieces written before it, right or wrong."""
        pieces: dict[Track, str] = STARTS | {"source": self.signature[0]}
        out = []
        for number, ((track, _), word) in enumerate(zip(self.slots, self.words, strict=True)):
            out.append(word.code(pieces[track]))
            pieces[track] = steps[number] if number < len(steps) else out[-1]
        return out

    def right_pieces(self) -> list[str]:
        """All right pieces."""
        return self.derive_pieces([])

    def build_program(self, steps: Sequence[str]) -> str:
        """Build the expression of these pieces, one for each of the first words."""
        last: dict[Track, str] = {}
        for (track, _), piece in zip(self.slots, steps, strict=False):
            last[track] = piece
        source = last.get("source", self.signature[0])
        if "test" in last:
            return f"{last['then']} if {last['test']} else {last['else']}" if "else" in last else last["test"]
        kept = f" if {last['keep']}" if "keep" in last else ""
        items = f"[{last.get('each', 'x')} for x in {source}{kept}]" if kept or "each" in last else source
        end = last.get("end")
        return items if end is None else f"max({items},default=0)" if end == "max" else f"{end}({items})"

    def draw_wrong_piece(self, at: int, steps: Sequence[str], rng: random.Random) -> str:
        """Draw a wrong piece for the word `at`: what another word of its track would make there."""
        right = self.derive_pieces(steps)[at]
        track = self.slots[at][0]
        before = [piece for (other, _), piece in zip(self.slots[:at], steps, strict=False) if other == track]
        piece = before[-1] if before else (STARTS | {"source": self.signature[0]})[track]
        others = [word.code(piece) for word in FAMILIES[self.family].words[track]]
        return rng.choice([other for other in others if not has_same_meaning(other, right)])

    def evaluate_prefixes(self, arguments: Sequence[Any]) -> list[Canonical] | None:
        """Evaluate the program after each word for these arguments, the result last; None if one fails.

        For a case: whether the test holds, and the result.
        """
        pieces = self.right_pieces()
        parts = [1, len(pieces)] if self.family == "case" else range(1, len(pieces) + 1)
        found = [call_program(self.build_program(pieces[:count]), self.signature, arguments) for count in parts]
        return [value for value in found if value is not None] if None not in found else None

    def render_english(self) -> str:
        """Render what the function does in English, for large models."""
        names = {"a": "a list of integers `a`", "n": "an integer `n`", "s": "a string `s`"}
        given = " and ".join(names[letter] for letter in self.signature)
        return f"Given {given}: {'; '.join(self._render_phrases())}."

    def _render_phrases(self) -> list[str]:
        """Render each word in English, with its object."""
        done: dict[Track, str] = {"keep": "keep the numbers that are {}", "each": "{} (each number)", "test": "if it is {}"}
        tracks = [track for track, _ in self.slots]
        out = []
        for number, (track, word) in enumerate(zip(tracks, self.words, strict=True)):
            phrase = done.get(track, "{}").format(word.english)
            out.append(f"otherwise {phrase}" if track == "else" and tracks[number - 1] != "else" else phrase)
        if self.family in ("number", "case", "each") or out[-1].split()[0] != "return":
            out.append("return the result")
        return out


def draw_row(family: str, count: int, rng: random.Random) -> Row:
    slots = FAMILIES[family].shape(count, rng)
    return Row(family, tuple((track, rng.choice(words).text) for track, words in slots))


def draw_arguments(signature: str, rng: random.Random) -> tuple[Any, ...]:
    """Arguments of a call: short lists of digits, small numbers, short words."""
    makers: dict[str, Callable[[], Any]] = {
        "a": lambda: [rng.randint(0, 9) for _ in range(rng.choice((0, 1, 2, 3, 3, 4, 4, 5)))],
        "n": lambda: rng.randint(0, 12),
        "s": lambda: "".join(rng.choice(LETTERS) for _ in range(rng.randint(1, 5))),
    }
    return tuple(makers[letter]() for letter in signature)


def infer_signature(arguments: Sequence[Any]) -> str:
    """Infer the signature from the types of the arguments: a list is `a`, a number `n`, a string `s`."""
    return "".join("a" if isinstance(value, list) else "s" if isinstance(value, str) else "n" for value in arguments)


def call_program(program: str, signature: str, arguments: Sequence[Any]) -> Canonical | None:
    """Call a program of the dialect; None if it fails, or has too many or too few arguments."""
    if len(arguments) != len(signature):
        return None
    return evaluate(program, dict(zip(signature, arguments, strict=True))).value


def _render_literal(value: Any) -> str:
    """Render a value of the dialect without spaces: bytes are expensive for a small model."""
    return f"[{','.join(_render_literal(item) for item in value)}]" if isinstance(value, list) else repr(value)


def render_arguments(arguments: Sequence[Any]) -> str:
    return ",".join(_render_literal(value) for value in arguments)


def render_value(value: Canonical) -> str:
    return _render_literal(decode(value))


def corrupt_result(text: str, rng: random.Random) -> str:
    """Return a result that is slightly wrong, from the text of a right one."""
    numbers = list(re.finditer(r"\d+", text))
    if numbers:
        one = rng.choice(numbers)
        return f"{text[: one.start()]}{abs(int(one[0]) + rng.choice((-2, -1, 1, 2)))}{text[one.end() :]}"
    return {"[]": "[0]", "''": "'a'", "True": "False", "False": "True"}.get(text) or f"'{text[1:-1][::-1]}a'"


PROBES: tuple[dict[str, Any], ...] = (
    {"x": 0, "n": 7, "a": [], "s": "a"},
    {"x": 1, "n": 0, "a": [3], "s": "ab"},
    {"x": 2, "n": 3, "a": [2, 1], "s": "bca"},
    {"x": 3, "n": 12, "a": [5, 0, 7], "s": "edcb"},
    {"x": 4, "n": 5, "a": [9, 4, 4, 1], "s": "aabbc"},
    {"x": 5, "n": 2, "a": [1, 2, 3, 4, 5], "s": "c"},
    {"x": 6, "n": 9, "a": [6, 6], "s": "dd"},
    {"x": 7, "n": 1, "a": [0, 8, 2, 7], "s": "abcde"},
    {"x": 8, "n": 8, "a": [3, 1, 2], "s": "bbbb"},
    {"x": 9, "n": 4, "a": [7, 9, 0], "s": "ce"},
    {"x": 12, "n": 6, "a": [4, 5, 6, 8], "s": "eda"},
    {"x": -3, "n": 10, "a": [2, 9, 1, 1, 3], "s": "cab"},
)
"""What pieces of code are compared on. They are not the hidden tests."""


@lru_cache(maxsize=1 << 16)
def _evaluate_on_probes(piece: str) -> tuple[Canonical | None, ...]:
    """Evaluate a piece on the probes. Two pieces mean the same if their values agree."""
    return tuple(evaluate(piece, probe).value for probe in PROBES)


def has_same_meaning(piece: str, right: str) -> bool:
    if piece.strip() == right:
        return True
    found = _evaluate_on_probes(piece)
    return any(value is not None for value in found) and found == _evaluate_on_probes(right)
