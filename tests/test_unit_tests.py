"""What unit tests are worth: the fixture of the paper's formula, groups without a signal, and how tests separate programs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers import PROPERTY
from milonga.credit import normalise
from milonga.systems.cure.credit import Separation, UnitTestReward, estimate_separation, shape_by_length

# One right program and four wrong ones; tests: strong valid, naive valid, harmless invalid, harmful invalid, middling valid.
PASSES = np.array([
    [1, 1, 0, 0, 1],
    [0, 1, 0, 1, 1],
    [0, 1, 0, 1, 1],
    [0, 1, 0, 0, 0],
    [0, 1, 0, 0, 0],
], dtype=bool)  # fmt: skip
RIGHT = np.array([1, 0, 0, 0, 0], dtype=bool)
READABLE = np.ones(5, dtype=bool)
NONE = np.zeros(5, dtype=bool)


def test_a_test_is_paid_for_what_it_separates() -> None:
    rewards = UnitTestReward().rewards(PASSES, RIGHT, READABLE)
    assert rewards is not None and rewards.tolist() == [1.0, 0.0, 0.0, -0.5, 0.5]
    scores = normalise(rewards, ["task"] * 5, "zscore_population")
    assert scores.tolist() == pytest.approx([1.569, -0.392, -0.392, -1.373, 0.588], abs=1e-3)


def test_the_product_over_all_programs_would_pay_no_test() -> None:
    """As printed, the formula multiplies over wrong programs too: nothing could then be worth more than 0."""
    printed = (RIGHT[:, None] * PASSES).prod(axis=0) - PASSES[~RIGHT].mean(axis=0)
    rewards = UnitTestReward().rewards(PASSES, RIGHT, READABLE)
    assert printed.max() <= 0 and rewards is not None and rewards.max() == 1.0


def test_validity_alone_pays_the_naive_test_as_much_as_the_strong_one() -> None:
    rewards = UnitTestReward(by="validity").rewards(PASSES, RIGHT, READABLE)
    assert rewards is not None and rewards.tolist() == [1.0, 1.0, 0.0, 0.0, 1.0]


def test_the_late_stage_pays_for_all_or_nothing() -> None:
    rewards = UnitTestReward(hard=True).rewards(PASSES, RIGHT, READABLE)
    assert rewards is not None and rewards.tolist() == [1.0, 0.0, 0.0, -1.0, 0.0]


def test_groups_without_a_signal() -> None:
    assert UnitTestReward().rewards(PASSES, NONE, READABLE) is None, "nobody knows which tests are right"
    everyone = ~NONE
    zero = UnitTestReward().rewards(PASSES, everyone, READABLE)
    sign = UnitTestReward(all_correct="sign").rewards(PASSES, everyone, READABLE)
    assert zero is not None and not zero.any()
    assert sign is not None and sign.tolist() == [-1.0, 1.0, -1.0, -1.0, -1.0]


def test_what_cannot_be_read_is_paid_apart_and_keeps_its_column() -> None:
    readable = np.array([True, False, True, False, True])
    rewards = UnitTestReward().rewards(PASSES & readable, RIGHT, readable)
    assert rewards is not None and rewards.tolist() == [1.0, -0.5, 0.0, -0.5, 0.5]
    released = UnitTestReward(format_fail=0.0).rewards(np.zeros((5, 5), dtype=bool), RIGHT, NONE)
    assert released is not None and not released.any(), "all alike: such a group teaches nothing"


def test_separation_is_worked_out_over_all_tasks() -> None:
    valid = np.array([1, 1, 0, 0, 1], dtype=bool)
    found = estimate_separation([(PASSES, RIGHT, valid)])
    assert found == Separation(0.6, 0.5, 0.25)
    assert found is not None and found.mu == pytest.approx(0.6 * 0.5 - 0.4 * 0.25)
    assert estimate_separation([]) is None and estimate_separation([(PASSES[:1], RIGHT[:1], valid)]) is None


@PROPERTY
@given(st.integers(1, 6), st.integers(1, 6), st.integers(0, 2**30))
def test_the_mean_reward_is_mu(right: int, wrong: int, seed: int) -> None:
    """Where right programs agree on every test, the mean of v - f over tests is exactly mu."""
    rng = np.random.default_rng(seed)
    valid = rng.random(7) < 0.6
    passes = np.concatenate([np.tile(valid, (right, 1)), rng.random((wrong, 7)) < 0.4])
    labels = np.arange(right + wrong) < right
    rewards = UnitTestReward().rewards(passes, labels, np.ones(7, dtype=bool))
    found = estimate_separation([(passes, labels, valid)])
    assert rewards is not None and found is not None and rewards.mean() == pytest.approx(found.mu)


def test_short_right_tests_earn_most_under_the_transform() -> None:
    rewards, lengths = np.array([1.0, 1.0, 1.0, 0.0]), np.array([10.0, 20.0, 40.0, 15.0])
    made = shape_by_length(rewards, lengths)
    # T = 20 and L = 40: 10, 0, -20, -20; the positive part is scaled by 40 / 10, all by their std.
    assert made.tolist() == pytest.approx((np.array([40.0, 0, -20, -20]) / np.std([40.0, 0, -20, -20])).tolist())
    assert made[2] < 0, "a right test longer than the median loses"
    assert not shape_by_length(np.ones(3), np.array([1.0, 2, 3])).any(), "all alike"
    # One length tells nothing: 1, -1, -1, of which the positive part is scaled by 2, all by their std of sqrt(2).
    alone = shape_by_length(np.array([1.0, 0.0, 0.0]), np.array([30.0, 10.0, 20.0]))
    assert alone.tolist() == pytest.approx([2**0.5, -(0.5**0.5), -(0.5**0.5)])
    assert shape_by_length(np.array([1.0, 1.0, 0.0]), np.array([7.0, 7.0, 9.0])).tolist() == pytest.approx(
        [0.5**0.5] * 2 + [-(2**0.5)]
    )
    assert not shape_by_length(rewards, lengths, low=1000).any(), "all shorter than the bound: nothing is negative"
