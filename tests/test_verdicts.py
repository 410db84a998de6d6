"""A verifier measured as it is used, by hand: soft verdicts, their order and calibration, step rates, whom it chooses."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers import PROPERTY
from milonga.evals.evaluate import judge_metrics
from milonga.evals.metrics import (
    calibration_error,
    cut_at_first_error,
    order_accuracy,
    order_interval,
    process_f1,
    step_rates,
    trivial_f1,
)
from milonga.evals.reliability import brier_score
from milonga.evals.verdicts import choice_metrics, get_soft_steps, get_soft_verdict, soft_metrics
from milonga.roles import StepVerifier
from milonga.roles.base import Dialect
from milonga.types import Grade, Parsed, Problem, Rollout, Rollouts, Segment, Solution, Verification

LABELLED = st.lists(st.tuples(st.integers(-8, 8), st.booleans()), min_size=1, max_size=30)


def solution(
    id: str, correct: bool | None, steps: tuple[bool, ...] | None = None, problem: str = "p", answer: str = "a"
) -> Rollout:
    count = len(steps or (True,))
    parsed = Parsed(Solution(tuple("s" for _ in range(count)), tuple(range(1, count + 1)), answer), 1.0)
    return Rollout.from_text(id, "generator", Problem(problem, problem, "a"), "text", parsed, Grade(correct, steps))


def check(target: Rollout, value: Verification) -> Rollout:
    rollout = Rollout.from_text(f"check/{target.id}", "verifier", target.problem, "text", Parsed(value, 1.0))
    return replace(rollout, targets=(target,))


def scored(target: Rollout, score: float) -> Rollout:
    return check(target, Verification(None, score >= 0.5, score=score))


# -- AUROC, calibration ----------------------------------------------------------------------------


def test_the_order_by_hand_with_ties_as_halves() -> None:
    # Right: 0.9 and 0.5. Wrong: 0.5 and 0.1. Of four pairs three are in order, and one is a tie.
    assert order_accuracy([0.9, 0.5, 0.5, 0.1], [1, 1, 0, 0]) == 3.5 / 4
    assert order_accuracy([0.1, 0.9], [1, 0]) == 0.0
    assert order_accuracy([0.3, 0.3, 0.3], [1, 0, 0]) == 0.5
    assert order_accuracy([0.1, 0.9], [1, 1]) is None
    assert order_accuracy([], []) is None


@PROPERTY
@given(LABELLED)
def test_the_order_is_that_of_all_pairs_and_no_monotone_map_changes_it(items: list[tuple[int, bool]]) -> None:
    scores, right = [s for s, _ in items], [float(r) for _, r in items]
    pairs = [(a, b) for (a, yes), (b, no) in itertools.product(items, items) if yes and not no]
    expected = np.mean([1.0 if a > b else 0.5 if a == b else 0.0 for a, b in pairs]) if pairs else None
    found = order_accuracy(scores, right)
    assert found == (None if expected is None else pytest.approx(expected))
    assert order_accuracy([1 / (1 + math.exp(-s)) for s in scores], right) == found
    assert order_accuracy([s**3 for s in scores], right) == found
    if found is not None:
        assert order_accuracy([-s for s in scores], right) == pytest.approx(1 - found)


def test_a_score_that_is_not_known_wins_nothing() -> None:
    assert order_accuracy([float("nan"), 0.9, 0.1], [1, 1, 0]) == 0.5


@PROPERTY
@given(LABELLED)
def test_the_interval_of_the_order_holds_it(items: list[tuple[int, bool]]) -> None:
    scores, right, names = [s / 8 for s, _ in items], [r for _, r in items], [str(k // 2) for k in range(len(items))]
    low, high = order_interval(scores, right, names, rounds=50)
    assert (low is None) == (high is None)
    if all(right) or not any(right):
        assert low is None
    elif low is not None and high is not None:
        assert 0 <= low <= high <= 1


def test_the_interval_of_one_item_has_no_width_and_that_of_a_perfect_order_ends_at_one() -> None:
    assert order_interval([0.9, 0.5, 0.5, 0.1], [True, True, False, False], ["a"] * 4) == (0.875, 0.875)
    low, high = order_interval([0.9, 0.8, 0.2, 0.1], [True, True, False, False], ["a", "b", "c", "d"])
    assert (low, high) == (1.0, 1.0)


@PROPERTY
@given(st.integers(0, 20), st.integers(1, 20))
def test_a_calibrated_constant_has_no_calibration_error_and_the_brier_score_of_its_rate(right: int, more: int) -> None:
    total = right + more
    said, true = [right / total] * total, [True] * right + [False] * more
    assert calibration_error(said, true) == pytest.approx(0.0, abs=1e-12)
    assert brier_score(said, true) == pytest.approx(right / total * (1 - right / total))


def test_soft_metrics_by_hand() -> None:
    right, wrong, unknown = solution("a", True), solution("b", False), solution("c", None)
    checks = [scored(right, 0.9), scored(wrong, 0.6), scored(unknown, 1.0), check(wrong, Verification(None, None))]
    found = soft_metrics(Rollouts(checks))
    # |0.9 - 1| and |0.6 - 0|, half of the weight each; squares of the same.
    assert (found["soft_auroc"], found["soft_judged"]) == (1.0, 2.0)
    assert found["soft_calibration_error"] == pytest.approx(0.35)
    assert found["soft_brier"] == pytest.approx((0.01 + 0.36) / 2)
    alone = soft_metrics(Rollouts(checks[:1]))
    assert alone["soft_auroc"] is None and alone["soft_brier"] == pytest.approx(0.01)
    assert soft_metrics(Rollouts([])) == dict.fromkeys(found) | {"soft_judged": 0.0}


def test_a_soft_verdict_is_the_score_or_that_of_the_words_or_the_verdict_itself() -> None:
    assert get_soft_verdict(Verification(None, True, score=0.3, soft=0.7)) == 0.3
    assert get_soft_verdict(Verification((True,), True, soft=0.7)) == 0.7
    assert (get_soft_verdict(Verification(None, True)), get_soft_verdict(Verification(None, False))) == (1.0, 0.0)
    assert get_soft_verdict(Verification((True,), None)) is None
    assert get_soft_steps(Verification((True, False), False)) == (1.0, 0.0)
    assert get_soft_steps(Verification((True, False), False, soft_steps=(0.8, 0.4))) == (0.8, 0.4)
    assert get_soft_steps(Verification(None, False, soft_steps=None)) is None


# -- Soft verdicts from the words that were sampled ------------------------------------------------


def sample(role: StepVerifier, target: Rollout, text: str, chances: dict[int, float]) -> Rollout:
    """A verification of one character a token; `chances` are the probabilities of the tokens at some places, the rest sure."""
    ids = np.arange(len(text))
    logprobs = np.array([math.log(chances.get(at, 1.0)) for at in range(len(text))])
    made = Segment("verifier", 0, len(text), "verifier", 0, True)
    parsed = role.parse(text, target)
    rollout = Rollout("check", "verifier", target.problem, ids, (made,), logprobs, text, parsed, targets=(target,))
    rollout.chars = np.arange(1, len(text) + 1)
    return replace(rollout, parsed=role.soften(rollout))


def test_the_soft_verdict_of_a_terse_check_is_the_chance_that_all_steps_are_right() -> None:
    target = solution("a", False, (True, False))
    found = sample(StepVerifier("terse"), target, "12+\n36-\n=-", {2: 0.9, 6: 0.7}).verification
    assert found.soft_steps == pytest.approx((0.9, 0.3)) and found.soft == pytest.approx(0.27)
    assert (found.score, found.step_scores) == (None, None), "nothing is ranked by it"
    assert found.rank == Verification((True, False), False).rank
    # The steps cannot be told: the final mark is all there is.
    alone = sample(StepVerifier("terse"), target, "=-", {1: 0.8}).verification
    assert alone.soft_steps is None and alone.soft == pytest.approx(0.2)


def test_the_soft_verdict_of_a_tagged_check_is_looked_up_at_its_boxed_words() -> None:
    role, target = StepVerifier("tagged"), solution("a", False, (True, False))
    text = role.write((True, False), False, ("fine", "no"))
    at = [place + len("\\boxed{") for place in range(len(text)) if text.startswith("\\boxed{", place)]
    found = sample(role, target, text, {at[0]: 0.9, at[1]: 0.7, at[2]: 0.6}).verification
    assert found.soft_steps == pytest.approx((0.9, 0.3)) and found.soft == pytest.approx(0.27)


@pytest.mark.parametrize(
    ("dialect", "text"),
    [("terse", "12+\n36\n"), ("terse", "nothing"), ("tagged", "nothing"), ("tagged", "\\boxed{PERHAPS}")],
)
def test_what_cannot_be_read_has_no_soft_verdict(dialect: Dialect, text: str) -> None:
    found = sample(StepVerifier(dialect), solution("a", False, (True, False)), text, dict.fromkeys(range(len(text)), 0.8))
    assert found.verification.soft_steps is None and get_soft_verdict(found.verification) is None


def test_where_a_step_cannot_be_read_the_final_mark_is_all_there_is() -> None:
    found = sample(StepVerifier("terse"), solution("a", False, (True, False)), "12+\n36\n=-", {2: 0.9, 8: 0.8}).verification
    assert found.soft_steps is None and get_soft_verdict(found) == pytest.approx(0.2)


# -- Steps -----------------------------------------------------------------------------------------


def test_step_rates_by_hand_end_at_the_first_error() -> None:
    judged = [
        ((True, False, True), (True, True, True)),  # a false alarm in three right steps
        ((True, False, False), (True, False, True)),  # found; what is after it counts in neither
        ((True, True), (True, False, True)),  # missed
        ((False,), (True, False)),  # a false alarm, after which it stopped: the error was not reached
    ]
    assert step_rates(judged) == {
        "step_false_alarm_rate": pytest.approx(2 / 6),
        "step_detection_rate": 0.5,
        "judged_right_steps": 6.0,
        "judged_wrong_steps": 2.0,
    }
    assert step_rates([((True,), (True,))])["step_detection_rate"] is None
    assert step_rates([])["step_false_alarm_rate"] is None
    assert list(cut_at_first_error((True, False, True, False))) == [True, False]


@PROPERTY
@given(st.lists(st.lists(st.booleans(), min_size=1, max_size=6), min_size=1, max_size=8))
def test_step_rates_of_the_truth_and_of_its_opposite(truths: list[list[bool]]) -> None:
    errors, rights = any(False in truth for truth in truths), any(truth[0] for truth in truths)
    honest = step_rates([(truth, truth) for truth in truths])
    assert honest["step_detection_rate"] == (1.0 if errors else None)
    assert honest["step_false_alarm_rate"] == (0.0 if rights else None)
    liar = step_rates([([not step for step in truth], truth) for truth in truths])
    assert liar["step_detection_rate"] == (0.0 if errors else None)
    assert liar["step_false_alarm_rate"] == (1.0 if rights else None)


def test_a_judge_is_measured_with_counts_and_the_share_that_is_right() -> None:
    right, wrong = solution("a", True, (True, True)), solution("b", False, (True, False))
    checks = [check(right, Verification((True, False), False)), check(wrong, Verification((True, False), False))]
    found = judge_metrics(Rollouts([*checks, check(wrong, Verification(None, None))]))
    assert (found["judged_right"], found["judged_wrong"], found["share_right"]) == (1.0, 2.0, pytest.approx(1 / 3))
    assert (found["step_false_alarm_rate"], found["step_detection_rate"]) == (pytest.approx(1 / 3), 1.0)
    assert found["soft_judged"] == 2.0 and found["soft_auroc"] == 0.5


# -- Trivial verifiers -----------------------------------------------------------------------------


@PROPERTY
@given(st.lists(st.integers(-1, 4), min_size=1, max_size=12), st.integers(-1, 4))
def test_every_constant_guess_has_no_f1_where_there_are_both_classes(labels: list[int], guess: int) -> None:
    found = trivial_f1(labels, [True] * len(labels), [5] * len(labels))
    assert (found["all_right"], found["first_wrong"]) == (0.0, 0.0)
    constant = process_f1([guess] * len(labels), labels)["f1"]
    assert constant == (0.0 if -1 in labels and set(labels) != {-1} else None)


# -- The choice among N ----------------------------------------------------------------------------


def test_the_choice_among_three_by_hand() -> None:
    group = [solution("a", True, answer="7"), solution("b", False, answer="9"), solution("c", False, answer="9")]
    best = [scored(group[0], 0.6), scored(group[1], 0.2), scored(group[2], 0.3)]
    found = choice_metrics(Rollouts(group), Rollouts(best))
    assert found == {
        "choice/mean": pytest.approx(1 / 3),
        "choice/verifier": 1.0,
        "choice/majority": 0.0,
        "choice/pass": 1.0,
        "choice/verifier_minus_majority": 1.0,
        "choice/problems": 1.0,
    }
    tie = choice_metrics(Rollouts(group), Rollouts([scored(group[0], 0.6), scored(group[1], 0.6), scored(group[2], 0.3)]))
    assert tie["choice/verifier"] == 0.5
    unread = [scored(group[0], 0.6), check(group[1], Verification(None, None)), scored(group[2], 0.7)]
    assert choice_metrics(Rollouts(group), Rollouts(unread))["choice/verifier"] == 0.0


def test_what_cannot_be_read_is_chosen_after_what_is_called_wrong() -> None:
    group = [solution("a", True), solution("b", False)]
    wrong, nothing = [check(t, Verification(None, False)) for t in group], [check(t, Verification(None, None)) for t in group]

    def choose(*checks: Rollout) -> float | None:
        return choice_metrics(Rollouts(group), Rollouts(checks))["choice/verifier"]

    assert (choose(wrong[0], nothing[1]), choose(nothing[0], wrong[1])) == (1.0, 0.0)
    assert choose(wrong[0], nothing[0], nothing[1], nothing[1]) == 1.0, "one of two checks can be read"
    assert choose(*nothing) == 0.5


def test_a_problem_whose_samples_are_not_all_graded_and_judged_is_left_out() -> None:
    known, unknown = [solution("a", True), solution("b", False)], solution("c", None)
    checks = [scored(t, 0.5) for t in (*known, unknown)]
    assert choice_metrics(Rollouts([*known, unknown]), Rollouts(checks))["choice/problems"] == 0.0
    assert choice_metrics(Rollouts(known), Rollouts(checks[:1]))["choice/verifier"] is None
    assert choice_metrics(Rollouts(known), Rollouts(checks))["choice/problems"] == 1.0


@PROPERTY
@given(st.lists(st.tuples(st.integers(0, 3), st.booleans(), st.integers(0, 3), st.integers(0, 2)), min_size=1, max_size=12))
def test_the_choice_is_never_better_than_a_perfect_one(items: list[tuple[int, bool, int, int]]) -> None:
    solutions = [
        solution(str(k), right, problem=str(problem), answer=f"{answer}{right}")
        for k, (problem, right, _, answer) in enumerate(items)
    ]
    checks = [scored(t, score / 3) for t, (_, _, score, _) in zip(solutions, items, strict=True)]
    found = {key: value or 0.0 for key, value in choice_metrics(Rollouts(solutions), Rollouts(checks)).items()}
    worst = {t.problem.id: min(o.correct for o in solutions if o.problem.id == t.problem.id) for t in solutions}
    lowest, highest = np.mean(list(worst.values())), found["choice/pass"] + 1e-12
    for name in ("mean", "verifier", "majority"):
        assert lowest - 1e-12 <= found[f"choice/{name}"] <= highest
    assert found["choice/verifier_minus_majority"] == pytest.approx(found["choice/verifier"] - found["choice/majority"])
    perfect = [scored(t, t.correct) for t in solutions]
    assert choice_metrics(Rollouts(solutions), Rollouts(perfect))["choice/verifier"] == pytest.approx(found["choice/pass"])
