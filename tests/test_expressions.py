"""The interpreter of the tiny dialect: it agrees with Python, counts exactly, and no text whatever breaks it."""

from __future__ import annotations

import random
import re
import warnings
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers import PROPERTY
from milonga.randomness import keyed_rng
from milonga.sandbox.values import to_canonical
from milonga.tasks.expressions import FUNCTIONS, METHODS, Budget, evaluate

ROOMY = Budget(steps=200_000, bits=2048, length=2000, size=20_000, source=4000)
ARGUMENTS: dict[str, Any] = {"a": [3, -1, 4, 1, 5], "n": 7, "s": "abca", "b": [], "t": True, "w": ["x", "yy"]}


def strictly_sorted(values: Any, *, reverse: Any = False) -> list[Any]:
    """`sorted` as it was until Python 3.12: from 3.13 on anything stands for yes or no. The dialect is the same everywhere."""
    if not isinstance(reverse, int):
        raise TypeError("an integer is required")
    return sorted(values, reverse=bool(reverse))


BUILTINS = {name: getattr(__import__("builtins"), name) for name in FUNCTIONS} | {"sorted": strictly_sorted}


def reference(source: str, arguments: dict[str, Any]) -> str | None:
    """Python itself, on a text that this file wrote; None where it raises. Never done with a text of a model."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return to_canonical(eval(source, {"__builtins__": BUILTINS} | arguments))
    except Exception:
        return None


class Writer:
    """Writes programs of the dialect, mostly well typed, from all of its grammar."""

    def __init__(self, rng: random.Random) -> None:
        self.rng, self.names = rng, {"int": ["n"], "list": ["a", "b"], "str": ["s"], "bool": ["t"]}

    def any(self, depth: int) -> str:
        return self.expression(self.rng.choice(("int", "list", "str", "bool")), depth)

    def expression(self, kind: str, depth: int) -> str:
        if self.rng.random() < 0.03:  # a type that does not fit
            kind = self.rng.choice(("int", "list", "str", "bool"))
        if depth <= 0:
            return self.leaf(kind)
        form = self.rng.choice(getattr(self, kind)(depth - 1))
        return form() if callable(form) else form

    def leaf(self, kind: str) -> str:
        literal = {"int": str(self.rng.randint(0, 9)), "list": "[1,2]", "str": "'ab'", "bool": "True"}[kind]
        return self.rng.choice([*self.names[kind], literal])

    def chosen(self, kind: str, d: int) -> str:
        one, test, other = self.expression(kind, d), self.any(d), self.expression(kind, d)
        return self.rng.choice([f"({one} if {test} else {other})", f"({one} or {other})", f"({one} and {other})"])

    def loop(self, item: str, d: int) -> str:
        """The inside of a comprehension over a list or a string, with or without conditions and a second loop."""
        source = self.rng.choice([self.expression("list", d), f"range({self.expression('int', d)})", self.expression("str", d)])
        self.names["int"].append("x")
        body, test = self.expression(item, d), self.any(d)
        more = self.rng.choice(["", "", f" if {test}", f" if {test} for y in a if y>x", f" for x in {self.leaf('list')}"])
        self.names["int"].remove("x")
        return f"{body} for x in {source}{more}"

    def int(self, d: int) -> list[Any]:
        number, many, text = (lambda kind=kind: self.expression(kind, d) for kind in ("int", "list", "str"))
        op = self.rng.choice(["+", "-", "*", "//", "%", "**"])
        small = self.rng.randint(0, 3)
        return [
            lambda: f"({number()}{op}{small if op == '**' else number()})",
            lambda: f"-{number()}",
            lambda: f"{self.rng.choice(('sum', 'min', 'max', 'len', 'any', 'all'))}({many()})",
            lambda: f"{self.rng.choice(('sum', 'min', 'max', 'any', 'all'))}({self.loop('int', d)})",
            lambda: f"{self.rng.choice(('min', 'max'))}({many()},default={number()})",
            lambda: f"{self.rng.choice(('min', 'max'))}({number()},{number()})",
            lambda: f"abs({number()})",
            lambda: f"int({self.any(d)})",
            lambda: f"ord({text()}[{number()}])",
            lambda: f"{many()}[{number()}]",
            lambda: f"{many()}.{self.rng.choice(('count', 'index'))}({number()})",
            lambda: f"{text()}.{self.rng.choice(('count', 'index', 'find'))}({text()})",
            lambda: f"len(range({number()},{number()},{number()}))",
            lambda: self.chosen("int", d),
        ]

    def list(self, d: int) -> list[Any]:
        number, many, text = (lambda kind=kind: self.expression(kind, d) for kind in ("int", "list", "str"))
        return [
            lambda: f"[{self.loop('int', d)}]",
            lambda: f"[{self.loop('list', d)}]",
            lambda: f"[{number()},{number()}]",
            lambda: f"({many()}+{many()})",
            lambda: f"({many()}*{self.rng.randint(0, 3)})",
            lambda: f"sorted({many()})",
            lambda: f"sorted({many()},reverse={self.any(d)})",
            lambda: f"list({self.rng.choice([text(), many(), self.loop('int', d)])})",
            lambda: f"{many()}[{number()}:]",
            lambda: f"{many()}[:{number()}:{number()}]",
            lambda: f"{many()}[::-1]",
            lambda: f"{text()}.split({self.rng.choice(['', text()])})",
            lambda: self.chosen("list", d),
        ]

    def str(self, d: int) -> list[Any]:
        number, text = (lambda kind=kind: self.expression(kind, d) for kind in ("int", "str"))
        parts = self.rng.choice(["w", "s", f"[{self.loop('str', d)}]"])
        return [
            lambda: f"({text()}+{text()})",
            lambda: f"({text()}*{self.rng.randint(0, 3)})",
            lambda: f"{text()}[{number()}]",
            lambda: f"{text()}[{number()}:{number()}]",
            lambda: f"str({number()})",
            lambda: f"{text()}.{self.rng.choice(('upper', 'lower', 'strip'))}()",
            lambda: f"{text()}.replace({text()},{text()})",
            lambda: f"{text()}.join({parts})",
            lambda: f"{self.rng.choice(('min', 'max'))}({text()})",
            lambda: self.chosen("str", d),
        ]

    def bool(self, d: int) -> list[Any]:
        number, many, text = (lambda kind=kind: self.expression(kind, d) for kind in ("int", "list", "str"))
        op = self.rng.choice(["==", "!=", "<", "<=", ">", ">="])
        return [
            lambda: f"({number()}{op}{number()})",
            lambda: f"({many()}{op}{many()})",
            lambda: f"({number()}<{number()}<={number()})",
            lambda: f"({number()} in {many()})",
            lambda: f"({text()} not in {text()})",
            lambda: f"(not {self.any(d)})",
            lambda: f"bool({self.any(d)})",
            lambda: f"{text()}.{self.rng.choice(('startswith', 'endswith'))}({text()})",
            lambda: f"{text()}.{self.rng.choice(('isdigit', 'isalpha'))}()",
            lambda: self.chosen("bool", d),
        ]


def program(number: int) -> str:
    rng = keyed_rng("expressions", number)
    return Writer(rng).any(rng.randint(1, 4))


def test_ten_thousand_programs_mean_what_python_says() -> None:
    seen: dict[str, int] = {}
    for number in range(10_000):
        source = program(number)
        found = evaluate(source, ARGUMENTS, ROOMY)
        seen[found.status] = seen.get(found.status, 0) + 1
        if found.status in ("ok", "exception", "syntax"):
            assert found.value == reference(source, ARGUMENTS), source
        else:
            assert found.status in ("timeout", "memory", "forbidden"), (source, found)
    assert seen["ok"] > 5000 and seen["exception"] > 500, seen
    assert 10_000 - seen["ok"] - seen["exception"] < 500, seen


@pytest.mark.parametrize("name", [*FUNCTIONS, *METHODS])
def test_every_function_and_method_is_among_them(name: str) -> None:
    assert any(f"{name}(" in program(number) for number in range(3000))


def test_a_budget_is_reached_exactly() -> None:
    for number in range(500):
        source = program(number)
        whole = evaluate(source, ARGUMENTS, ROOMY)
        if whole.status in ("ok", "exception") and whole.steps:
            assert evaluate(source, ARGUMENTS, replace(ROOMY, steps=whole.steps)) == whole
            short = evaluate(source, ARGUMENTS, replace(ROOMY, steps=whole.steps - 1))
            assert (short.status, short.steps) == ("timeout", whole.steps - 1)


ENDINGS = {
    "sum([x*x for x in a if x%2==0])": "ok",
    " n+1\n": "ok",
    "[x for x in x]": "exception",
    "[y for x in a for y in y]": "exception",
    "missing": "exception",
    "1//0": "exception",
    "a[9]": "exception",
    "0**-1": "exception",
    "any(1//x for x in [1,0])": "ok",
    "all(1//x for x in [1,0])": "exception",
    "[len(x) for len in a for x in a]": "exception",
    "n+": "syntax",
    "": "syntax",
    "x=1": "syntax",
    "n\0": "syntax",
    "(" * 300 + "1" + ")" * 300: "syntax",
    "lambda x: x": "forbidden",
    "__import__('os')": "forbidden",
    "a.__class__": "forbidden",
    "a.append(1)": "forbidden",
    "s.upper": "forbidden",
    "s.upper.lower()": "forbidden",
    "[s.strip]": "forbidden",
    "s.count+1": "forbidden",
    "().__class__.__bases__": "forbidden",
    "open('x')": "forbidden",
    "f'{n}'": "forbidden",
    "'%d'%n": "forbidden",
    "'\\x41'": "forbidden",
    "1.5": "forbidden",
    "None": "forbidden",
    "n/2": "forbidden",
    "2**-1": "forbidden",
    "{1:2}": "forbidden",
    "(1,2)": "forbidden",
    "(x for x in a)": "forbidden",
    "range(3)": "forbidden",
    "[range(3)]": "forbidden",
    "max(a,key=len)": "forbidden",
    "len": "forbidden",
    "sum(*a)": "forbidden",
    "(n:=1)": "forbidden",
    "n is n": "forbidden",
    "[x async for x in a]": "forbidden",
    "str(a)": "forbidden",
    "10**100": "memory",
    "9**9**9**9": "memory",
    "'x'*10**9": "memory",
    "[0]*10**9": "memory",
    "a*60": "memory",
    "[[[[[1]*200]*200]*200]*200]==[]": "memory",
    "-" * 100 + "1": "memory",
    "9" * 200: "memory",
    "n+" * 600 + "n": "memory",
    "list(range(10**9))": "memory",
    "all(range(1,10**12))": "timeout",
    "len(range(10**12))": "timeout",
    "sum(x*y for x in range(200) for y in range(200))": "memory",
    "any(x>9**9 for x in range(10**9))": "timeout",
    "'a'.replace('','bbbbbbbbb'*20)": "memory",
}  # fmt: skip


@pytest.mark.parametrize("source", ENDINGS)
def test_how_programs_end(source: str) -> None:
    assert evaluate(source, ARGUMENTS).status == ENDINGS[source]


def test_a_text_that_python_warns_of_is_read_in_silence(recwarn: pytest.WarningsRecorder) -> None:
    assert evaluate("1if n else 2", ARGUMENTS).value == "1"
    assert not recwarn.list


@pytest.mark.parametrize(
    "argument", [1.5, None, (1,), {"a": 1}, [1.5], [[None]], 2**300, [0] * 300, "x" * 300, [["x" * 200] * 200]]
)
def test_arguments_that_the_dialect_does_not_have_are_said(argument: Any) -> None:
    assert evaluate("1", {"a": argument}).status in ("forbidden", "memory", "timeout")


@PROPERTY
@given(st.text(max_size=60) | st.text(alphabet="ansx0123456789+-*/%()[]<>=:,.' iforelng", max_size=60))
def test_no_text_breaks_it(source: str) -> None:
    found = evaluate(source, ARGUMENTS)
    assert (found.value is not None) == (found.status == "ok")


@PROPERTY
@given(st.integers(0, 5000), st.data())
def test_no_spoilt_program_breaks_it(number: int, data: st.DataObject) -> None:
    source = program(number)
    at = data.draw(st.integers(0, max(0, len(source) - 1)))
    spoilt = source[:at] + data.draw(st.sampled_from(["", "(", "]", "'", "x", "*", " for ", "\n", "0"])) + source[at + 1 :]
    assert evaluate(spoilt, ARGUMENTS) == evaluate(spoilt, ARGUMENTS)


@PROPERTY
@given(st.integers(0, 5000), st.data())
def test_no_program_without_one_of_its_brackets_breaks_it(number: int, data: st.DataObject) -> None:
    """As `s.upper()` without its call: what is left is often still an expression."""
    source = program(number)
    spans = [found.span() for found in re.finditer(r"\([^()]*\)|\[[^\[\]]*\]", source)]
    begin, end = data.draw(st.sampled_from(spans or [(0, 0)]))
    found = evaluate(source[:begin] + source[end:], ARGUMENTS)
    assert (found.value is not None) == (found.status == "ok")
