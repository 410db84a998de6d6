"""What the suites estimate, by hand, in closed form and against every subset there is."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers import PROPERTY
from milonga.evals import subsets as module
from milonga.evals.metrics import (
    class_interval,
    find_best_threshold,
    find_first_below,
    harmonic_mean,
    harmonic_means,
    mean_interval,
    pass_at_k,
    process_f1,
    trivial_f1,
)
from milonga.evals.reliability import bin_by_confidence, brier_limit, brier_score, calibration_floor, wilson_interval
from milonga.evals.subsets import best_of_n_accuracy, enumerate_subsets, list_subset_sizes, vote_accuracy

ranked = st.lists(st.tuples(st.sampled_from([0.0, 0.5, 1.0, 1.5]), st.booleans()), min_size=1, max_size=7)
voted = st.lists(st.tuples(st.sampled_from("abc") | st.none(), st.sampled_from([0.0, 0.25, 1.0])), min_size=1, max_size=7)


def every(total: int, n: int) -> list[tuple[int, ...]]:
    return list(itertools.combinations(range(total), n))


def test_sizes_double_up_to_the_largest() -> None:
    assert [list_subset_sizes(n) for n in (1, 2, 6, 8)] == [[1], [1, 2], [1, 2, 4, 6], [1, 2, 4, 8]]


@PROPERTY
@given(ranked)
def test_best_of_n_is_the_mean_over_all_subsets_and_fair_ties(solutions: list[tuple[float, bool]]) -> None:
    ranks, right = [r for r, _ in solutions], [float(c) for _, c in solutions]
    for n in range(1, len(ranks) + 1):
        means = []
        for chosen in every(len(ranks), n):
            top = max(ranks[i] for i in chosen)
            means.append(np.mean([right[i] for i in chosen if ranks[i] == top]))
        assert best_of_n_accuracy(ranks, right, n) == pytest.approx(np.mean(means))


@PROPERTY
@given(st.lists(st.booleans(), min_size=1, max_size=12))
def test_best_of_n_by_the_truth_is_pass_at_n(right: list[bool]) -> None:
    truth = [float(r) for r in right]
    for n in range(1, len(truth) + 1):
        assert best_of_n_accuracy(truth, truth, n) == pytest.approx(pass_at_k(sum(right), len(right), n), abs=1e-12)


@PROPERTY
@given(ranked)
def test_one_solution_leaves_nothing_to_choose(solutions: list[tuple[float, bool]]) -> None:
    ranks, right = [r for r, _ in solutions], [float(c) for _, c in solutions]
    plain = pytest.approx(np.mean(right))
    answers = [str(i) for i in range(len(ranks))]
    assert best_of_n_accuracy(ranks, right, 1) == plain == vote_accuracy(answers, right, ranks, 1)
    # A judge that says the same of everything chooses by chance, however many there are.
    assert best_of_n_accuracy([0.5] * len(ranks), right, len(ranks)) == plain


@PROPERTY
@given(voted)
def test_votes_are_the_mean_over_all_subsets_and_fair_ties(solutions: list[tuple[str | None, float]]) -> None:
    answers, weights = [a for a, _ in solutions], [w for _, w in solutions]
    right = [float(a == "a") for a in answers]
    for n in range(1, len(answers) + 1):
        means = []
        for chosen in every(len(answers), n):
            behind: dict[str, float] = defaultdict(float)
            for i in chosen:
                if (answer := answers[i]) is not None:
                    behind[answer] += weights[i]
            winners = [a for a, w in behind.items() if w == max(behind.values())]
            means.append(np.mean([a == "a" for a in winners]) if winners else 0.0)
        assert vote_accuracy(answers, right, weights, n) == pytest.approx(np.mean(means))


@PROPERTY
@given(ranked)
def test_a_weighted_vote_among_different_answers_is_best_of_n(solutions: list[tuple[float, bool]]) -> None:
    ranks, right = [r for r, _ in solutions], [float(c) for _, c in solutions]
    answers = [str(i) for i in range(len(ranks))]
    for n in range(1, len(ranks) + 1):
        assert vote_accuracy(answers, right, ranks, n) == pytest.approx(best_of_n_accuracy(ranks, right, n))


def test_votes_by_hand() -> None:
    # Of three solutions two say a (right), one says b. Pairs: aa, ab, ab: 1, 1/2, 1/2.
    assert vote_accuracy(["a", "a", "b"], [1, 1, 0], [1, 1, 1], 2) == pytest.approx(2 / 3)
    assert vote_accuracy(["a", "a", "b"], [1, 1, 0], [1, 1, 1], 3) == 1.0
    assert vote_accuracy(["a", "a", "b"], [1, 1, 0], [0.2, 0.2, 0.5], 3) == 0.0
    assert vote_accuracy([None, None], [0, 0], [1, 1], 2) == 0.0
    # Three tenths are one sum, in whatever order they are added.
    assert vote_accuracy(["a", "a", "a", "b"], [1, 1, 1, 0], [0.1, 0.1, 0.1, 0.3], 4) == 0.5


def test_beyond_the_limit_subsets_are_drawn_evenly(monkeypatch: pytest.MonkeyPatch) -> None:
    answers, right = ["a"] * 5 + ["b"] * 3 + [None] * 2, [1.0] * 5 + [0.0] * 5
    whole = vote_accuracy(answers, right, [1.0] * 10, 4)
    assert len(enumerate_subsets(10, 4)) == math.comb(10, 4)
    monkeypatch.setattr(module, "MOST_SUBSETS", 200)
    drawn = enumerate_subsets(10, 4)
    assert drawn.shape == (200, 10) and (drawn.sum(1) == 4).all()
    assert drawn.mean(0) == pytest.approx(0.4, abs=0.12)  # four standard errors
    assert vote_accuracy(answers, right, [1.0] * 10, 4) == pytest.approx(whole, abs=0.1)
    with pytest.raises(ValueError, match="cannot choose 3 of 2"):
        enumerate_subsets(2, 3)


def test_the_best_threshold_by_hand() -> None:
    # Error at 1 for tau in (0.4, 0.9]; error at 0 for tau above 0.3; cleared up to 0.6 and 0.5.
    scores = [(0.9, 0.4), (0.3, 0.8), (0.7, 0.6), (0.5, 0.8)]
    labels = [1, 0, -1, -1]
    assert find_best_threshold(scores, labels) == 0.5
    assert [find_first_below(s, 0.5) for s in scores] == labels
    assert find_best_threshold([(0.5,)], [-1]) is None and find_best_threshold([None, None], [0, -1]) is None
    assert find_first_below(None, 0.5) is None and find_first_below((0.5, 0.5), 0.5) == -1


steps = st.lists(st.sampled_from([0.1, 0.2, 0.5, 0.8]), min_size=1, max_size=4)


@PROPERTY
@given(st.lists(st.tuples(steps, st.integers(-1, 3)), min_size=2, max_size=8))
def test_no_threshold_is_better_than_the_best(items: list[tuple[list[float], int]]) -> None:
    scores = [tuple(s) for s, _ in items]
    labels = [min(label, len(s) - 1) for s, label in items]
    found = find_best_threshold(scores, labels)
    if found is None:
        assert all(label == -1 for label in labels) or -1 not in labels
        return

    def f1(tau: float) -> float:
        return process_f1([find_first_below(s, tau) for s in scores], labels)["f1"] or 0.0

    assert f1(found) == pytest.approx(max(f1(tau) for tau in (0, 0.1, 0.15, 0.2, 0.3, 0.5, 0.6, 0.8, 0.9)))


@PROPERTY
@given(st.lists(st.integers(-1, 3), min_size=2, max_size=12))
def test_knowing_nothing_has_a_closed_form(labels: list[int]) -> None:
    errors = [label for label in labels if label != -1]
    found = trivial_f1(labels, [True] * len(labels), [4] * len(labels))["no_knowledge"]
    if not errors or len(errors) == len(labels):
        assert found == 0
        return
    hit = max(errors.count(label) for label in errors) / len(errors)
    assert found == pytest.approx(max(harmonic_mean(q, (1 - q) * hit) for q in np.linspace(0, 1, 2001)), abs=1e-5)


def test_the_interval_of_two_classes_draws_whole_items() -> None:
    def balanced(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return (a + b) / 2

    hits, first = [True, True, False, True] * 6, [True, True, False, False] * 6
    items = [str(i // 4) for i in range(24)]
    # Every item holds the same: whichever are drawn, the shares are 1 and 1/2.
    assert class_interval(hits, first, items, balanced) == (0.75, 0.75)
    low, high = class_interval(hits, first, [str(i) for i in range(24)], balanced)
    assert low is not None and high is not None and low < 0.75 < high
    assert class_interval([True], [True], ["a"], harmonic_means) == (None, None)


def test_the_interval_of_a_mean_covers_it() -> None:
    low, high = mean_interval([0.0, 1.0] * 50)
    assert low is not None and high is not None
    # Standard error 0.05: about 0.4 to 0.6.
    assert low == pytest.approx(0.4, abs=0.03) and high == pytest.approx(0.6, abs=0.03)
    assert mean_interval([0.5] * 5) == (0.5, 0.5) and mean_interval([1.0]) == (None, None)


def test_bins_by_hand() -> None:
    found = bin_by_confidence([0.0, 0.05, 0.95, 1.0], [False, True, True, True])
    assert [(b.low, b.high, b.count) for b in found] == [(0.0, 0.1, 2), (0.9, 1.0, 2)]
    assert [(b.confidence, b.share) for b in found] == [(0.025, 0.5), (0.975, 1.0)]
    assert found[1].share_high == 1.0 and found[1].share_low < 0.5, "two of two prove little"
    assert bin_by_confidence([], []) == []


def test_the_interval_of_a_share_by_hand() -> None:
    assert wilson_interval(5, 10) == (pytest.approx(0.2366, abs=1e-3), pytest.approx(0.7634, abs=1e-3))
    assert wilson_interval(0, 10) == (0.0, pytest.approx(0.2775, abs=1e-3))


def test_brier_by_hand() -> None:
    assert brier_score([1.0, 0.0, 0.5], [True, True, False]) == pytest.approx((0 + 1 + 0.25) / 3)
    assert brier_score([], []) is None


def test_the_brier_score_of_endless_checks_is_estimated_without_bias() -> None:
    """Over all outcomes of three verdicts, each right with chance p, the mean estimate is (p - y)^2; the plain one is more."""
    p, right = 0.3, True
    mean = plain = 0.0
    for draw in itertools.product([0.0, 1.0], repeat=3):
        chance = math.prod(p if verdict else 1 - p for verdict in draw)
        mean += chance * (brier_limit([draw], [right]) or 0.0)
        plain += chance * (brier_score([float(np.mean(draw))], [right]) or 0.0)
    assert mean == pytest.approx((p - 1) ** 2)
    assert plain == pytest.approx((p - 1) ** 2 + p * (1 - p) / 3)
    assert brier_limit([[0.5]], [True]) is None


def test_a_calibrated_judge_has_an_error_too_where_there_is_little_to_count() -> None:
    few, many = calibration_floor([0.5] * 10), calibration_floor([0.5] * 1000)
    assert few is not None and many is not None
    # E|X/n - 1/2| of a binomial is about sqrt(1 / (2 pi n)).
    assert few == pytest.approx(math.sqrt(1 / (2 * math.pi * 10)), abs=0.02)
    assert many == pytest.approx(math.sqrt(1 / (2 * math.pi * 1000)), abs=0.003)
    assert calibration_floor([1.0, 0.0]) == 0.0 and calibration_floor([]) is None
