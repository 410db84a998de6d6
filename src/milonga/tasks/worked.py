"""Worked solutions of a data set: a step is a line or, where there are blank lines, a paragraph; sums may be marked
`<<48/2=24>>` in the way of GSM8K, which has a step a line.

The marks never reach a model. They tell what each step computes, so that one step can be made wrong and the steps after it
go on consistently from the wrong value: the label of such a solution is known by construction. A solution without marks gets
them where it writes out a sum (`48 / 2 = 24`); where that leads nowhere, the place that first states the answer is made wrong.

Invariant: a flawed demonstration has exactly one wrong step and a wrong answer, or there is none at all. Where a number could
mean two things (it stands in the question too, or is computed twice) it is left alone.
"""

from __future__ import annotations

import ast
import operator
import random
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction

from milonga.reading import NOT_PYTHON, parse_python
from milonga.tasks.base import Demonstration

MARK = re.compile(r"<<([^<>=]*)=([^<>=]*)>>")
NUMBER = re.compile(r"\d+(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d+)?|\.\d+")
UNMARKED = re.compile(r"=\s*(?:\$\s*)?[\d.]")
"""The result of a sum that no mark precedes: behind a mark the result stands alone."""
AMOUNT = rf"(?:\\?\$)?(?:{NUMBER.pattern})"
OPERATOR = r"\s?(?:[-+*/×·÷−]|\\times|\\cdot|\\div|x(?=\s))\s?"
RESULT = rf"(?:\\?\$)?({NUMBER.pattern})(?![\d/^])"
SUM = re.compile(rf"(?<![\w.^)}}])(?<![-+*/×·÷=] )({AMOUNT}(?:{OPERATOR}{AMOUNT}){{1,20}})\s?=\s?{RESULT}")
"""A sum that is written out in plain text: an expression and its result. Of a longer chain each place would be a beginning."""
SIGNS = {"×": "*", "·": "*", "x": "*", "\\times": "*", "\\cdot": "*", "÷": "/", "\\div": "/", "−": "-", "\\$": "", "$": ""}
STATED = re.compile(rf"(?:=\s?|\\boxed\{{\s?){RESULT}")
"""A number that is stated as a result."""
MOST_TRIES = 32
"""Sums that are tried, each of which is a solution written anew; few solutions have so many."""
OPERATIONS: Mapping[type[ast.operator], Callable[[Fraction, Fraction], Fraction]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


def split_steps(worked: str) -> list[str]:
    """Split a worked solution into its steps, marks included: lines or, where it has blank lines and no marks, paragraphs."""
    paragraphs = [] if MARK.search(worked) else re.split(r"\n\s*\n", worked.strip())
    parts = paragraphs if len(paragraphs) > 1 else worked.splitlines()
    return [part.strip() for part in parts if part.strip()]


def mark_sums(steps: list[str]) -> list[str]:
    """Mark the sums of a solution that has no marks of its own, where they are written out and right."""
    return steps if any(map(MARK.search, steps)) else [SUM.sub(_mark_sum, step) for step in steps]


def _mark_sum(found: re.Match[str]) -> str:
    expression, result = re.sub("|".join(map(re.escape, SIGNS)), lambda sign: SIGNS[sign[0]], found[1]), found[2]
    try:
        is_right = compute_sum(expression) == _parse_value(result)
    except _Ambiguous:
        is_right = False
    start = found.start(2) - found.start()
    return f"{found[0][:start]}<<{expression}={result}>>{found[0][start:]}" if is_right else found[0]


def make_right_demonstration(worked: str, answer: str) -> Demonstration:
    """Make a demonstration of the solution as it is."""
    steps = mark_sums(split_steps(worked))
    checks = tuple("; ".join(f"{m[1]}={m[2]}" for m in MARK.finditer(step)) for step in steps)
    return Demonstration(tuple(MARK.sub("", s) for s in steps), (True,) * len(steps), checks, answer, correct=True)


def make_flawed_demonstration(worked: str, answer: str, question: str, rng: random.Random) -> Demonstration | None:
    """Make a demonstration with one random sum done wrong or, in a solution without marks, with another answer from the place
    that states it on; None if neither can be done without ambiguity."""
    plain = split_steps(worked)
    steps = mark_sums(plain)
    sums = [(at, number) for at, step in enumerate(steps) for number in range(len(MARK.findall(step)))]
    for at, number in rng.sample(sums, len(sums))[:MOST_TRIES]:
        found = _Rewriting(question, steps, at, number, rng).make_demonstration(answer)
        if found is not None:
            return found
    return None if any(map(MARK.search, plain)) else _change_answer(plain, answer, question, rng)


def _change_answer(steps: list[str], answer: str, question: str, rng: random.Random) -> Demonstration | None:
    """Make a demonstration that states another answer, a number, from where the answer is first stated: behind an equals sign
    or in a box. None where the number stood somewhere before, or where a later sum would have to be done again."""
    try:
        old = _parse_value(answer)
        new = _draw_wrong_result(old, rng)
        rewriting = _Rewriting(question, steps, -1, 0, rng, seen=_parse_values(question))
        at = next(at for at, step in enumerate(steps) if old in _parse_values(step))
        if old in rewriting.seen or old not in {_parse_value(found) for found in STATED.findall(steps[at])}:
            return None
        changed = [NUMBER.sub(lambda m: format_number(new) if _parse_value(m[0]) == old else m[0], steps[at])]
        rewriting.changed[old] = new
        texts = (*steps[:at], *changed, *(rewriting.replace_values(step) for step in steps[at + 1 :]))
        truth = tuple(number != at for number in range(len(steps)))
        checks = make_right_demonstration("\n\n".join(steps), answer).checks  # sums that use the answer are not among them
        return Demonstration(texts, truth, checks, format_number(new), correct=False)
    except (_Ambiguous, StopIteration):
        return None


class _Ambiguous(Exception):
    """This sum cannot be made wrong without doubt about what follows from it."""


@dataclass
class _Rewriting:
    """A solution written anew from left to right, in which one sum is done wrong."""

    question: str
    steps: list[str]
    at: int
    number: int
    """The wrong sum: its step, and its number within the step."""
    rng: random.Random
    changed: dict[Fraction, Fraction] = field(default_factory=dict)
    """Values of the right solution that are others in this one."""
    seen: set[Fraction] = field(default_factory=set)
    """Values that stood somewhere before: to change one of them would change its other meaning too."""

    def make_demonstration(self, answer: str) -> Demonstration | None:
        self.seen |= _parse_values(self.question)
        try:
            written = [self.rewrite_step(at, step) for at, step in enumerate(self.steps)]
            final = self.changed[_parse_value(answer)]  # a wrong step that does not reach the answer is of no use
            ending = format_number(final)
        except (_Ambiguous, KeyError):
            return None
        truth = tuple(at != self.at for at in range(len(self.steps)))
        texts, checks = zip(*written, strict=True)
        return Demonstration(texts, truth, checks, ending, correct=False)

    def rewrite_step(self, at: int, step: str) -> tuple[str, str]:
        """Rewrite a step; return it with the check that redoes its sums."""
        text, checks, end = "", [], 0
        for number, mark in enumerate(MARK.finditer(step)):
            text += self.replace_values(step[end : mark.start()])
            end = mark.end()
            expression, old = self.replace_values(mark[1]), _parse_value(mark[2])
            if compute_sum(mark[1]) != old:
                raise _Ambiguous  # rounded, or not a sum
            result = compute_sum(expression)
            checks.append(f"{expression}={format_number(result)}")
            self.record_change(old, _draw_wrong_result(result, self.rng) if (at, number) == (self.at, self.number) else result)
        return text + self.replace_values(step[end:]), "; ".join(checks)

    def record_change(self, old: Fraction, new: Fraction) -> None:
        if old in self.seen and self.changed.get(old, old) != new:
            raise _Ambiguous
        if new != old:
            self.changed[old] = new
        self.seen.add(old)

    def replace_values(self, text: str) -> str:
        """Replace old values in the text by the changed ones. A sum without a mark cannot be recomputed, so it must not be
        changed: it would be wrong, and labelled right."""
        found = _parse_values(text)
        self.seen |= found
        if UNMARKED.search(text) and not found.isdisjoint(self.changed):
            raise _Ambiguous
        return NUMBER.sub(lambda m: format_number(self.changed[v]) if (v := _parse_value(m[0])) in self.changed else m[0], text)


def _parse_values(text: str) -> set[Fraction]:
    return {_parse_value(number) for number in NUMBER.findall(text)}


def _parse_value(text: str) -> Fraction:
    """Parse a number."""
    try:
        return Fraction(text.replace(",", "").replace("$", "").strip())
    except (ValueError, ZeroDivisionError):
        raise _Ambiguous from None


def format_number(number: Fraction) -> str:
    """Format a number of at most two decimals, as people write it."""
    if number < 0 or (number * 100).denominator != 1:
        raise _Ambiguous
    if number.denominator == 1:
        return str(number.numerator)
    return f"{float(number):.2f}".rstrip("0")


def _draw_wrong_result(result: Fraction, rng: random.Random) -> Fraction:
    """Draw a plausible wrong result: off by one, ten or a hundred, or by a factor of two or ten. Positive, and whole where the
    right one is."""
    if result <= 0:
        raise _Ambiguous
    steps = [step for step in (1, 10, 100) if step <= result]
    offers = [result + sign * step for step in steps for sign in (1, -1)] + [result * 2, result / 2, result * 10]
    return rng.choice([offer for offer in offers if offer > 0 and offer.denominator <= result.denominator])


def compute_sum(expression: str) -> Fraction:
    """Compute an arithmetic expression, without ever running a text as a program."""
    try:
        return _evaluate_node(parse_python(expression.replace(",", "").strip(), "eval").body)
    except (ZeroDivisionError, *NOT_PYTHON):
        raise _Ambiguous from None


def _evaluate_node(node: ast.expr) -> Fraction:
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return Fraction(str(node.value))
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATIONS:
        return OPERATIONS[type(node.op)](_evaluate_node(node.left), _evaluate_node(node.right))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_evaluate_node(node.operand)
    raise _Ambiguous
