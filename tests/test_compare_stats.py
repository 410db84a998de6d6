"""The statistics of a comparison, against numbers worked out by hand and against tables."""

from __future__ import annotations

import math

import numpy as np
import pytest

from milonga.comparing import stats


@pytest.mark.parametrize(
    ("probability", "df", "table"),
    [(0.975, 1, 12.706), (0.975, 4, 2.776), (0.975, 10, 2.228), (0.8, 4, 0.941), (0.995, 2, 9.925), (0.95, 30, 1.697)],
)
def test_student_quantiles_are_those_of_the_tables(probability: float, df: int, table: float) -> None:
    assert stats.student_quantile(probability, df) == pytest.approx(table, abs=5e-4)
    assert stats.student_quantile(1 - probability, df) == pytest.approx(-table, abs=5e-4)


def test_student_with_many_degrees_of_freedom_is_the_normal() -> None:
    assert stats.student_quantile(0.975, 10**6) == pytest.approx(1.959964, abs=1e-4)
    assert stats.student_quantile(0.5, 7) == pytest.approx(0.0, abs=1e-12)


def test_student_cdf_in_closed_form() -> None:
    """One degree of freedom is the Cauchy distribution; two have P = 1/2 + t / (2 sqrt(2 + t^2))."""
    for t in (-30.0, -2.0, -0.1, 0.0, 0.5, 3.0, 100.0):
        assert stats.student_cdf(t, 1) == pytest.approx(0.5 + math.atan(t) / math.pi, abs=1e-12)
        assert stats.student_cdf(t, 2) == pytest.approx(0.5 + t / (2 * math.sqrt(2 + t * t)), abs=1e-12)


def test_incomplete_beta_in_closed_form() -> None:
    """I_x(2, 3) = 6x^2 - 8x^3 + 3x^4; and the ends."""
    for x in (0.05, 0.4, 0.7, 0.95):
        assert stats.incomplete_beta(2, 3, x) == pytest.approx(6 * x**2 - 8 * x**3 + 3 * x**4, abs=1e-12)
    assert stats.incomplete_beta(2, 3, 0.0) == 0.0
    assert stats.incomplete_beta(2, 3, 1.0) == 1.0


@pytest.mark.parametrize("probability", [0.0, 1.0, -0.1])
def test_impossible_quantiles_are_refused(probability: float) -> None:
    with pytest.raises(ValueError, match="no quantile"):
        stats.student_quantile(probability, 4)


def test_t_interval_by_hand() -> None:
    """Mean 3, variance 2.5, five values: 3 +- 2.776445 * sqrt(0.5)."""
    found = stats.t_interval([1.0, 2.0, 3.0, 4.0, 5.0])
    assert found == pytest.approx((3 - 1.963243, 3 + 1.963243), abs=1e-5)


def test_t_test_by_hand() -> None:
    """t = 3 / sqrt(0.5) = 4.2426 with 4 degrees of freedom; with two values the closed form of the Cauchy."""
    assert stats.t_test([1.0, 2.0, 3.0, 4.0, 5.0]) == pytest.approx(0.013236, abs=1e-5)
    assert stats.t_test([0.1, 0.3]) == pytest.approx(1 - 2 * math.atan(2.0) / math.pi, abs=1e-9)


def test_interval_and_p_value_agree() -> None:
    rng = np.random.default_rng(3)
    for _ in range(50):
        values = list(rng.normal(0.5, 1.0, 5))
        low, high = stats.t_interval(values) or (0.0, 0.0)
        assert (low > 0 or high < 0) == ((stats.t_test(values) or 0.0) < 0.05)


def test_values_that_all_agree() -> None:
    """Rounding noise is not evidence of a spread."""
    assert stats.t_test([0.1 + 0.2, 0.3, 0.3]) == 0.0
    assert stats.t_test([0.0, 0.0, 0.0]) == 1.0
    assert stats.t_interval([0.25, 0.25]) == (0.25, 0.25)
    assert stats.smallest_effect([0.25, 0.25]) is None


@pytest.mark.parametrize("values", [[], [0.4]])
def test_too_few_values_give_no_number(values: list[float]) -> None:
    assert stats.t_interval(values) is None
    assert stats.t_test(values) is None
    assert stats.smallest_effect(values) is None
    assert stats.decide_verdict(0.4, None, 5, None) == "undecided"


def test_smallest_effect_by_hand() -> None:
    """Standard error sqrt(0.5): (2.776445 + 0.940965) * 0.707107."""
    assert stats.smallest_effect([1.0, 2.0, 3.0, 4.0, 5.0]) == pytest.approx(2.628606, abs=1e-5)


def test_smallest_effect_is_seen_in_about_80_of_100_experiments() -> None:
    """The formula takes the spread as known; with ten seeds the power is close to what it says."""
    rng = np.random.default_rng(0)
    effect = (stats.student_quantile(0.975, 9) + stats.student_quantile(0.8, 9)) / math.sqrt(10)
    seen = [(stats.t_test(list(row)) or 0.0) < 0.05 for row in rng.normal(effect, 1.0, (800, 10))]
    assert 0.72 < np.mean(seen) < 0.88


def test_t_interval_covers() -> None:
    """95 % of the intervals over five seeds hold the truth: 1500 of them, within three standard errors."""
    rng = np.random.default_rng(1)
    intervals = [stats.t_interval(list(row)) or (0.0, 0.0) for row in rng.normal(0.0, 1.0, (1500, 5))]
    assert abs(np.mean([low <= 0 <= high for low, high in intervals]) - 0.95) < 0.017


def test_holm_by_hand() -> None:
    """Sorted 0.005, 0.01, 0.03, 0.04 times 4, 3, 2, 1, never falling: 0.02, 0.03, 0.06, 0.06."""
    assert stats.holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert stats.holm([0.9, 0.6]) == [1.0, 1.0]
    assert stats.holm([]) == []


def test_verdicts() -> None:
    assert stats.decide_verdict(0.1, 0.01, 5, None) == "higher"
    assert stats.decide_verdict(-0.1, 0.01, 5, (-0.2, -0.05)) == "lower"
    assert stats.decide_verdict(0.1, 0.051, 5, None) == "undecided"


def test_two_pairs_that_agree_by_chance_decide_nothing() -> None:
    """Differences of -2/512 in both of two seeds have no spread: p is 0, and means nothing."""
    assert stats.decide_verdict(-2 / 512, 0.0, 2, None) == "undecided"
    assert stats.decide_verdict(-2 / 512, 0.0, 5, (-0.011, 0.002)) == "undecided"
    # What stands in the way is said where a difference is significant alone.
    assert stats.find_guard(0.01, 5, (-0.2, -0.05)) is None
    assert stats.find_guard(0.0, 2, None) == "fewer than 3 seeds decide nothing"
    assert stats.find_guard(0.1899, 3, None) == "p = 0.19 after Holm's correction for all that was compared"
    assert stats.find_guard(0.01, 5, (-0.42, 0.02)) == "[-0.420, +0.020] over problems"


def test_bootstrap_is_deterministic_and_paired_over_seeds() -> None:
    """Seeds that differ by a constant on every problem leave no more doubt about the problems than one seed."""
    one = np.random.default_rng(0).normal(0.1, 0.3, (1, 40))
    first, again = stats.problem_interval(one), stats.problem_interval(one)
    assert first is not None and first == again
    assert stats.problem_interval(np.vstack([one - 0.2, one + 0.2])) == pytest.approx(first)
    assert first[0] < one.mean() < first[1]


def test_bootstrap_of_equal_differences_has_no_width() -> None:
    assert stats.problem_interval(np.full((3, 8), 0.25)) == pytest.approx((0.25, 0.25))


def test_bootstrap_leaves_out_problems_that_a_run_could_not_grade() -> None:
    table = np.array([[0.5, np.nan, 0.5, 0.5], [0.5, -1.0, 0.5, 0.5]])
    assert stats.problem_interval(table) == pytest.approx((0.5, 0.5))
    assert stats.problem_interval(np.array([[np.nan, 0.5]])) is None
    assert stats.problem_interval(np.zeros((2, 0))) is None


def test_bootstrap_over_problems_covers() -> None:
    rng = np.random.default_rng(2)
    tables = rng.normal(0.0, 1.0, (300, 1, 60))
    intervals = [stats.problem_interval(table, rounds=400) or (0.0, 0.0) for table in tables]
    assert 0.90 < np.mean([low <= 0 <= high for low, high in intervals]) < 0.98


def test_area_by_hand() -> None:
    """(0 + 0.4) / 2 * 2 + (0.4 + 0.6) / 2 * 8 = 4.4 over a length of 10."""
    assert stats.mean_area([(0, 0.0), (2, 0.4), (10, 0.6)]) == pytest.approx(0.44)
    assert stats.mean_area([(0, 0.3)]) == 0.3
    assert stats.mean_area([]) is None


def test_a_warm_up_takes_no_room_on_the_axis_of_lead_turns() -> None:
    """Evaluated before and after the warm-up, both at lead turn 0: the later one is where the curve starts."""
    assert stats.mean_area([(0, 0.9), (0, 0.0), (10, 1.0)]) == pytest.approx(0.5)


def test_turns_to_reach() -> None:
    curves = [[(0, 0.1), (10, 0.3), (20, 0.5)], [(0, 0.1), (10, 0.5), (20, 0.7)]]
    assert stats.find_first_reach(curves, 0.4) == 10
    assert stats.find_first_reach(curves, 0.41) == 20
    assert stats.find_first_reach(curves, 0.61) is None
    assert stats.find_first_reach([], 0.1) is None


def test_curves_of_different_lengths_end_in_the_mean_of_their_ends() -> None:
    places, heights = stats.align_curves([[(0, 0.0), (10, 1.0)], [(0, 0.0), (20, 1.0)]])
    assert list(places) == [0, 10, 20]
    assert heights.tolist() == [[0.0, 1.0, 1.0], [0.0, 0.5, 1.0]]
