"""Agents around a program: what they write reads back, what is malformed is invalid, and questions hold what they should."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers import GRAMMARS, PROPERTY
from milonga.systems.absolute_zero.roles import (
    Abducer,
    Deducer,
    Inducer,
    InputProposer,
    Inputs,
    Program,
    ProgramProposer,
    Question,
)
from milonga.types import Problem


@pytest.mark.parametrize("dialect", GRAMMARS)
def test_proposals_read_back(dialect: Any) -> None:
    proposer, prober = ProgramProposer(dialect), InputProposer(dialect)
    assert proposer.parse(proposer.write("sum(a)", "[1,2]")).value == Program("sum(a)", "[1,2]")
    assert prober.parse(prober.write(["[1]", "[]", "[2,3]"])).value == Inputs(("[1]", "[]", "[2,3]"))
    for text in ("", "sum(a)", "sum(a)\n#", "\n#1", "a\nb\n#1", "<program></program><input>1</input>", "[1]\n;[2]"):
        assert not proposer.parse(text).is_valid and not prober.parse(text).is_valid


@pytest.mark.parametrize("dialect", GRAMMARS)
def test_answers_are_read_as_a_solvers(dialect: Any) -> None:
    for role in (Deducer(dialect), Abducer(dialect), Inducer(dialect)):
        found = role.parse(role.write(["[2]", "4"], "4"))
        assert found.is_valid and found.value.answer == "4" and found.value.steps == ("[2]", "4")


def test_each_agent_is_asked_in_a_way_of_its_own() -> None:
    for dialect in GRAMMARS:
        roles = [role(dialect) for role in (Deducer, Abducer, Inducer, ProgramProposer, InputProposer)]  # type: ignore[arg-type]
        problem = Problem("p", "n+1\n2", "")
        texts = ["".join(part.text for part in role.prompt(problem)) for role in roles]
        assert len(set(texts)) == len(roles) and all("n+1\n2" in text for text in texts)
        assert all(part.foreign == (part.text == problem.text) for role in roles for part in role.prompt(problem))


def test_questions_hold_two_of_three() -> None:
    terse, full = Question(terse=True), Question(terse=False)
    assert terse.render_deduction("n+1", "2") == "n+1\n2" and terse.render_induction([("1", "2"), ("2", "3")]) == "1=2;2=3"
    assert terse.render_references([("n+1", "2"), ("n*2", "1")]) == "n+1#2\nn*2#1"
    for text in (full.render_deduction("n+1", "2"), full.render_abduction("n+1", "2"), full.render_references([("n+1", "2")])):
        assert "n+1" in text and "2" in text
    assert full.render_induction([("1", "2")]) == "Input: 1\nOutput: 2"


@PROPERTY
@given(st.text(max_size=60))
def test_no_text_breaks_a_reader(text: str) -> None:
    for dialect in GRAMMARS:
        for role in (ProgramProposer(dialect), InputProposer(dialect), Deducer(dialect)):  # type: ignore[arg-type]
            found = role.parse(text)
            assert found.is_valid == (found.invalid is None) and 0 <= found.format <= 1
