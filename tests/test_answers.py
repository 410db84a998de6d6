"""Answers in free text: the last box, the last number, the letter of a choice; and what a number with its unit is."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers import PROPERTY
from milonga.tasks.answers import (
    Value,
    extract_choice,
    extract_number,
    find_last_box,
    is_choice,
    is_number,
    normalise_answer,
    read_value,
)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("She pays $1,234.50.", "1234.50"),
        ("So 5-3 = 2, and 2-4 = -2.", "-2"),
        ("It falls by −7 degrees", "-7"),
        ("a debt of -$5", "-5"),
        ("45%", "45"),
        ("from (5,6) to 1,2", "2"),
        ("12,34 or 1,2345", "2345"),
        (".5 m", ".5"),
        ("30seats", "30"),
        ("version 1.2.3", "1.2"),
        ("H2O and x1", None),
        ("none at all", None),
        ("", None),
    ],
)
def test_the_last_number_of_a_text(text: str, number: str | None) -> None:
    assert extract_number(text) == number


@PROPERTY
@given(st.text(), st.integers(-(10**12), 10**12))
def test_a_number_at_the_end_is_found_with_its_commas(before: str, number: int) -> None:
    assert extract_number(f"{before} is {number:,}.") == str(number)


@PROPERTY
@given(st.text("0123456789.,-$%x "))
def test_what_is_extracted_is_a_number(text: str) -> None:
    found = extract_number(text)
    assert found is None or is_number(found)


@pytest.mark.parametrize(
    ("text", "letter"),
    [
        ("The answer is C.", "C"),
        ("(A) is wrong, so (B)", "B"),
        ("Answer: **D**", "D"),
        ("the answer is a book", None),
        ("A man and I", None),
        ("(K)", None),
    ],
)
def test_the_last_letter_that_is_chosen(text: str, letter: str | None) -> None:
    assert extract_choice(text) == letter


@pytest.mark.parametrize(
    ("text", "box"),
    [
        (r"\boxed{1} and \boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"so \fbox{ 3 } it is", "3"),
        (r"thus $\boxed 9$.", "9"),
        (r"\boxed{1} then \boxed{2", "1"),
        ("no box", None),
    ],
)
def test_the_last_box(text: str, box: str | None) -> None:
    assert find_last_box(text) == box


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("30", Value("30", Decimal(30), "")),
        ("30 seats", Value("30", Decimal(30), "seats")),
        ("-2.5 Miles per hour", Value("-2.5", Decimal("-2.5"), "miles per hour")),
        ("3 s", None),
        ("3mn", None),
        ("30\\%", Value("30", Decimal(30), "%")),
        ("\\frac34", Value("\\frac{3}{4}", Fraction(3, 4), "")),
        ("2\\sqrt{2}", Value("2\\sqrt{2}", None, "")),
        ("30x", None),
        ("30 thousand", None),
        ("30 or forty", None),
        ("30 31", None),
        ("x", None),
        ("30 seats are left in the hall", None),
    ],
)
def test_a_number_and_its_unit(text: str, value: Value | None) -> None:
    assert read_value(text) == value


def test_an_answer_may_leave_out_the_blank_before_a_unit_and_name_it_by_a_letter() -> None:
    gold, plain = Value("30", Decimal(30), ""), Decimal(30)
    found = [read_value(text, gold) for text in ("30 m", "30seats", "30x")]
    assert found == [Value("30", plain, "m"), Value("30", plain, "seats"), None]


@PROPERTY
@given(st.text(), st.text("0123456789.,-+*/^!(){}[]\\%=<> \u200beix"))
def test_what_is_read_as_a_number_holds_nothing_but_one(text: str, signs: str) -> None:
    for answer in (normalise_answer(text), normalise_answer(signs)):
        found = read_value(answer)
        assert found is None or not set(found.expression) & set(",;<>=[]%|&\u200b")
        assert found is None or found.number is None or isinstance(found.number, Decimal | Fraction)


def test_numbers_and_choices_are_known_by_their_form() -> None:
    assert [is_number(text) for text in ("7", "$1,000.50", "-3.", "7 apples", "1/2", "")] == [True] * 3 + [False] * 3
    assert [is_choice(text) for text in ("C", "(C)", "K", "CC", "")] == [True, True, False, False, False]


@pytest.mark.parametrize("piece", ["1,", "1", "-$", "1,111", ".1", "\\boxed{", "answer is ", "(A", "a ", "1 a"])
def test_no_text_takes_more_than_linear_time(piece: str) -> None:
    """Quadratic work on 400,000 characters would not end in minutes."""
    text = piece * (400_000 // len(piece))
    extract_number(text), extract_choice(text), read_value(normalise_answer(text))
    assert find_last_box(text) is None
