"""Lines that a hostile process writes: each is the data of one program, and no exception of ours."""

from __future__ import annotations

import json
import math
import random
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers import PROPERTY
from milonga.sandbox import InvalidValue, Limits, Outcome, Program, decode, is_same_value, to_canonical, verdict
from milonga.tasks.grading import Grader, decode_reply
from sandbox_attacks import ATTACKS, RESULTS, SAID
from sandbox_forgery import TEXTS, forge_line
from sandbox_helpers import opened
from soak_sandbox import drawn, read_lines

PROGRAM = Program("def f(x): return x", "f", ((1,), (2,)))
EXPECTED = [to_canonical(value) for value in (1, 1.5, [1, 2.0], {1: {2}}, 10**1000, math.inf)]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.sampled_from(TEXTS),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
ENTRIES = st.lists(JSON, min_size=1, max_size=3) | JSON
LINES = st.builds(
    lambda changed, results: json.dumps(
        {"token": "t", "failure": None, "results": results, "mutates": False} | changed
    ).encode(),
    st.dictionaries(st.sampled_from(["token", "failure", "results", "mutates", "other"]), JSON, max_size=2),
    st.lists(ENTRIES, min_size=1, max_size=3),
)


def judge(line: bytes) -> Outcome:
    """From bytes to verdict, as a grader goes: outcome, and equality of what it holds with what is expected."""
    ended = verdict.Ended(0, 0.0, "", True, stdout=line, stderr=line, result=line)
    outcome = verdict.judge_outcome(PROGRAM, "isolated", Limits(), "t", 0.0, ended)
    for result in outcome.results:
        if isinstance(result, str):
            assert to_canonical(decode(result)) == result
            for expected in EXPECTED:
                is_same_value(result, expected, numeric=True, tolerance=1e-6)
    return outcome


@PROPERTY
@given(st.one_of(st.binary(), LINES.map(lambda line: line + b"\n"), st.integers().map(lambda seed: forge(seed))))
def test_any_bytes_end_in_a_verdict_on_their_own_program(line: bytes) -> None:
    outcome = judge(line)
    assert outcome.status in SAID
    assert len(outcome.results) == len(PROGRAM.calls)
    f"{outcome.reason}{outcome.results}".encode()  # can be written to a file


def forge(seed: int) -> bytes:
    return forge_line(random.Random(seed), "t", len(PROGRAM.calls))


def test_lines_drawn_at_random_are_near_enough_to_be_read() -> None:
    statuses = {judge(forge(seed)).status for seed in range(500)}
    assert {"ok", "exception", "bad_output"} <= statuses


def test_the_soak_draws_every_attack_and_many_forged_lines() -> None:
    attacks = drawn("isolated", 2 * len(ATTACKS), seed=3)
    assert [each.source for each in attacks] == [each.source for each in drawn("isolated", 2 * len(ATTACKS), seed=3)]
    assert {each.name for each in ATTACKS} < {each.name for each in attacks}
    assert len([each for each in attacks if each.name == "forged at random"]) == -(-len(ATTACKS) // 10)
    statuses, flaws = read_lines(300, seed=3)
    assert (statuses.total(), flaws) == (300, [])


@pytest.mark.parametrize("text", RESULTS.values(), ids=RESULTS.keys())
def test_what_is_no_canonical_text_is_invalid_whatever_it_raises(text: str) -> None:
    with pytest.raises(InvalidValue):
        decode(text)


def test_a_reader_that_fails_fails_the_program_and_not_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is wrong with the reading code itself: no line may end a run."""
    monkeypatch.setattr(verdict, "decode", lambda _: 1 // 0)
    line = b'{"token": "t", "failure": null, "results": [["1"], ["1"]], "mutates": false}\n'
    assert (judge(line).status, judge(line).reason) == ("bad_output", "the result cannot be read: ZeroDivisionError")


def test_who_forges_a_line_fails_alone_and_the_sandbox_goes_on() -> None:
    source = """
import json, os, sys
def f(text):
    frame = sys._getframe()
    while "request" not in frame.f_locals: frame = frame.f_back
    said = {"token": frame.f_locals["request"]["token"], "failure": None, "results": [[text]], "mutates": False}
    while "descriptor" not in frame.f_locals: frame = frame.f_back
    os.write(frame.f_locals["descriptor"], json.dumps(said).encode() + b"\\n")
    os._exit(0)
"""
    honest = Program("def f(): return 1", "f", ((),))
    forging = [Program(source, "f", ((text,),)) for text in (*RESULTS.values(), "1")]
    with opened("isolated") as sandbox:
        for _ in range(2):
            outcomes = sandbox.run([*forging, honest])
            assert [outcome.status for outcome in outcomes] == ["bad_output"] * len(RESULTS) + ["ok", "ok"]


# --------------------------------------------------------------------------------------------------------------- graders


@PROPERTY
@given(st.one_of(st.binary(), JSON.map(json.dumps).map(str.encode)), JSON, JSON)
def test_any_line_of_a_grader_is_a_reply_or_none(line: bytes, id: Any, error: Any) -> None:
    near = json.dumps({"id": id, "error": error}).encode()
    for reply in (decode_reply(line), decode_reply(near)):
        assert reply is None or (isinstance(reply["id"], int) and isinstance(reply.get("error", ""), str))


@pytest.mark.parametrize(
    "value", [10**400, -(10**400), math.nan, math.inf, "1", None, [], {}, [[]]], ids=lambda value: str(value)[:9]
)
def test_a_score_that_is_no_number_is_no_score(value: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with Grader() as grader:
        monkeypatch.setattr(grader, "_ask", lambda *_: json.loads(json.dumps(value)))
        assert grader.score("any", {}, [(0, 0, "5")]) == [None]
        monkeypatch.setattr(grader, "_ask", lambda *_: sys.float_info.max)
        assert grader.score("any", {}, [(0, 1, "5")]) == [sys.float_info.max]
