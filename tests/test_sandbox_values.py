"""Values as data: one text per value, a reader that runs nothing, and no object that is equal to everything."""

from __future__ import annotations

import ast
import contextlib
import itertools
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers import PROPERTY
from milonga.sandbox import InvalidValue, decode, is_same_value, parse_literal, to_canonical

KEYS = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5), st.binary(max_size=5))
VALUES = st.recursive(
    KEYS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.sets(KEYS, max_size=4),
        st.dictionaries(KEYS, inner, max_size=4),
    ),
    max_leaves=12,
)
ANYTHING = type("Anything", (), {"__eq__": lambda *_: True, "__hash__": lambda _: 0})


@PROPERTY
@given(VALUES)
def test_a_text_gives_its_value_back(value: Any) -> None:
    text = to_canonical(value)
    assert text.isascii()
    assert to_canonical(decode(text)) == text
    assert is_same_value(text, text, numeric=True, tolerance=1e-9)


@PROPERTY
@given(VALUES)
def test_a_literal_is_read_as_python_reads_it(value: Any) -> None:
    try:
        expected = ast.literal_eval(repr(value))
    except (ValueError, SyntaxError):
        return  # nan and inf have no literal
    assert to_canonical(parse_literal(repr(value))) == to_canonical(expected)


@PROPERTY
@given(st.text(max_size=60) | st.text(alphabet="[](){},:'\"b\\x0123.-+eTrue set", max_size=60))
def test_any_text_is_read_as_a_value_or_refused(text: str) -> None:
    try:
        value = parse_literal(text)
    except InvalidValue:
        return
    assert to_canonical(value) == to_canonical(ast.literal_eval(text.strip()))


@PROPERTY
@given(st.text(max_size=200) | VALUES.map(to_canonical).map(lambda text: text[:-1]))
def test_any_text_from_a_child_is_decoded_or_refused(text: str) -> None:
    with contextlib.suppress(InvalidValue):
        assert to_canonical(decode(text)) == text


def test_types_are_told_apart_unless_numbers_are_asked_for() -> None:
    texts = [to_canonical(value) for value in (True, 1, 1.0, "1", b"1")]
    assert len(set(texts)) == 5
    assert not any(is_same_value(a, b) for a, b in itertools.combinations(texts, 2))
    assert all(is_same_value(a, b, numeric=True) for a, b in itertools.combinations(texts[:3], 2))
    assert not is_same_value(texts[1], texts[3], numeric=True)
    assert is_same_value(to_canonical([{"a": (1, 2.0)}]), to_canonical([{"a": (1.0, 2)}]), numeric=True)
    assert is_same_value(to_canonical({1: {True}}), to_canonical({1.0: {1}}), numeric=True)
    assert not is_same_value(to_canonical([1]), to_canonical((1,)), numeric=True)


def test_a_tolerance_holds_for_floats_alone() -> None:
    third, near = to_canonical([1 / 3]), to_canonical([1 / 3 + 1e-12])
    assert not is_same_value(third, near)
    assert is_same_value(third, near, tolerance=1e-9)
    assert not is_same_value(third, to_canonical([0.3334]), tolerance=1e-9)
    assert not is_same_value(to_canonical(10**12), to_canonical(10**12 + 1), tolerance=1e-9)
    assert is_same_value(to_canonical(10**12), to_canonical(10**12 + 1), tolerance=1e-9, numeric=True)
    assert not is_same_value(to_canonical(1), to_canonical(1.0), tolerance=1e-9)
    assert is_same_value(to_canonical(math.nan), to_canonical(math.nan), tolerance=1e-9)
    assert not is_same_value(to_canonical(10**1000), to_canonical(1.5), tolerance=1e-9, numeric=True)
    assert not is_same_value(to_canonical(2**53), to_canonical(float(2**53) + 2), numeric=True)


def test_sets_and_dicts_have_no_order() -> None:
    assert to_canonical({"b", "a", "c"}) == to_canonical({"c", "b", "a"})
    assert to_canonical({"b": 1, "a": 2}) == to_canonical({"a": 2, "b": 1})
    assert to_canonical({"b": 1, "a": 2}) != to_canonical({"a": 1, "b": 2})


@pytest.mark.parametrize(
    "value",
    [
        ANYTHING(),
        type("Int", (int,), {})(3),
        type("Str", (str,), {"__repr__": lambda _: "'right'"})("x"),
        type("List", (list,), {})(),
        object,
        len,
        1j,
        frozenset(),
        range(3),
        [ANYTHING()],
        {1: ANYTHING()},
        2**4096,
        "x" * 10_001,
        b"x" * 10_001,
        [0] * 10_001,
        ["x" * 5000] * 4,
    ],
)
def test_what_is_not_plain_or_too_large_has_no_text(value: Any) -> None:
    with pytest.raises(InvalidValue):
        to_canonical(value)


def test_depth_is_bounded_everywhere() -> None:
    value: Any = 0
    for _ in range(20):
        value = [value]
    assert decode(to_canonical(value)) == parse_literal("[" * 20 + "0" + "]" * 20) == value
    with pytest.raises(InvalidValue, match="deeper"):
        to_canonical([value])
    with pytest.raises(InvalidValue):
        parse_literal("[" * 21 + "0" + "]" * 21)
    cycle: list[Any] = []
    cycle.append(cycle)
    with pytest.raises(InvalidValue, match="deeper"):
        to_canonical(cycle)
    for text in ("[" * 15_000, '{"tuple":[' * 1500, "[" * 2000 + "]" * 2000):
        with pytest.raises(InvalidValue):
            decode(text)


@pytest.mark.parametrize(
    "text",
    [
        "1) or (True",
        "1]; import os #",
        "1\n2",
        "1 # comment",
        "lambda: 1",
        "f(1)",
        "f'{x}'",
        "'{0.__class__}'.format(1)",
        "__import__('os').system('id')",
        "[x for x in y]",
        "1 + 1",
        "1 if 1 else 2",
        "x",
        "nan",
        "1e",
        "--1",
        "0x10",
        "1_000",
        "012",
        "'a' 'b'",
        "'''a'''",
        "r'a'",
        "'a",
        "[1",
        "[1 2]",
        "{1: 2, 3}",
        "{[1]}",
        "{[1]: 2}",
        "(1",
        ")",
        "",
        "  ",
        ",",
        "[,]",
        "set(1)",
        "'\\N{BULLET}'",
        "b'\u00e9'",
        "\x00",
        "1;2",
        "{**{}}",
        "[*[]]",
        "...",
        "1j",
        "(" * 2000 + ")" * 2000,
        "-" * 3999 + "1",
        "1" * 4001,
    ],
)
def test_what_is_no_literal_is_refused(text: str) -> None:
    with pytest.raises(InvalidValue):
        parse_literal(text)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (" 1 ", 1),
        ("-3", -3),
        ("+2.5e3", 2500.0),
        ("1, 2", (1, 2)),
        ("1,", (1,)),
        ("(1)", 1),
        ("()", ()),
        ("[1,\n2,]", [1, 2]),
        ("set()", set()),
        ("{1, 'a'}", {1, "a"}),
        ("{}", {}),
        ("{'a': [None, True], 2: {}}", {"a": [None, True], 2: {}}),
        ("'it\\'s \\x41\\u00e9\\n\\d'", "it's A\u00e9\n\\d"),
        ("b'\\x00a'", b"\x00a"),
        ('"#)"', "#)"),
        ("'{0.__class__}'", "{0.__class__}"),
    ],
)
def test_literals(text: str, value: Any) -> None:
    assert to_canonical(parse_literal(text)) == to_canonical(value)


@pytest.mark.parametrize(
    "text",
    [
        '{"float":"1"}',
        '{"float":"1.50"}',
        "1.5",
        "NaN",
        '{"set":[2,1]}',
        '{"dict":[[[],1]]}',
        '{"bytes":"zz"}',
        '{"bytes":"AB"}',
        '{"int":1}',
        '{"float":"1.0","set":[]}',
        "{}",
        "[1, 2]",
        "1 ",
        "1\n",
        '{"set":[1,1]}',
        '{"tuple":1}',
        '{"float":1}',
        "1" * 5000,
        '{"dict":[[1]]}',
    ],
)
def test_a_text_written_in_another_way_is_refused(text: str) -> None:
    with pytest.raises(InvalidValue):
        decode(text)
