"""Metrics by hand: ProcessBench's F1 and what it is worth, pass@k, calibration, votes, the hacking gap, best-of-k."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers import PROPERTY
from milonga.errors import DataError
from milonga.evals import make_bench, read_processbench
from milonga.evals.evaluate import (
    bench_metrics,
    fill_unjudged,
    gap_metrics,
    judge_metrics,
    pass_metrics,
    ranking_metrics,
    solver_metrics,
)
from milonga.evals.metrics import (
    bootstrap_interval,
    calibration_error,
    find_first_wrong,
    harmonic_mean,
    majority_vote,
    mean,
    pass_at_k,
    process_f1,
    trivial_f1,
)
from milonga.roles import StepSolver, StepVerifier
from milonga.tasks import make_task
from milonga.types import Grade, Parsed, Problem, Rollout, Rollouts, Solution, Verification

DATA = Path(__file__).parents[1] / ".." / "shared" / "data" / "processbench"


def solution(id: str, correct: bool | None, steps: tuple[bool, ...] | None, problem: str = "p") -> Rollout:
    count = len(steps or ())
    parsed = Parsed(Solution(tuple("s" for _ in range(count)), tuple(range(1, count + 1)), "a"), 1.0)
    return Rollout.from_text(id, "generator", Problem(problem, problem, "a"), "text", parsed, Grade(correct, steps))


def check(target: Rollout, steps: tuple[bool, ...] | None, final: bool | None) -> Rollout:
    parsed = Parsed(Verification(steps, final), 1.0, None if final is not None and steps is not None else "unreadable")
    rollout = Rollout.from_text(f"check/{target.id}", "verifier", target.problem, "text", parsed)
    rollout.targets = (target,)
    return rollout


def f1(predictions: list[int | None], labels: list[int]) -> float | None:
    return process_f1(predictions, labels)["f1"]


LABELS = [2, -1, 1, -1, 3]


def test_a_perfect_verifier_scores_one() -> None:
    assert process_f1(list(LABELS), LABELS) == {"f1": 1.0, "error_accuracy": 1.0, "right_accuracy": 1.0}


def test_always_right_and_always_the_first_step_score_nothing() -> None:
    assert f1([-1] * 5, LABELS) == 0.0
    assert f1([0] * 5, LABELS) == 0.0


def test_zero_over_zero_is_zero() -> None:
    assert harmonic_mean(0.0, 0.0) == 0.0
    assert f1([5, 0, 5, 0, 5], LABELS) == 0.0


def test_a_class_that_is_not_there_has_no_score() -> None:
    assert f1([1, 2], [1, 2]) is None
    assert f1([], []) is None


def test_four_items_by_hand() -> None:
    # Errors: one of two found at its place. Right ones: one of two left alone. F1 = 2 * 0.5 * 0.5 / 1.
    scores = process_f1([0, 2, -1, 1], [0, 1, -1, -1])
    assert scores == {"f1": 0.5, "error_accuracy": 0.5, "right_accuracy": 0.5}
    # Errors: 2 of 3. Right ones: 1 of 1.
    assert f1([0, 1, -1, -1], [0, 1, 2, -1]) == pytest.approx(2 * (2 / 3) / (2 / 3 + 1))


def test_unreadable_is_wrong_in_its_own_class() -> None:
    assert process_f1([None, 1, -1, -1], [0, 1, -1, -1]) == {
        "f1": pytest.approx(2 / 3),
        "error_accuracy": 0.5,
        "right_accuracy": 1.0,
    }
    assert process_f1([0, 1, None, -1], [0, 1, -1, -1])["right_accuracy"] == 0.5


@pytest.mark.parametrize(
    ("verdicts", "place"),
    [((False, True, True), 0), ((True, True, False), 2), ((True, True, True), -1), ((False, False), 0), (None, None)],
)
def test_the_first_wrong_step_counts_from_zero(verdicts: tuple[bool, ...] | None, place: int | None) -> None:
    assert find_first_wrong(verdicts) == place
    assert Grade(True, verdicts).first_error == place


def test_votes_take_the_majority_the_first_on_a_tie_and_leave_out_the_unreadable() -> None:
    assert majority_vote([1, 2, 2]) == 2
    assert majority_vote([3, 1, 1, 3]) == 3
    assert majority_vote([None, None, -1]) == -1
    assert majority_vote([None, None]) is None
    assert majority_vote([]) is None


@pytest.mark.parametrize("total", range(1, 7))
def test_pass_at_k_is_the_share_of_all_draws(total: int) -> None:
    for right, k in itertools.product(range(total + 1), range(1, total + 1)):
        outcomes = [i < right for i in range(total)]
        draws = [any(draw) for draw in itertools.combinations(outcomes, k)]
        assert pass_at_k(right, total, k) == pytest.approx(np.mean(draws))


def test_pass_at_k_needs_k_outputs() -> None:
    with pytest.raises(ValueError, match="at least 3"):
        pass_at_k(1, 2, 3)


def test_calibration_error_by_hand() -> None:
    # Two at 0.95 of which one is right: gap 0.45; two at 0.15 of which none is: gap 0.15; each bin has half.
    assert calibration_error([0.95, 0.95, 0.15, 0.15], [True, False, False, False]) == pytest.approx(0.3)
    assert calibration_error([1.0, 0.0], [True, False]) == 0.0
    assert calibration_error([], []) is None


@PROPERTY
@given(st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=1, max_size=20))
def test_calibration_error_is_a_share(pairs: list[tuple[float, bool]]) -> None:
    error = calibration_error([p for p, _ in pairs], [r for _, r in pairs])
    assert error is not None and 0 <= error <= 1


def test_means_leave_out_what_is_unknown() -> None:
    assert mean([1.0, float("nan"), 0.0]) == 0.5
    assert mean([float("nan")]) is None
    assert mean([]) is None


def test_the_hacking_gap_is_the_score_less_the_truth() -> None:
    solutions = [solution("a", True, (True,)), solution("b", False, (False,)), solution("c", False, (True, False))]
    unknown = solution("d", None, None)
    checks = [check(solutions[0], (True,), True), check(solutions[1], (True,), True), check(solutions[2], (True, True), True)]
    found = gap_metrics(Rollouts([*solutions, unknown]), Rollouts([*checks, check(unknown, None, True)]))
    assert found["hacking_gap"] == pytest.approx(1 - 1 / 3)
    assert found["step_hacking_gap"] == pytest.approx(1 - 2 / 4)
    honest = [check(s, s.grade.steps, s.correct == 1.0) for s in solutions if s.grade]
    assert gap_metrics(Rollouts(solutions), Rollouts(honest))["hacking_gap"] == pytest.approx(0.0)


def test_best_of_k_takes_the_final_verdict_then_the_share_of_steps() -> None:
    wrong, right = solution("a", False, (True, False), "p"), solution("b", True, (True, True), "p")
    picks_right = [check(wrong, (True, True), False), check(right, (False, False), True)]
    assert ranking_metrics(Rollouts([wrong, right]), Rollouts(picks_right))["best_of_k"] == 1.0
    by_steps = [check(wrong, (True, False), True), check(right, (True, True), True)]
    assert ranking_metrics(Rollouts([wrong, right]), Rollouts(by_steps))["best_of_k"] == 1.0
    unreadable = [check(wrong, (True, True), True), check(right, None, None)]
    assert ranking_metrics(Rollouts([wrong, right]), Rollouts(unreadable))["best_of_k"] == 0.0


def test_both_classes_are_reported_apart() -> None:
    right, wrong = solution("a", True, (True,)), solution("b", False, (False,))
    always_yes = [check(right, (True,), True), check(wrong, (True,), True), check(wrong, None, None)]
    found = judge_metrics(Rollouts(always_yes))
    assert (found["accuracy_on_right"], found["accuracy_on_wrong"], found["balanced_accuracy"]) == (1.0, 0.0, 0.5)
    assert found["positive_rate"] == found["step_positive_rate"] * 2 / 3 == pytest.approx(2 / 3)  # type: ignore[operator]
    assert (found["unparsed_rate"], found["step_accuracy"]) == (pytest.approx(1 / 3), 0.5)
    contradicts = [check(right, (True,), False), check(wrong, (False,), False)]
    assert judge_metrics(Rollouts(contradicts))["contradiction_rate"] == 0.5
    assert judge_metrics(Rollouts([check(right, (True,), True)]))["balanced_accuracy"] is None


def test_a_solution_is_sound_only_with_every_step_right() -> None:
    lucky, sound, unknown = solution("a", True, (True, False)), solution("b", True, (True,)), solution("c", None, None)
    found = solver_metrics(Rollouts([lucky, sound, unknown]))
    assert (found["accuracy"], found["sound_accuracy"], found["step_accuracy"]) == (1.0, 0.5, pytest.approx(2 / 3))
    groups = [solution("a", True, None, "p"), solution("b", False, None, "p"), solution("c", False, None, "q")]
    assert pass_metrics(Rollouts([*groups, unknown]), 2)["pass@2"] == 0.5


def test_bench_metrics_by_hand() -> None:
    hidden, plain, right = (
        solution("hidden", True, (True, False, True, False)),
        solution("plain", False, (False, True)),
        solution("right", True, (True, True)),
    )
    sampled = [
        *(check(hidden, (True, False, True, True), False), check(hidden, (True, True, False, True), False)),
        *(check(plain, (False, True), False), check(plain, None, None)),
        *(check(right, (True, True), True), check(right, (True, True), True)),
    ]
    greedy = [check(s, s.grade.steps, s.correct == 1.0) for s in (hidden, plain, right) if s.grade]
    found = bench_metrics(Rollouts(greedy), Rollouts(sampled))
    assert found["greedy_f1"] == 1.0
    assert found["f1"] == pytest.approx(harmonic_mean(0.5, 1.0))
    assert found["vote_f1"] == 1.0
    assert found["hidden_error_accuracy"] == 0.5
    assert found["index_shift"] == pytest.approx(1 / 3)
    assert found["calibration_error"] == pytest.approx(1 / 3)
    assert found["bench_invalid_rate"] == pytest.approx(1 / 6)
    assert found["trivial/error_modal"] == pytest.approx(harmonic_mean(0.5, 1.0))


def test_the_interval_holds_the_score_and_is_the_same_every_time() -> None:
    labels = [0, -1] * 20
    predictions: list[int | None] = [0, -1] * 15 + [1, 0] * 5
    items = [str(i) for i in range(40)]
    low, high = bootstrap_interval(predictions, labels, items, rounds=200)
    score = f1(predictions, labels)
    assert score is not None and low is not None and high is not None and 0 < low <= score <= high < 1
    assert bootstrap_interval(predictions, labels, items, rounds=200) == (low, high)
    # Asking about every item again in vain makes nothing surer; with one class alone there is no F1.
    assert bootstrap_interval(predictions * 8, labels * 8, items * 8, rounds=200) == (low, high)
    assert bootstrap_interval([0, 1], [0, 0], ["a", "b"]) == (None, None)


def test_trivial_verifiers_by_hand() -> None:
    # Modal error index 1 (2 of 3). Answers: one error hides behind a right answer.
    found = trivial_f1([1, 1, 2, -1], [False, True, False, True], [2, 3, 3, 4])
    assert found["error_modal"] == pytest.approx(harmonic_mean(2 / 3, 1))
    assert found["answer_modal"] == pytest.approx(harmonic_mean(1 / 3, 1))
    assert found["answer_last"] == pytest.approx(harmonic_mean(2 / 3, 1))
    q = np.linspace(0, 1, 100_001)[1:]
    assert found["no_knowledge"] == pytest.approx((2 * q * (1 - q) * 2 / 3 / (q + (1 - q) * 2 / 3)).max(), abs=1e-4)


@pytest.mark.parametrize(
    ("name", "count", "expected"),
    [("gsm8k", 400, (24.8, 44.4, 45.5, 13.5)), ("math", 1000, (22.1, 35.9, 39.7, 9.3))],
)
@pytest.mark.parametrize("dialect", ["terse", "tagged"])
def test_processbench_files_give_the_published_baselines(
    name: str, count: int, expected: tuple[float, ...], dialect: Any
) -> None:
    path = DATA / f"{name}.json"
    if not path.exists():
        pytest.skip(f"the public ProcessBench file {path} is not here")
    rollouts = read_processbench(path, StepSolver(dialect))
    items = json.loads(path.read_text())
    assert len(rollouts) == count
    labels = [t.grade.first_error for t in rollouts if t.grade is not None]
    assert labels == [item["label"] for item in items]
    assert [len(t.parsed.value.steps) for t in rollouts] == [len(item["steps"]) for item in items]
    answers = [t.correct == 1.0 for t in rollouts]
    found = trivial_f1([x for x in labels if x is not None], answers, [len(item["steps"]) for item in items])
    shown = [round(100 * found[key], 1) for key in ("no_knowledge", "answer_modal", "error_modal", "answer_last")]
    assert shown == list(expected)


GOOD = {"id": "x", "problem": "1+1", "steps": ["1", "2"], "label": 1, "final_answer_correct": False}


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("not json", "Expecting value"),
        ("[" * 100_000, "not JSON"),
        ("9" * 5000, "not JSON"),
        (json.dumps([GOOD | {"problem": "\ud800"}]), "a lone surrogate"),
        ("{}", "no list"),
        ("[]", "no list"),
        (json.dumps([GOOD, {k: v for k, v in GOOD.items() if k != "label"}]), "item 1: field 'label'"),
        (json.dumps([GOOD | {"label": "1"}]), "item 0: field 'label'"),
        (json.dumps([GOOD | {"steps": "12"}]), "item 0: field 'steps'"),
        (json.dumps([GOOD | {"label": 2}]), "item 0: label 2"),
        (json.dumps([GOOD | {"label": -2}]), "item 0: label -2"),
        (json.dumps(["text"]), "item 0: field 'problem'"),
        (json.dumps([GOOD | {"steps": ["a</step><step>b", "c"]}]), "item 0: its steps hold marks"),
    ],
)
def test_broken_processbench_files_say_where(tmp_path: Path, content: str, says: str) -> None:
    path = tmp_path / "bench.json"
    path.write_text(content)
    with pytest.raises(DataError) as caught:
        read_processbench(path, StepSolver("tagged"))
    assert says in str(caught.value) and "bench.json" in str(caught.value) and "\n" not in str(caught.value)


def test_a_processbench_file_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="does not exist"):
        read_processbench(tmp_path / "none.json", StepSolver("tagged"))
    with pytest.raises(DataError, match="it is a folder"):
        read_processbench(tmp_path, StepSolver("tagged"))


@pytest.mark.parametrize("label", [0, 1, -1])
def test_labels_at_both_ends_and_none_survive_parsed(tmp_path: Path, label: int) -> None:
    path = tmp_path / "bench.json"
    path.write_text(json.dumps([GOOD | {"label": label, "steps": ["# a\nb", "c"]}]))
    (rollout,) = read_processbench(path, StepSolver("terse"))
    assert rollout.grade is not None and rollout.grade.first_error == label
    assert len(rollout.parsed.value.steps) == 2


def test_our_own_bench_has_both_classes_and_hidden_errors() -> None:
    bench = make_bench(make_task({"name": "chain", "ops": 3}), StepSolver("terse"), 40, "dev")
    labels = [t.grade.first_error for t in bench if t.grade is not None]
    assert labels.count(-1) == 20
    assert {label for label in labels if label != -1} == {0, 1, 2}
    assert sum(t.correct == 1.0 for t in bench) > 20
    again = make_bench(make_task({"name": "chain", "ops": 3}), StepSolver("terse"), 40, "dev")
    assert [t.text for t in again] == [t.text for t in bench]


def test_processbench_by_hand(tmp_path: Path) -> None:
    """Errors at 0 and 2, two solutions without one. Found, named too early, cleared, and not read at all."""
    items = [
        GOOD | {"id": f"i{n}", "steps": ["a", "b", "c"], "label": label, "final_answer_correct": label == -1}
        for n, label in enumerate([0, 2, -1, -1])
    ]
    path = tmp_path / "bench.json"
    path.write_text(json.dumps(items))
    bench, judge = Rollouts(read_processbench(path, StepSolver("tagged"))), StepVerifier("tagged")
    said = [[False, True, True], [True, False, False], [True, True, True]]
    texts = [judge.write(verdicts, all(verdicts)) for verdicts in said]
    checks = Rollouts(
        replace(Rollout.from_text(f"c{n}", "verifier", item.problem, text, judge.parse(text, item)), targets=(item,))
        for n, (item, text) in enumerate(zip(bench, texts, strict=False))
    )
    whole = fill_unjudged(checks, bench, 1)
    found = bench_metrics(whole, whole)
    assert (found["error_accuracy"], found["right_accuracy"], found["f1"]) == (0.5, 0.5, 0.5)
    assert found["detection_f1"] == pytest.approx(harmonic_mean(1.0, 0.5)) and found["bench_invalid_rate"] == 0.25
    assert found["index_shift"] == -0.5
    assert found["trivial/error_modal"] == pytest.approx(harmonic_mean(0.5, 1.0)) == found["trivial/answer_modal"]
    assert found["trivial/answer_last"] == pytest.approx(harmonic_mean(0.5, 1.0))


@pytest.mark.parametrize(
    ("last", "answer"),
    [
        ("So $x = \\boxed{\\frac{1}{2}}$, for all 3 cases.", "\\frac{1}{2}"),  # the box, not the last number
        ("It was \\boxed{4}, no: \\boxed{5}.", "5"),
        ("There are 12 of them.", None),
    ],
)
def test_no_answer_is_made_up_for_somebody_elses_solution(tmp_path: Path, last: str, answer: str | None) -> None:
    path = tmp_path / "bench.json"
    path.write_text(json.dumps([GOOD | {"steps": ["First \\boxed{7}.", last]}]))
    (tagged,) = read_processbench(path, StepSolver("tagged"))
    assert tagged.solution.answer == answer and len(tagged.solution.steps) == 2
    assert ("<answer>" in tagged.text) == (answer is not None)
    (plain,) = read_processbench(path, StepSolver("plain"))
    assert plain.solution.answer is None and plain.text == f"First \\boxed{{7}}.\n\n{last}"
    (terse,) = read_processbench(path, StepSolver("terse"))
    assert terse.solution.answer == (answer or "12"), "a terse step ends in its result"
