"""Families of corruptions: ways to make one right step of chain arithmetic, or of any text, wrong, each a mistake of its kind.

Every family looks like a step of the task. What it gives may be right by chance (modulo a small number, or an operand copied
rightly): who asks for a corruption grades it and asks again.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class ChainStep:
    """A step `left operation operand = result` that is still to be written, and the values that were there before it."""

    left: int
    operation: str
    operand: int
    mod: int
    earlier: Sequence[int] = ()
    """Values before `left`: the start and the results of earlier steps."""

    @property
    def result(self) -> int:
        a, b = self.left, self.operand
        return (a + b if self.operation == "+" else a - b if self.operation == "-" else a * b) % self.mod

    def text(self, result: int | None = None) -> str:
        return f"{self.left}{self.operation}{self.operand}={(self.result if result is None else result) % self.mod}"


def digit_slip(step: ChainStep, rng: random.Random) -> str:
    """Write another last digit in the result."""
    last = step.result % 10
    return step.text(step.result - last + rng.choice([d for d in range(10) if d != last]))


def carry_drop(step: ChainStep, rng: random.Random) -> str:
    """The tens are off by one: a carry that was not carried, or a borrow that was not taken."""
    return step.text(step.result + (10 if step.operation == "-" else -10))


def operand_copy(step: ChainStep, rng: random.Random) -> str:
    """Another operand is written down and used."""
    return replace(step, operand=rng.choice([d for d in range(2, 10) if d != step.operand])).text()


def sign_flip(step: ChainStep, rng: random.Random) -> str:
    """The result has the operand's sign turned round; what is written before it has not."""
    flipped = {"+": "-", "-": "+"}.get(step.operation)
    return step.text(replace(step, operation=flipped).result if flipped else -step.result)


def operator_swap(step: ChainStep, rng: random.Random) -> str:
    """Another operation is written down and used."""
    return replace(step, operation=rng.choice([o for o in "+-*" if o != step.operation])).text()


def stale_operand(step: ChainStep, rng: random.Random) -> str | None:
    """A value from further back is gone on from; None in a first step."""
    return replace(step, left=rng.choice(list(step.earlier))).text() if step.earlier else None


CHAIN_FAMILIES: Mapping[str, Callable[[ChainStep, random.Random], str | None]] = {
    "digit_slip": digit_slip,
    "carry_drop": carry_drop,
    "operand_copy": operand_copy,
    "sign_flip": sign_flip,
    "operator_swap": operator_swap,
    "stale_operand": stale_operand,
}


NUMBERING = re.compile(r"[\s*_#>\-]*(?:step\s*)?\d{1,3}[.):]", re.IGNORECASE)
"""The number of a line, which counts steps and is no part of the work."""


def change_digit(text: str, rng: random.Random) -> str | None:
    """Change one digit of a text into another; the numbers that lines begin with are left alone. None where there is none."""
    places: list[int] = []
    start = 0
    for line in text.splitlines(keepends=True):
        counted = NUMBERING.match(line)
        begin = counted.end() if counted else 0
        places += [start + at for at in range(begin, len(line)) if line[at] in "0123456789"]
        start += len(line)
    if not places:
        return None
    at = rng.choice(places)
    return text[:at] + rng.choice([digit for digit in "0123456789" if digit != text[at]]) + text[at + 1 :]


def garble_text(text: str, rng: random.Random) -> str:
    """Replace one digit or letter by another of its kind."""
    places = [at for at, sign in enumerate(text) if sign.isascii() and sign.isalnum()]
    if not places:
        return text
    at = rng.choice(places)
    kind = "0123456789" if text[at].isdigit() else "abcdefghijklmnopqrstuvwxyz"
    return text[:at] + rng.choice([sign for sign in kind if sign != text[at].lower()]) + text[at + 1 :]
