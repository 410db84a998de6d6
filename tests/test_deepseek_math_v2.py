"""DeepSeekMath-V2: the reward table, the rubric, labels by voting, the grammar, and derivations with their exact truth."""

from __future__ import annotations

import itertools
import math
import random
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import milonga
from cases import TINY
from helpers import PROPERTY
from milonga.errors import ConfigError
from milonga.randomness import keyed_rng
from milonga.recipe import ALLOWED
from milonga.resolve import resolve
from milonga.roles import DIALECTS, Dialect, StepSolver
from milonga.runfolder.files import JsonLines
from milonga.systems.deepseek_math_v2.credit import (
    LEVELS,
    analysis_quality,
    auto_label,
    generator_reward,
    has_majority,
    score_reward,
    verifier_reward,
)
from milonga.systems.deepseek_math_v2.labels import Finding, audit_by_answers, defect_metrics, knows_flaws
from milonga.systems.deepseek_math_v2.roles import (
    CLOSING,
    OPENING,
    DefectVerifier,
    MetaVerifier,
    ProofWriter,
    extract_self_analysis,
    make_analysis_rollout,
    make_graded_proof,
    parse_analysis,
    write_analysis,
)
from milonga.systems.index import RECIPES
from milonga.tasks import make_task
from milonga.tasks.derivations import GAP, MISTAKE, find_flaws, score_from_flaws, write_derivation
from milonga.types import Grade, Problem, Rollout, Rollouts

PROSE: tuple[Dialect, ...] = ("plain", "tagged")
"""The dialects of solutions whose analyses are written in prose."""
dialects = st.sampled_from(DIALECTS)
levels = st.sampled_from(LEVELS)
CHAIN = make_task({"name": "chain", "ops": 5})
PROBLEM = Problem("p", "37+5*3-4%100", "22", {"start": 37, "chain": [("+", 5), ("*", 3), ("-", 4)], "mod": 100})


# The reward table of honest and dishonest players, worked by hand from the paper's formulas.


@pytest.mark.parametrize(
    ("true", "silent", "lies", "honest"),
    [(1.0, 1.0, 1.00, 1.00), (0.5, 0.5, 0.50, 0.62), (0.0, 0.0, 0.00, 0.24)],
)
def test_the_reward_table(true: float, silent: float, lies: float, honest: float) -> None:
    # A verifier that claims 1 and reports nothing: by the rubric its analysis is always fine.
    flaws = {} if true == 1 else {0: true}
    quality = analysis_quality((), 1.0, flaws)
    assert quality == 1.0
    assert verifier_reward(score_reward(1.0, true), quality) == silent
    # A verifier that says what is true earns what its analysis is worth.
    for ms in LEVELS:
        assert verifier_reward(score_reward(true, true), ms) == ms
    # A generator that claims 1: nothing is reported, so that R_meta is 1 and only R_score costs something.
    assert generator_reward(true, 1.0, 1.0) == pytest.approx(lies if true == 1 else true * 0.76 + 0.24 * (1 - abs(1 - true)))
    assert generator_reward(true, 1.0, 1.0) == pytest.approx(lies)
    assert generator_reward(true, true, 1.0) == pytest.approx(honest)


def test_lying_about_a_half_right_proof_costs_half_of_beta() -> None:
    for beta in (0.0, 0.24, 0.5, 1.0):
        assert generator_reward(0.5, 0.5, 1.0, beta) - generator_reward(0.5, 1.0, 1.0, beta) == pytest.approx(beta / 2)
    assert generator_reward(0.5, 0.5, 1.0) - generator_reward(0.5, 1.0, 1.0) == pytest.approx(0.12)


def test_silence_pays_half_on_a_gap_so_that_reporting_must_be_confirmed_half_of_the_time() -> None:
    """The trap of multiplying: below an expected quality of 0.5 a verifier earns more by seeing nothing."""
    silent = verifier_reward(score_reward(1.0, 0.5), 1.0)
    for expected in (0.4, 0.6):
        reporting = expected * verifier_reward(score_reward(0.5, 0.5), 1.0)
        assert (reporting > silent) == (expected > 0.5)


def test_a_floor_leaves_a_right_score_some_reward() -> None:
    assert verifier_reward(1.0, 0.0) == 0.0
    assert verifier_reward(1.0, 0.0, "floor", 0.3) == 0.3 and verifier_reward(1.0, 0.5, "floor", 0.3) == 0.5
    assert verifier_reward(0.0, 0.0, "floor", 0.3) == 0.0  # a wrong score earns nothing either way


def test_without_the_meta_reward_invented_defects_cost_nothing() -> None:
    flaws = {2: MISTAKE}
    invented, found = analysis_quality((0,), 0.0, flaws), analysis_quality((2,), 0.0, flaws)
    right = score_reward(0.0, 0.0)
    assert verifier_reward(right) == verifier_reward(right) == 1.0
    assert verifier_reward(right, invented) == 0.0 and verifier_reward(right, found) == 1.0


# The rubric.


@pytest.mark.parametrize(
    ("reported", "said", "flaws", "expected"),
    [
        ((), 1.0, {}, 1.0),
        ((), 1.0, {1: MISTAKE}, 1.0),  # what was missed is never punished
        ((), 0.0, {1: MISTAKE}, 0.5),  # a low score for no reason does not follow
        ((0,), 0.0, {1: MISTAKE}, 0.0),  # all that is reported is unfounded
        ((0, 1), 0.0, {1: MISTAKE}, 0.5),  # mixed
        ((1,), 0.0, {1: MISTAKE}, 1.0),
        ((1,), 0.5, {1: MISTAKE}, 0.5),  # a mistake is not a gap
        ((1,), 0.5, {1: GAP}, 1.0),
        ((1,), 1.0, {1: GAP}, 0.5),
        ((1,), 0.5, {1: GAP, 2: GAP}, 1.0),  # one of two gaps was seen, and judged as one gap
        ((1, 2), 0.0, {1: GAP, 2: GAP}, 1.0),
        ((0,), 0.0, {}, 0.0),
    ],
)
def test_the_rubric(reported: tuple[int, ...], said: float, flaws: dict[int, float], expected: float) -> None:
    assert analysis_quality(reported, said, flaws) == expected


@PROPERTY
@given(
    flaws=st.dictionaries(st.integers(0, 5), st.sampled_from([GAP, MISTAKE])), said=levels, reported=st.sets(st.integers(0, 5))
)
def test_the_rubric_never_punishes_what_was_missed(flaws: dict[int, float], said: float, reported: set[int]) -> None:
    seen = {k: v for k, v in flaws.items() if k in reported}
    assert analysis_quality(reported, said, flaws) == analysis_quality(reported, said, seen)
    assert analysis_quality(flaws, score_from_flaws(flaws.values()), flaws) == 1.0  # the whole truth is always fine


# Labels by voting.


@pytest.mark.parametrize(
    ("scores", "confirmed", "k", "label"),
    [
        ([1, 1, 1], [False] * 3, 2, 1.0),
        ([0, 1, 1], [False] * 3, 2, 1.0),  # a defect that nobody confirms is none
        ([0, 0, 1], [True, True, False], 2, 0.0),
        ([0, 0, 1], [True, False, False], 2, None),  # too few at the lowest score
        ([0, 0, 1], [True, False, False], 1, 0.0),
        ([0.5, 0.5, 0], [True, True, False], 2, None),  # the lowest score is 0, and nobody confirmed it
        ([0.5, 0.5, 1], [True, True, False], 2, 0.5),
        ([], [], 1, None),
        ([0, 1, 1], [None, None, None], 2, None),  # nobody could read what was said of the defect
        ([0, 0.5, 1], [False, None, None], 2, None),
        ([0, 0, 0], [True, True, None], 2, 0.0),  # a third vote would have changed nothing
        ([0, 0, 0], [True, None, None], 2, None),
        ([1, 1], [None, None], 2, 1.0),  # without a defect there is nothing to judge
    ],
)
def test_labels_by_voting(scores: list[float], confirmed: list[bool | None], k: int, label: float | None) -> None:
    assert auto_label(scores, confirmed, k) == label


def test_judgements_that_nobody_could_read_label_no_proof() -> None:
    assert auto_label([0.0] * 8, [has_majority([])] * 8, 2) is None


def test_a_majority_is_more_than_half_and_needs_votes() -> None:
    assert has_majority([True, True, False]) and not has_majority([True, False]) and not has_majority([])


def test_more_votes_agree_more_often_with_the_truth() -> None:
    """Check 3 in closed form: analyses that are right with probability 0.7, judgements with 0.8; the truth is a mistake."""

    def agreement(n: int, m: int, k: int) -> tuple[float, float]:
        sure = sum(math.comb(m, i) * 0.8**i * 0.2 ** (m - i) for i in range(m + 1) if 2 * i > m)
        right = settled = 0.0
        for kinds in itertools.product(("confirmed", "doubted", "missed"), repeat=n):
            p = math.prod({"confirmed": 0.7 * sure, "doubted": 0.7 * (1 - sure), "missed": 0.3}[kind] for kind in kinds)
            label = auto_label([1.0 if kind == "missed" else 0.0 for kind in kinds], [kind == "confirmed" for kind in kinds], k)
            settled += p * (label is not None)
            right += p * (label == 0.0)
        return right / settled, 1 - settled

    one, eight = agreement(1, 1, 1), agreement(8, 3, 2)
    assert one[0] == pytest.approx(0.7 * 0.8) and one[1] == 0
    assert eight[0] > 0.99 and 0 < eight[1] < 0.05


# Derivations.


@pytest.mark.parametrize(
    ("steps", "answer", "flaws", "score"),
    [
        (["37+5=42", "42*3=26", "26-4=22"], "22", {}, 1.0),
        (["37+5=42", "26-4=22"], "22", {1: GAP}, 0.5),
        (["42*3=26", "26-4=22"], "22", {0: GAP}, 0.5),
        (["37+5=42", "42*3=26"], "22", {1: GAP}, 0.5),  # the last operation was done in the head
        (["37+5=42", "42*3=26"], "26", {1: MISTAKE}, 0.0),  # or not at all
        (["37+5=43", "43*3=29", "29-4=25"], "25", {0: MISTAKE}, 0.0),
        (["37+5=42", "42*3=26", "26-4=22"], "23", {2: MISTAKE}, 0.0),
        (["26-4=22"], "22", {0: MISTAKE}, 0.0),  # two steps are missing
        (["42*3=26"], "22", {0: MISTAKE}, 0.0),  # one before, one after
        (["37+5=42", "42*3=26", "26-4=22", "22+0=22"], "22", {3: MISTAKE}, 0.0),
        (["hello"], "22", {0: MISTAKE}, 0.0),
        ([], "22", {0: MISTAKE}, 0.0),
        (["37+5=42", "42*3=26", "26-4=22"], None, {2: MISTAKE}, 0.0),
    ],
)
def test_the_flaws_of_a_derivation(steps: list[str], answer: str | None, flaws: dict[int, float], score: float) -> None:
    found = find_flaws(PROBLEM, steps, answer)
    assert found.flaws == flaws and found.score == score and len(found.checks) == len(steps)


def test_what_a_step_should_have_come_to_is_computed_from_the_steps_before_it() -> None:
    assert find_flaws(PROBLEM, ["37+5=42", "26-4=22"], "22").checks == ("42", "26")
    assert find_flaws(PROBLEM, ["37+5=43", "43*3=29", "29-4=25", "1+1=2"], "25").checks == ("42", "29", "25", "?")


@PROPERTY
@given(index=st.integers(0, 500), score=levels, seed=st.integers(0, 10))
def test_a_derivation_deserves_the_score_it_was_made_for(index: int, score: float, seed: int) -> None:
    problem = CHAIN.problem("train", index)
    steps, answer = write_derivation(CHAIN, problem, random.Random(seed), score)
    found = find_flaws(problem, steps, answer)
    assert found.score == score
    assert len(steps) == (4 if score == 0.5 else 5)
    assert list(found.flaws.values()) == [GAP] if score == 0.5 else all(v == MISTAKE for v in found.flaws.values())
    if score == 1.0:  # the chain task agrees with itself
        assert CHAIN.grade(problem, answer, steps).is_sound


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("score", LEVELS)
def test_a_graded_proof_is_worth_its_score_in_every_dialect(dialect: Dialect, score: float) -> None:
    for index in range(10):
        proof = make_graded_proof(CHAIN, CHAIN.problem("train", index), random.Random(index), score, dialect, "id")
        assert find_flaws(proof.problem, proof.solution.steps, proof.solution.answer).score == score


@PROPERTY
@given(steps=st.lists(st.text(max_size=8), max_size=6), answer=st.none() | st.text(max_size=4))
def test_any_text_can_be_examined(steps: list[str], answer: str | None) -> None:
    found = find_flaws(PROBLEM, steps, answer)
    assert found.score in LEVELS and set(found.flaws) <= set(range(max(1, len(steps))))


# The grammar.

notes = st.text(st.characters(codec="utf-8", exclude_characters="\n=<{}\\"), max_size=6)


@PROPERTY
@given(marks=st.lists(st.tuples(st.booleans(), notes), max_size=5), score=levels)
def test_a_written_analysis_reads_back(marks: list[tuple[bool, str]], score: float) -> None:
    text = write_analysis("terse", [m for m, _ in marks], score, [n for _, n in marks])
    parsed = parse_analysis("terse", text, len(marks))
    assert parsed.is_valid and parsed.format == 1.0
    assert (parsed.value.steps or ()) == tuple(m for m, _ in marks) and parsed.value.score == score
    assert parsed.value.defects == tuple(k for k, (right, _) in enumerate(marks) if not right)
    assert parsed.value.final == (score == 1.0)
    assert not parse_analysis("terse", text, len(marks) + 1).is_valid  # a mark for a step that is not there


words = st.text(st.sampled_from("abc ,+"), max_size=6)


@PROPERTY
@given(dialect=st.sampled_from(PROSE), marks=st.lists(st.tuples(st.booleans(), words), max_size=5), score=levels)
def test_an_analysis_in_prose_reads_back(dialect: Dialect, marks: list[tuple[bool, str]], score: float) -> None:
    text = write_analysis(dialect, [m for m, _ in marks], score, [n for _, n in marks])
    parsed = parse_analysis(dialect, text, len(marks))
    assert parsed.is_valid and parsed.value.score == score and parsed.value.final == (score == 1.0)
    assert (parsed.value.steps or ()) == tuple(m for m, _ in marks)
    assert len(parsed.value.issues) == sum(not m for m, _ in marks)
    # Issues without a lower score, or a lower score without an issue, are readable and not the form.
    assert parsed.format == (1.0 if bool(parsed.value.issues) == (score < 1) else 0.5)


@pytest.mark.parametrize(
    ("text", "score", "defects", "form"),
    [
        ("Evaluation:\nNo issues.\nOverall score: \\boxed{1}", 1.0, (), 1.0),
        ("Evaluation:\n- **Issue:** Step 2: 3*4 is 12.\n\n**Overall score:** \\boxed{0}", 0.0, (1,), 1.0),
        ("Issue: the base case is missing.\nOverall score: \\boxed{0.5}", 0.5, (), 1.0),  # it names no step
        ("<think>Issue: step 3. Score: 1</think>\nIssue: step 1: no.\nOverall score: 0.5/1", 0.5, (0,), 1.0),
        ("Issues: none\nOverall score: \\boxed{1.0}", 1.0, (), 1.0),
        ("1. Issue: Step 2 is wrong.\nOverall score: 0.5", 0.5, (1,), 1.0),
        ("Issues:\n- Step 2: a wrong sum\n- Step 3: a gap\nOverall score: 0", 0.0, (1, 2), 1.0),
        ("**Issues found:**\n\n1. In step 2 the sum is wrong.\n\nStep 1 is right.\nOverall score: 0.5", 0.5, (1,), 1.0),
        ("### Issue 1\nIn step 2 the sum is wrong.\n\n### Issue 2\n\nStep 3 is missing.\n\nOverall score: 0", 0.0, (1, 2), 1.0),
        (
            "Issues:\n\n**Step 2:** a wrong sum\n\n**Step 3:** a gap\n\n### Summary\nStep 1 holds.\nOverall score: 0",
            0.0,
            (1, 2),
            1.0,
        ),
        ("Issues:\n- Step 1: no issues\n- Step 2: a wrong sum\nOverall score: 0.5", 0.5, (1,), 1.0),
        ("Issue: No reason is given for step 2.\nOverall score: 0.5/1.0", 0.5, (1,), 1.0),
        ("Issue: There are no issues with step 1, step 2.\nOverall score: 1.0/1.0", 1.0, (), 1.0),
        ("Issues:\n- None\n\nStep 1 and step 2 hold.\nOverall score: 1", 1.0, (), 1.0),
        ("No issues with step 1 or step 2.\nOverall score: 1", 1.0, (), 1.0),
        ("It is all wrong, so \\boxed{0}.", 0.0, (), 0.5),
    ],
)
def test_what_a_model_says_of_a_proof_is_read(text: str, score: float, defects: tuple[int, ...], form: float) -> None:
    parsed = parse_analysis("plain", text, 3)
    assert parsed.is_valid and parsed.value.score == score and parsed.value.defects == defects and parsed.format == form


@pytest.mark.parametrize(
    "text",
    [
        f"{OPENING}\n{CLOSING} \\boxed{{0.75}}",  # not one of the three levels
        f"{OPENING}\n{CLOSING} \\boxed{{1}}\n{CLOSING} \\boxed{{0}}",  # who says both says nothing
        f"{OPENING}\n{CLOSING} \\boxed{{1, 0.5 or 0}}",  # nor who repeats the question
        f"<think>{CLOSING} \\boxed{{1}}",
        "All of it is fine.",
        "",
    ],
)
def test_what_is_no_score(text: str) -> None:
    parsed = parse_analysis("plain", text, 1)
    assert not parsed.is_valid and parsed.format == 0.0


@pytest.mark.parametrize("text", ["42+\n=", "42+\n=+-", "42+\n=+\n", "42\n=+", "=+\n42+", "42+\n=1", "42+\n=~~"])
def test_what_breaks_the_terse_format(text: str) -> None:
    assert parse_analysis("terse", "42+\n=~", 1).value.score == 0.5
    assert not parse_analysis("terse", text, 1).is_valid


@pytest.mark.parametrize("agent", [ProofWriter, DefectVerifier, MetaVerifier])
def test_the_phrases_that_are_asked_for_are_the_phrases_that_are_read(agent: type[Any]) -> None:
    proof = make_graded_proof(CHAIN, CHAIN.problem("train", 0), random.Random(0), 1.0, "tagged", "id")
    target = None if agent is ProofWriter else proof
    target = make_analysis_rollout(proof, "fine", parse_analysis("tagged", "", 5), "a") if agent is MetaVerifier else target
    prompt = "".join(part.text for part in agent("tagged").prompt(proof.problem, target))
    assert OPENING in prompt and CLOSING in prompt
    asked = prompt[prompt.rindex(OPENING) :]
    assert not parse_analysis("tagged", asked, 5).is_valid, "who repeats the form has judged nothing"


@PROPERTY
@given(dialect=dialects, agent=st.sampled_from([ProofWriter, DefectVerifier, MetaVerifier]), index=st.integers(0, 200))
def test_demonstrations_can_be_read(dialect: Dialect, agent: type[Any], index: int) -> None:
    role = agent(dialect)
    target, text = role.demonstrate(CHAIN, CHAIN.problem("train", index), keyed_rng("test", index))
    parsed = role.parse(text, target)
    assert parsed.is_valid and (parsed.format == 1.0 or dialect in PROSE)  # its teacher's score need not follow
    assert (target is None) == (agent is ProofWriter)


@PROPERTY
@given(dialect=dialects, text=st.text(st.sampled_from("12+-=~#!\n\\boxed{}<step>/ CORRECT.5Evaluation:"), max_size=60))
def test_no_text_breaks_a_reader(dialect: Dialect, text: str) -> None:
    proof = ProofWriter(dialect).parse(text)
    assert proof.is_valid == (proof.format == 1.0) or proof.value.steps  # stray text costs format, not validity
    assert not proof.is_valid or proof.value.analysis.is_valid
    target = make_graded_proof(CHAIN, CHAIN.problem("train", 0), random.Random(0), 1.0, dialect, "id")
    parsed = DefectVerifier(dialect).parse(text, target)
    assert parsed.format == float(parsed.is_valid) if dialect == "terse" else bool(parsed.format) == parsed.is_valid
    assert parsed.value.score is None or parsed.value.score in LEVELS


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_proof_is_judged_without_what_its_writer_thinks_of_it(dialect: Dialect) -> None:
    writer = ProofWriter(dialect)
    analysis = write_analysis(dialect, [True, False], 0.5, ["SECRET", "SECRET"])
    text = writer.write(["3+4=7", "7+1=8"], "8", analysis)
    parsed = writer.parse(text)
    last = "7+1=8\nThe final answer is \\boxed{8}." if dialect == "plain" else "7+1=8"
    assert parsed.is_valid and parsed.value.steps == ("3+4=7", last) and parsed.value.answer == "8"
    assert parsed.value.analysis.value.defects == (1,) and parsed.value.analysis.value.score == 0.5
    # The bare proof is what a plain solver writes.
    assert parsed.value.body == StepSolver(dialect).write(["3+4=7", "7+1=8"], "8") == writer.write(["3+4=7", "7+1=8"], "8")
    proof = Rollout.from_text("p", "generator", PROBLEM, text, parsed)
    shown = "".join(part.text for part in DefectVerifier(dialect).prompt(PROBLEM, proof))
    assert "7+1=8" in shown and "SECRET" not in shown
    # The meta-verifier sees both, the analysis after the proof.
    both = "".join(part.text for part in MetaVerifier(dialect).prompt(PROBLEM, extract_self_analysis(proof)))
    assert both.index("7+1=8") < both.index("SECRET") and both.count("SECRET") == (2 if dialect == "terse" else 1)
    assert not writer.parse(writer.write(["3+4=7"], "7")).is_valid  # without a self-analysis it earns nothing


def test_only_the_last_opening_behind_the_thought_begins_the_analysis_of_a_proof() -> None:
    draft, proof = "<think>\nEvaluation: not yet.\n</think>\n", "### Evaluation of the integral\n\nIt is 2.\n\nSo \\boxed{2}."
    parsed = ProofWriter("plain").parse(f"{draft}{proof}\n\n**Self-Evaluation:**\nNo issues.\nOverall score: \\boxed{{1}}")
    assert parsed.is_valid and parsed.value.body == draft + proof and parsed.value.analysis.value.score == 1.0
    assert ProofWriter("plain").parse("<think>\nEvaluation: Overall score: \\boxed{1}").value.remarks == ""


def test_a_meta_verifier_marks_the_remarks_of_an_analysis() -> None:
    proof = make_graded_proof(CHAIN, CHAIN.problem("train", 0), random.Random(0), 1.0, "terse", "id")
    text = write_analysis("terse", [True] * 5, 1.0, [""] * 5)
    analysis = make_analysis_rollout(proof, text, parse_analysis("terse", text, 5), "a")
    role = MetaVerifier("terse")
    assert role.parse("+\n" * 5 + "=~", analysis).value.score == 0.5
    assert not role.parse("+\n" * 4 + "=~", analysis).is_valid


# Measuring.


def test_precision_and_recall_of_defects_by_hand() -> None:
    found = defect_metrics(
        [
            Finding((0, 1), 0.0, {1: MISTAKE}),  # one right, one invented
            Finding((), 1.0, {2: GAP}),  # missed
            Finding((3,), 0.5, {3: GAP}),
            Finding((0,), 1.0, {}),  # a false alarm, not on a flawed proof
            Finding((), None, {0: MISTAKE}),  # unreadable: it found nothing
        ]
    )
    assert found["defect_precision"] == pytest.approx(2 / 3)
    assert found["defect_recall"] == pytest.approx(2 / 4)
    assert found["false_alarm_rate"] == 1.0
    assert found["score_accuracy"] == pytest.approx(3 / 5)
    assert found["analysis_quality"] == pytest.approx((0.5 + 1 + 1 + 0) / 4)
    assert found["analysis_unreadable"] == pytest.approx(1 / 5)
    assert defect_metrics([Finding((), 1.0, {0: MISTAKE})])["defect_precision"] is None


# The recipe.

OPTIONS = {"formats": 1, "n_score": 1, "n_quality": 1, "n_verifier": 1, "n_generator": 1, "auto_n": 2, "auto_m": 1, "audit": 3}


def settings(**options: Any) -> dict[str, Any]:
    batch = {"problems": 4, "rollouts": 4}
    return TINY | {"batch": batch, "options": OPTIONS | options, "keep": {"checkpoint_every": 1, "rollouts_every": 0}}


def test_the_phases_come_in_the_papers_order(tmp_path: Path) -> None:
    milonga.run("deepseek_math_v2", turns=3, out=tmp_path / "run", settings=settings(), quiet=True)
    rows = JsonLines(tmp_path / "run" / "metrics.jsonl").rows()[1:]
    assert [row["learner"] for row in rows] == ["generator", "verifier", "meta_verifier", "verifier", "generator", "verifier"]
    sources = [{key.removeprefix("flow/") for key in row if key.startswith("flow/")} for row in rows]
    assert sources[0] == {"demonstrations>generator"} and sources[1] == {"steps>verifier"}
    assert sources[2] == {"steps>meta_verifier"}
    assert sources[4] == {"verifier>generator", "meta_verifier>generator"}


def test_a_run_goes_on_in_the_same_bits(tmp_path: Path) -> None:
    """The iteration and the labels are in the state: a run that is cut into two ends as one that is not."""
    more = settings()
    milonga.run("deepseek_math_v2", turns=3, out=tmp_path / "whole", settings=more, quiet=True)
    whole = JsonLines(tmp_path / "whole" / "metrics.jsonl").rows()
    folder = tmp_path / "cut"
    milonga.run("deepseek_math_v2", turns=3, out=folder, settings=more, quiet=True)
    for path in sorted((folder / "checkpoints").iterdir())[1:]:  # back to the older of the two that are kept
        for file in sorted(path.iterdir()):
            file.unlink()
        path.rmdir()
    milonga.resume(folder, quiet=True)
    assert JsonLines(folder / "metrics.jsonl").rows() == whole
    for policy in ("generator", "verifier", "meta_verifier"):
        name = f"models/{policy}/model.safetensors"
        assert (folder / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_only_the_arm_without_meta_reward_pays_for_invented_defects() -> None:
    rewards = {}
    for meta in ("none", "oracle"):
        p = resolve([{"recipe": "deepseek_math_v2"}, settings(meta=meta)])
        proof = make_graded_proof(p.task, p.task.problem("train", 1), random.Random(1), 0.0, "terse", "proof")
        flaws = find_flaws(proof.problem, proof.parsed.value.steps, proof.parsed.value.answer).flaws
        count = len(proof.parsed.value.steps)
        p.recipe.state["labels"] = {"proof": 0.0}
        found = [
            as_verification(proof, [k not in flaws for k in range(count)]),
            as_verification(proof, [k in flaws for k in range(count)]),
        ]
        ctx: Any = type("Phase", (), {"phase": "analysis"})
        rewards[meta] = p.recipe.compute_verifier_rewards(ctx, found, {})  # type: ignore[attr-defined]
    assert rewards == {"none": [1.0, 1.0], "oracle": [1.0, 0.0]}


def test_the_exact_rubric_is_not_for_prose() -> None:
    for dialect, exact in (("terse", True), ("tagged", True), ("plain", False)):
        ctx: Any = SimpleNamespace(task=CHAIN, role=lambda _, dialect=dialect: ProofWriter(dialect))
        assert knows_flaws(ctx) is exact
    with pytest.raises(ConfigError, match="not for prose"):
        resolve([{"recipe": "deepseek_math_v2", "dialect": "plain"}, settings(meta="oracle")])


def test_a_proof_without_an_answer_is_not_among_the_wrong_ones() -> None:
    texts = {"right": "It is \\boxed{22}.", "wrong": "It is \\boxed{9}.", "open": "It follows."}
    graded = [(name, ProofWriter("plain").parse(text), Grade(name == "right")) for name, text in texts.items()]
    proofs = Rollouts(
        Rollout.from_text(name, "generator", PROBLEM, texts[name], parsed, grade) for name, parsed, grade in graded
    )
    scores = {"right": 1.0, "wrong": 0.0, "open": 1.0}
    said = [(proof, write_analysis("plain", [True], scores[proof.id], [""])) for proof in proofs]
    checks = Rollouts(make_analysis_rollout(p, text, parse_analysis("plain", text, 1), f"a/{p.id}") for p, text in said)
    replies = {"generator": proofs, "verifier": checks, "meta_verifier": Rollouts([])}
    ctx: Any = SimpleNamespace(ask=lambda agent, _: replies[agent], problems=lambda _: [])
    found = audit_by_answers(ctx, 3, 0.5)
    assert found["verifier/score_on_right"] == 1.0 and found["verifier/score_on_wrong"] == 0.0


def as_verification(proof: Rollout, marks: list[bool]) -> Rollout:
    text = write_analysis("terse", marks, 0.0, [""] * len(marks))
    return replace(make_analysis_rollout(proof, text, parse_analysis("terse", text, len(marks)), f"a{marks}"), origin="sampled")


def test_one_model_in_all_agents_is_refused() -> None:
    assert RECIPES.get("deepseek_math_v2").bindings["shared"] != ALLOWED
