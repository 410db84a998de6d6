"""From rewards to advantages: the hand-worked numbers of specs/policy_gradients.md, and what holds for all numbers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers import PROPERTY, make_rollout, make_rollouts
from milonga.credit import (
    broadcast_to_tokens,
    has_both_outcomes,
    kl_penalties,
    normalise,
    outcome_advantages,
    overlong_penalty,
)
from milonga.credit.baselines import Normaliser
from milonga.credit.tokens import returns_to_go
from milonga.objectives import make_objective
from milonga.types import Floats, Rollouts

NAN = float("nan")
HOW: tuple[Normaliser, ...] = ("zscore", "centre", "leave_one_out")


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ("zscore", [1.5, -0.5, -0.5, -0.5]),
        ("centre", [0.75, -0.25, -0.25, -0.25]),
        ("leave_one_out", [1, -1 / 3, -1 / 3, -1 / 3]),
    ],
)
def test_one_right_among_four(how: Normaliser, expected: list[float]) -> None:
    assert normalise([1, 0, 0, 0], "aaaa", how).tolist() == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("how", HOW)
def test_equal_rewards_give_exactly_zero(how: Normaliser) -> None:
    # 0.1 added three times has a mean that differs from 0.1 in the last bit.
    for value in (0.0, 1.0, 0.1, -1 / 3, 1e9):
        assert normalise([value] * 3, "aaa", how).tolist() == [0, 0, 0]


@pytest.mark.parametrize("how", HOW)
def test_missing_rewards_are_left_out_of_the_baseline(how: Normaliser) -> None:
    with_gap = normalise([1, NAN, 0, 0, 0], "aaaaa", how)
    assert with_gap[1] == 0
    assert with_gap[[0, 2, 3, 4]].tolist() == normalise([1, 0, 0, 0], "aaaa", how).tolist()


@pytest.mark.parametrize("how", HOW)
def test_one_known_reward_has_nothing_to_be_compared_with(how: Normaliser) -> None:
    assert normalise([1, NAN, NAN], "aaa", how).tolist() == [0, 0, 0]


@pytest.mark.parametrize("how", HOW)
def test_a_group_of_one_is_an_error(how: Normaliser) -> None:
    with pytest.raises(ValueError, match="'b' has one member"):
        normalise([1, 0, 1], "aab", how)


def test_rewards_and_groups_must_match() -> None:
    with pytest.raises(ValueError, match="2 rewards for 3 rows"):
        normalise([1, 0], "aaa")


def test_two_rewards_are_told_apart_only_if_each_is_normalised() -> None:
    a, b = np.array([0.0, 0, 1, 1]), np.array([0.0, 1, 0, 1])
    assert normalise(a + b, "gggg").tolist() == pytest.approx([-1.22, 0, 0, 1.22], abs=0.006)
    assert (normalise(a, "gggg") + normalise(b, "gggg")).tolist() == pytest.approx([-1.73, 0, 0, 1.73], abs=0.006)


def test_mixed_asks_for_correctness_and_not_for_the_shaped_reward() -> None:
    """A length penalty alone gives a group a spread; it must still be filtered out."""
    correct = np.array([1.0, 1, 1, 0, 0, 0])
    shaped = correct + [overlong_penalty(length, 20480, 4096) for length in (100, 18432, 100, 100, 100, 20481)]
    groups = "aabbcc"
    assert normalise(shaped, groups).tolist() != pytest.approx([0] * 6)
    assert has_both_outcomes(correct, groups).tolist() == [False, False, True, True, False, False]


def test_mixed_does_not_take_a_missing_grade_for_a_wrong_one() -> None:
    assert has_both_outcomes(np.array([1, NAN, 1, NAN, 0, 1]), "aabbcc").tolist() == [False, False, False, False, True, True]


@pytest.mark.parametrize(
    ("length", "expected"), [(1, 0), (16384, 0), (17408, -0.25), (18432, -0.5), (20480, -1), (20481, -1), (99999, -1)]
)
def test_overlong_penalty(length: int, expected: float) -> None:
    assert overlong_penalty(length, limit=20480, buffer=4096) == expected


def test_a_buffer_of_zero_is_no_penalty_within_the_limit() -> None:
    assert overlong_penalty(100, limit=100, buffer=0) == 0


def completions(advantages: list[Floats], rollouts: Rollouts) -> list[list[float]]:
    """The advantages of the trained tokens, after checking that there are none elsewhere."""
    for array, rollout in zip(advantages, rollouts, strict=True):
        assert len(array) == len(rollout.ids) and not array[~rollout.mask].any()
    return [array[rollout.mask].tolist() for array, rollout in zip(advantages, rollouts, strict=True)]


@pytest.mark.parametrize("preset", ["grpo", "dapo", "dr_grpo", "rloo", "cispo", "gspo", "aipo"])
def test_group_advantages_are_constant_along_a_sequence(preset: str) -> None:
    rollouts = make_rollouts([1, 3, 2, 2])
    estimator = make_objective(preset).estimator
    rewards = np.array([1.0, 0, 0, 0])
    values = normalise(rewards, "aaaa", estimator.advantage)
    found = completions(outcome_advantages(rewards, rollouts, "aaaa", estimator), rollouts)
    assert found == [[value] * rollout.length for value, rollout in zip(values.tolist(), rollouts, strict=True)]


def test_spread_leaves_the_prompt_alone() -> None:
    assert broadcast_to_tokens(np.array([2.0]), make_rollouts([2], prompt_len=3))[0].tolist() == [0, 0, 0, 2, 2]


class TestReinforcePlusPlus:
    def test_returns_are_discounted_over_tokens(self) -> None:
        mask = np.array([False, True, True, True])
        assert returns_to_go(np.array([0.0, 0, 0, 1]), mask, 0.5).tolist() == [0, 0.25, 0.5, 1]

    def test_the_discount_does_not_count_foreign_tokens(self) -> None:
        mask = np.array([True, False, False, True])
        assert returns_to_go(np.array([0.0, 0, 0, 1]), mask, 0.5).tolist() == [0.5, 0, 0, 1]

    def test_whitening_is_over_all_tokens_of_the_batch(self) -> None:
        rollouts = make_rollouts([1, 3])
        estimator = make_objective("reinforce_pp").estimator
        found = completions(outcome_advantages(np.array([1.0, 0]), rollouts, "aa", estimator), rollouts)
        assert found[0] == pytest.approx([1.732], abs=1e-3)
        assert found[1] == pytest.approx([-0.577] * 3, abs=1e-3)

    def test_discounted_returns_are_whitened(self) -> None:
        rollouts = make_rollouts([3])
        estimator = make_objective("reinforce_pp", {"gamma": 0.5}).estimator
        returns = np.array([0.25, 0.5, 1])
        expected = (returns - returns.mean()) / returns.std()
        found = completions(outcome_advantages(np.ones(1), rollouts, "a", estimator), rollouts)
        assert found[0] == pytest.approx(expected, abs=1e-5)

    @pytest.mark.parametrize(("shift", "unanimous"), [(True, 0.378), (False, 0.0)])
    def test_the_baseline_variant_moves_unanimous_groups_only_with_shift(self, shift: bool, unanimous: float) -> None:
        rollouts = make_rollouts([1, 3, 2, 2])
        estimator = make_objective("reinforce_pp_baseline", {"whiten_shift": shift}).estimator
        found = completions(outcome_advantages(np.array([1.0, 0, 1, 1]), rollouts, "aabb", estimator), rollouts)
        assert found[2] == found[3] == pytest.approx([unanimous] * 2, abs=1e-3)
        std = 0.109375**0.5
        assert found[0] == pytest.approx([0.5 / std + unanimous], abs=1e-3)
        assert found[1] == pytest.approx([-0.5 / std + unanimous] * 3, abs=1e-3)

    @pytest.mark.parametrize("preset", ["reinforce_pp", "reinforce_pp_baseline"])
    def test_equal_rewards_give_zero(self, preset: str) -> None:
        rollouts = make_rollouts([1, 3])
        found = outcome_advantages(np.array([0.1, 0.1]), rollouts, "aa", make_objective(preset).estimator)
        assert not np.concatenate(found).any()

    @pytest.mark.parametrize("shift", [True, False])
    @pytest.mark.parametrize("preset", ["reinforce_pp", "reinforce_pp_baseline"])
    def test_a_missing_reward_is_no_reward_of_zero(self, preset: str, shift: bool) -> None:
        """Its tokens get no advantage and do not enter the statistics of the others."""
        estimator = make_objective(preset, {"whiten_shift": shift}).estimator
        lengths = [1, 3, 2]
        without = outcome_advantages(np.array([1.0, 0]), make_rollouts(lengths[:2]), "aa", estimator)
        found = outcome_advantages(np.array([1.0, 0, NAN]), make_rollouts(lengths), "aaa", estimator)
        assert not found[2].any()
        assert [a.tolist() for a in found[:2]] == [a.tolist() for a in without]


class TestKlInTheReward:
    """beta * k1 = (.1, .3) on the first rollout, nothing on the second."""

    rollouts = Rollouts([make_rollout(1, 2, logprobs=[-1.0, -1.0]), make_rollout(1, 2, logprobs=[-2.0, -2.0])])
    reference = [np.array([0, -1.2, -1.6]), np.array([0.0, -2.0, -2.0])]
    penalties = kl_penalties(rollouts, reference, 0.5)

    def test_is_beta_times_the_log_ratio_of_the_trained_tokens(self) -> None:
        assert self.penalties[0].tolist() == pytest.approx([0, 0.1, 0.3])
        assert self.penalties[1].tolist() == [0, 0, 0]

    def test_is_summed_into_the_reward_of_group_forms(self) -> None:
        estimator = make_objective("rloo", {"kl_coef": 0.5}).estimator
        found = outcome_advantages(np.array([1.0, 0]), self.rollouts, "aa", estimator, self.penalties)
        assert found[0].tolist() == pytest.approx([0, 0.6, 0.6])
        assert found[1].tolist() == pytest.approx([0, -0.6, -0.6])

    def test_stands_at_its_own_token_in_returns(self) -> None:
        estimator = make_objective("reinforce_pp", {"kl_coef": 0.5}).estimator
        found = outcome_advantages(np.array([1.0, 0]), self.rollouts, "aa", estimator, self.penalties)
        returns = np.array([0.6, 0.7, 0, 0])
        expected = (returns - returns.mean()) / returns.std()
        assert np.concatenate(completions(found, self.rollouts)) == pytest.approx(expected, abs=1e-5)

    def test_is_not_lost_in_the_baseline_variant(self) -> None:
        overrides = {"kl": "k1", "kl_in": "reward", "kl_coef": 0.5}
        estimator = make_objective("reinforce_pp_baseline", overrides).estimator
        found = outcome_advantages(np.zeros(2), self.rollouts, "aa", estimator, self.penalties)
        assert np.concatenate(completions(found, self.rollouts)) == pytest.approx([-1, -1, 1, 1], abs=1e-4)


quarters = st.integers(-20, 20).map(lambda n: n / 4)


@st.composite
def grouped(draw: st.DrawFn) -> tuple[list[float], list[int]]:
    """Rewards in groups of at least two, the rows of the groups interleaved."""
    sizes = draw(st.lists(st.integers(2, 5), min_size=1, max_size=4))
    groups = draw(st.permutations([g for g, size in enumerate(sizes) for _ in range(size)]))
    return [draw(quarters) for _ in groups], list(groups)


@PROPERTY
@given(batch=grouped(), how=st.sampled_from(HOW))
def test_groups_sum_to_zero(batch: tuple[list[float], list[int]], how: Normaliser) -> None:
    rewards, groups = batch
    advantages = normalise(rewards, groups, how)
    for group in set(groups):
        assert advantages[np.array(groups) == group].sum() == pytest.approx(0, abs=1e-9)


@PROPERTY
@given(batch=grouped(), how=st.sampled_from(HOW), data=st.data())
def test_the_order_of_the_rows_does_not_matter(
    batch: tuple[list[float], list[int]], how: Normaliser, data: st.DataObject
) -> None:
    rewards, groups = batch
    order = data.draw(st.permutations(range(len(rewards))))
    shuffled = normalise([rewards[i] for i in order], [groups[i] for i in order], how)
    assert shuffled == pytest.approx(normalise(rewards, groups, how)[order], abs=1e-9)


@PROPERTY
@given(batch=grouped(), how=st.sampled_from(HOW), noise=quarters)
def test_other_groups_do_not_matter(batch: tuple[list[float], list[int]], how: Normaliser, noise: float) -> None:
    rewards, groups = batch
    mine = np.array(groups) == groups[0]
    changed = [r if m else r * noise + i for i, (r, m) in enumerate(zip(rewards, mine, strict=True))]
    assert normalise(changed, groups, how)[mine].tolist() == normalise(rewards, groups, how)[mine].tolist()


@PROPERTY
@given(batch=grouped(), how=st.sampled_from(HOW), shift=quarters)
def test_a_constant_added_to_all_rewards_does_not_matter(
    batch: tuple[list[float], list[int]], how: Normaliser, shift: float
) -> None:
    rewards, groups = batch
    assert normalise(np.array(rewards) + shift, groups, how) == pytest.approx(normalise(rewards, groups, how), abs=1e-9)


@PROPERTY
@given(batch=grouped(), scale=st.sampled_from([0.5, 2.0, 8.0]))
def test_the_scale_matters_to_all_but_zscore(batch: tuple[list[float], list[int]], scale: float) -> None:
    rewards, groups = batch
    scaled = np.array(rewards) * scale
    assert normalise(scaled, groups) == pytest.approx(normalise(rewards, groups), abs=1e-4)
    for how in ("centre", "leave_one_out"):
        assert normalise(scaled, groups, how) == pytest.approx(scale * normalise(rewards, groups, how), abs=1e-9)
