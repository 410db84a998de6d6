"""Step verdicts as advantages, in all three estimators of RL Tango, and the traps listed in specs/tango.md."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers import PROPERTY, make_rollout
from milonga.credit import StepCredit, contribution_stats, decay, mix_advantages, outcome_advantages
from milonga.credit.balance import ClassBalance
from milonga.credit.tokens import StepNorm
from milonga.objectives import PRESETS, make_objective
from milonga.types import Floats, Rollouts

NAN = float("nan")
NORMS: tuple[StepNorm, ...] = ("paper", "verdict")
GROUP_PRESETS = [name for name in PRESETS if not PRESETS.get(name).advantage.startswith("whiten")]

# Five completion tokens with steps that end at the second and the fourth; three with one that ends at the second.
PAIR = Rollouts([make_rollout(2, 5, (2, 4), id="a"), make_rollout(2, 3, (2,), id="b")])
VERDICTS = [[1.0, -1.0], [1.0]]


def credit(
    preset: str,
    verdicts: Sequence[Sequence[float] | None],
    rollouts: Rollouts,
    norm: StepNorm = "verdict",
    scale: float = 1.0,
    gamma: float = 1.0,
) -> list[list[float]]:
    """Advantages of the completion tokens; the prompts are checked to have none."""
    rule = StepCredit(norm, scale, gamma)
    found = rule.advantages(verdicts, rollouts, ["g"] * len(rollouts), make_objective(preset).estimator)
    for array, rollout in zip(found, rollouts, strict=True):
        assert len(array) == len(rollout.ids) and not array[~rollout.mask].any()
    return [array[rollout.mask].tolist() for array, rollout in zip(found, rollouts, strict=True)]


def unanimous(counts: Sequence[int], verdict: float) -> tuple[list[list[float]], Rollouts]:
    """Solutions of one token per step and one more, with the same verdict on every step."""
    rollouts = Rollouts(make_rollout(1, k + 1, range(1, k + 1), id=f"t{i}") for i, k in enumerate(counts))
    return [[verdict] * k for k in counts], rollouts


class TestGroupForms:
    """By hand: pooled y/K is (.5, -.5, 1), mean 1/3, unbiased std .763763; pooled y is (1, -1, 1), std 1.154701."""

    def test_grpo_as_in_the_paper(self) -> None:
        first, second, other = (0.5 - 1 / 3) / 0.763763, (-0.5 - 1 / 3) / 0.763763, (1 - 1 / 3) / 0.763763
        found = credit("grpo", VERDICTS, PAIR, "paper")
        assert found[0] == pytest.approx([first + second] * 2 + [second] * 2 + [0], abs=1e-4)
        assert found[1] == pytest.approx([other, other, 0], abs=1e-4)

    def test_grpo_by_verdict(self) -> None:
        right, wrong = 2 / 3 / 1.154701, -4 / 3 / 1.154701
        found = credit("grpo", VERDICTS, PAIR, "verdict")
        assert found[0] == pytest.approx([(right + wrong) / 2] * 2 + [wrong / 2] * 2 + [0], abs=1e-4)
        assert found[1] == pytest.approx([right, right, 0], abs=1e-4)

    def test_rloo_as_in_the_paper(self) -> None:
        found = credit("rloo", VERDICTS, PAIR, "paper", scale=10)
        assert found[0] == pytest.approx([-10, -10, -12.5, -12.5, 0])
        assert found[1] == pytest.approx([10, 10, 0])

    def test_rloo_by_verdict(self) -> None:
        found = credit("rloo", VERDICTS, PAIR, "verdict", scale=10)
        assert found[0] == pytest.approx([-5, -5, -10, -10, 0])
        assert found[1] == pytest.approx([10, 10, 0])

    def test_groups_are_pooled_apart(self) -> None:
        four = Rollouts([*PAIR, *PAIR])
        opposed = [*VERDICTS, [-1.0, -1.0], [1.0]]
        rule = StepCredit("paper")
        apart = rule.advantages(opposed, four, "aabb", make_objective("grpo").estimator)
        alone = rule.advantages(VERDICTS, PAIR, "aa", make_objective("grpo").estimator)
        assert [a.tolist() for a in apart[:2]] == [a.tolist() for a in alone]


class TestReinforcePlusPlusForm:
    rollouts = Rollouts([make_rollout(2, 4, (2, 3), id="a"), make_rollout(2, 2, (1,), id="b")])

    @pytest.mark.parametrize(("gamma", "returns"), [(1.0, [0, 0, -0.5, 0, 1, 0]), (0.5, [0.125, 0.25, -0.5, 0, 1, 0])])
    def test_is_the_return_over_tokens_whitened_over_the_batch(self, gamma: float, returns: list[float]) -> None:
        expected = (np.array(returns) - np.mean(returns)) / np.std(returns)
        found = credit("reinforce_pp", VERDICTS, self.rollouts, gamma=gamma, norm="paper")
        assert [x for row in found for x in row] == pytest.approx(expected, abs=1e-5)

    def test_by_numbers(self) -> None:
        found = credit("reinforce_pp", VERDICTS, self.rollouts, norm="paper")
        assert found[0] == pytest.approx([-0.1857, -0.1857, -1.2999, -0.1857], abs=1e-4)
        assert found[1] == pytest.approx([2.0426, -0.1857], abs=1e-4)

    def test_by_numbers_with_whitened_verdicts(self) -> None:
        """Verdicts less their mean 1/3, over K, as returns: -1/3, -1/3, -2/3, 0 and 2/3, 0, with a std of 0.41574."""
        found = credit("reinforce_pp", VERDICTS, self.rollouts, norm="verdict")
        assert found[0] == pytest.approx([-0.80178, -0.80178, -1.60357, 0], abs=1e-4)
        assert found[1] == pytest.approx([1.60357, 0], abs=1e-4)

    @pytest.mark.parametrize("preset", ["reinforce_pp", "reinforce_pp_baseline"])
    def test_a_solution_without_verdicts_is_neither_punished_nor_counted(self, preset: str) -> None:
        """Law 3: whitening a return of zero would give what could not be read the advantage -mean / std."""
        rollouts = Rollouts([*self.rollouts, make_rollout(2, 6, (3,), id="c")])
        found = credit(preset, [*VERDICTS, None], rollouts)
        assert found[2] == [0] * 6
        assert found[:2] == credit(preset, VERDICTS, self.rollouts)


class TestTraps:
    @pytest.mark.parametrize("sign", [1.0, -1.0])
    def test_whitening_by_the_paper_is_length_biased(self, sign: float) -> None:
        found = credit("grpo", *unanimous([2, 4, 8, 8], sign), norm="paper")
        assert [row[0] for row in found] == pytest.approx([5.6 * sign, 2.4 * sign, -4.0 * sign, -4.0 * sign], abs=0.05)

    @pytest.mark.parametrize("sign", [1.0, -1.0])
    @pytest.mark.parametrize("preset", [*GROUP_PRESETS, "reinforce_pp", "reinforce_pp_baseline"])
    def test_whitening_verdicts_gives_a_flat_group_nothing(self, preset: str, sign: float) -> None:
        found = credit(preset, *unanimous([2, 4, 8, 8], sign), norm="verdict")
        assert all(value == 0 for row in found for value in row)

    @pytest.mark.parametrize("norm", NORMS)
    @pytest.mark.parametrize("preset", sorted(PRESETS))
    def test_no_estimator_loses_the_step_advantage(self, preset: str, norm: StepNorm) -> None:
        """The public REINFORCE++ loops over the rollout axis, and its step advantage is exactly zero."""
        found = credit(preset, VERDICTS, PAIR, norm)
        assert all(any(row) for row in found)
        # A step judged wrong is worse than one judged right, in every estimator.
        assert found[0][2] < 0 < found[1][0]

    def test_alpha_is_taken_from_the_outcome_also_where_there_are_no_verdicts(self) -> None:
        estimator = make_objective("grpo").estimator
        outcome = outcome_advantages(np.array([1.0, 0]), PAIR, "gg", estimator)
        process = StepCredit().advantages([None, None], PAIR, "gg", estimator)
        for before, after in zip(outcome, mix_advantages(outcome, process, 0.1), strict=True):
            assert after == pytest.approx(0.9 * before)

    def test_sources_are_mixed_after_normalising(self) -> None:
        assert mix_advantages([np.array([1.0, 2])], [np.array([-1.0, 3])], 0.25)[0].tolist() == [0.5, 2.25]

    @pytest.mark.parametrize("preset", sorted(PRESETS))
    @pytest.mark.parametrize("nothing", [None, []])
    def test_no_verdicts_no_step_credit(self, preset: str, nothing: list[float] | None) -> None:
        ends = () if nothing == [] else (2,)
        rollouts = Rollouts([make_rollout(2, 5, (2, 4)), make_rollout(2, 3, ends)])
        found = credit(preset, [[1.0, -1.0], nothing], rollouts)
        assert any(found[0]) and not any(found[1])
        assert not any(credit(preset, [nothing], rollouts[1:])[0])

    def test_a_wrong_number_of_verdicts_is_an_error(self) -> None:
        with pytest.raises(ValueError, match="3 verdicts for 2 steps"):
            credit("grpo", [[1, 1, 1], [1]], PAIR)

    @pytest.mark.parametrize("norm", NORMS)
    @pytest.mark.parametrize("preset", GROUP_PRESETS)
    def test_the_end_token_is_the_last_that_a_step_pays(self, preset: str, norm: StepNorm) -> None:
        found = credit(preset, VERDICTS, PAIR, norm)
        assert found[0][0] == found[0][1] != found[0][2] == found[0][3] != 0
        assert found[0][4] == 0 and found[1][1] != 0 and found[1][2] == 0

    def test_a_single_judged_step_has_nothing_to_be_compared_with(self) -> None:
        assert not any(x for row in credit("grpo", [None, [1.0]], PAIR) for x in row)


@PROPERTY
@given(data=st.data(), norm=st.sampled_from(NORMS), preset=st.sampled_from(GROUP_PRESETS))
def test_step_rewards_of_a_group_sum_to_zero(data: st.DataObject, norm: StepNorm, preset: str) -> None:
    """What the steps pay, read off at the first token; times K where the verdicts themselves were whitened."""
    counts = data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=5))
    _, rollouts = unanimous(counts, 1.0)
    verdicts = [[data.draw(st.sampled_from([1.0, -1.0])) for _ in range(k)] for k in counts]
    found = credit(preset, verdicts, rollouts, norm)
    total = sum(row[0] * (k if norm == "verdict" else 1) for row, k in zip(found, counts, strict=True))
    assert total == pytest.approx(0, abs=1e-8)


class TestAlpha:
    def test_goes_from_start_to_end(self) -> None:
        assert decay(0.1, 1e-3, 0.0) == pytest.approx(0.1)
        assert decay(0.1, 1e-3, 0.5) == pytest.approx(0.01)
        assert decay(0.1, 1e-3, 1.0) == pytest.approx(1e-3)
        assert decay(0.1, 1e-3, 2.0) == 1e-3

    @pytest.mark.parametrize(("start", "end"), [(0.1, 1e-3), (0.5, 1e-3), (0.5, 0.4)])
    def test_follows_the_formula(self, start: float, end: float) -> None:
        for update in range(0, 301, 50):
            expected = max(end, start * math.exp(-update * math.log(start / end) / 300))
            assert decay(start, end, update / 300) == pytest.approx(expected)

    @pytest.mark.parametrize("progress", [0.0, 0.3, 1.0])
    def test_without_room_to_decay_it_is_constant(self, progress: float) -> None:
        assert decay(0.2, 0.2, progress) == 0.2
        assert decay(0.1, 0.2, progress) == 0.2  # the maximum with `end`, as the formula has it
        assert decay(0.0, 0.001, progress) == 0.0  # switched off
        assert decay(0.0, 0.0, progress) == 0.0


class TestClassBalance:
    def test_the_rare_class_counts_more(self) -> None:
        balance = ClassBalance()
        batch = np.array([1.0, 0, 0, 0])
        balance.update(batch)
        assert (balance.right, balance.wrong) == (1, 3)
        # c = (1, .57735); sum over the batch 2.73205
        assert balance.weights(batch).tolist() == pytest.approx([1.464102, 0.845299, 0.845299, 0.845299])

    def test_counts_average_from_the_first_batch_on(self) -> None:
        balance = ClassBalance()
        balance.update(np.array([1.0, 0, 0, 0]))
        balance.update(np.array([1.0] * 4 + [0.0] * 8))
        assert (balance.right, balance.wrong) == (pytest.approx(0.8 * 1 + 0.2 * 4), pytest.approx(0.8 * 3 + 0.2 * 8))
        # 1.6 and 4: c = (.790569, .5)
        assert balance.weights(np.array([1.0, 0])).tolist() == pytest.approx([1.225148, 0.774852], abs=1e-6)

    def test_counts_are_floored_at_one(self) -> None:
        balance = ClassBalance()
        balance.update(np.zeros(4))
        assert balance.right == 0
        # c = (1, 1/2)
        assert balance.weights(np.array([1.0, 0])).tolist() == pytest.approx([4 / 3, 2 / 3])

    def test_unknown_rows_neither_count_nor_weigh(self) -> None:
        balance = ClassBalance()
        balance.update(np.array([1.0, NAN, 0, 0, 0, NAN]))
        assert (balance.right, balance.wrong) == (1, 3)
        weights = balance.weights(np.array([1.0, NAN, 0, 0, 0, NAN]))
        assert weights.tolist() == pytest.approx([1.464102, 0, 0.845299, 0.845299, 0.845299, 0])
        assert balance.weights(np.array([NAN, NAN])).tolist() == [0, 0]

    def test_a_batch_of_which_nothing_is_known_changes_nothing(self) -> None:
        balance, nothing = ClassBalance(), np.array([NAN, NAN])
        balance.update(nothing)
        assert (balance.right, balance.wrong) == (None, None) and balance.weights(nothing).tolist() == [0, 0]
        balance.update(np.array([1.0, 0, 0, 0]))
        balance.update(nothing)
        assert (balance.right, balance.wrong) == (1, 3)

    def test_needs_a_batch_first(self) -> None:
        with pytest.raises(ValueError, match="no batch"):
            ClassBalance().weights(np.ones(2))

    @PROPERTY
    @given(batches=st.lists(st.lists(st.sampled_from([0.0, 1.0, NAN]), min_size=1, max_size=9), min_size=1, max_size=5))
    def test_the_batch_mean_is_one(self, batches: list[list[float]]) -> None:
        balance = ClassBalance()
        for batch in batches:
            balance.update(np.array(batch))
        last = np.array(batches[-1])
        known = ~np.isnan(last)
        if known.any():
            assert balance.weights(last)[known].mean() == pytest.approx(1)


class TestShares:
    def arrays(self) -> tuple[list[Floats], list[Floats], list[np.ndarray]]:
        masks = [np.array([False, True, True]), np.array([True, True])]
        # Values outside the masks must not be seen.
        return [np.array([9.0, 1, -1]), np.array([1.0, 1])], [np.array([9.0, 6, 0]), np.array([0.0, 0])], masks

    def test_are_root_mean_squares_of_the_weighted_sources(self) -> None:
        outcome, process, masks = self.arrays()
        found = contribution_stats(outcome, process, 0.1, masks)
        assert found == pytest.approx({"alpha": 0.1, "advantage_outcome": 0.9, "advantage_step": 0.3, "step_share": 0.25})

    def test_of_nothing_are_zero(self) -> None:
        nothing = [np.zeros(3)]
        assert contribution_stats(nothing, nothing, 0.5, [np.ones(3, dtype=bool)])["step_share"] == 0
        assert contribution_stats([], [], 0.5, [])["step_share"] == 0

    def test_alpha_is_not_the_share(self) -> None:
        """Eight whitened steps of one sign start as an equal share at alpha = 0.1, not as a tenth."""
        rollouts = Rollouts([make_rollout(1, 8, range(1, 9)), make_rollout(1, 8, range(1, 9))])
        estimator = make_objective("grpo").estimator
        process = StepCredit("paper").advantages([[1.0] * 8, [-1.0] * 8], rollouts, "gg", estimator)
        outcome = outcome_advantages(np.array([1.0, 0]), rollouts, "gg", estimator)
        assert process[0][1] == pytest.approx(8, rel=0.05)
        assert contribution_stats(outcome, process, 0.1, [t.mask for t in rollouts])["step_share"] > 0.4
