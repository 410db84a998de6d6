"""The policy-gradient family against the hand-worked numbers of specs/policy_gradients.md, by autograd."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from torch import Tensor

from helpers import PROPERTY
from milonga.credit import normalise
from milonga.errors import ConfigError
from milonga.objectives import PRESETS, Estimator, Loss, RolloutFilter, make_objective
from milonga.objectives.losses import Denominators, Rows, TokenTerms, compute_loss, kl_estimate, policy_gradient, token_weights
from milonga.resolve import resolve

POLICY_GRADIENTS = [name for name in PRESETS if PRESETS.get(name).kind == "policy_gradient"]


def double(values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def make_loss(preset: str, overrides: dict[str, Any] | None = None) -> Loss:
    """The loss of a preset; the constant that Dr.GRPO divides by is one token."""
    return make_objective(preset, {"length": 1} | (overrides or {})).loss


def one_row(loss: Loss, log_ratios: list[float], advantage: float | list[float]) -> tuple[Tensor, Tensor]:
    """Value and gradient, by log-probability, of the loss of one sequence, weights included."""
    old = torch.full((len(log_ratios),), -1.5, dtype=torch.float64)
    logp = (old + double(log_ratios)).requires_grad_()
    terms = TokenTerms(
        logp=logp,
        entropy=torch.zeros_like(old),
        old=old,
        rows=torch.zeros(len(old), dtype=torch.long),
        of_rows=Rows(torch.tensor([len(old)])),
        advantage=double(advantage).expand(len(old)),
    )
    total, _ = compute_loss(loss, terms, Denominators(tokens=len(old), sequences=1))
    return total.detach(), torch.autograd.grad(total, logp)[0]


def factor(loss: Loss, ratio: float, advantage: float) -> float:
    """What stands in front of A * grad log pi for a sequence of one token."""
    return -float(one_row(loss, [math.log(ratio)], advantage)[1][0]) / advantage


COLUMNS: dict[str, list[tuple[str, dict[str, Any]]]] = {
    "ppo": [("grpo", {}), ("dr_grpo", {}), ("reinforce_pp", {}), ("reinforce_pp_baseline", {})],
    "dapo": [("dapo", {})],
    "dual": [("grpo", {"dual_clip": 3.0})],
    "cispo_clamp": [("cispo", {"is_min": 0.8, "is_max": 1.2})],
    "cispo_max": [("cispo", {})],
    "aipo_b": [("aipo", {"is_max": 2.0})],
    "aipo_a": [("aipo_a", {"is_max": 2.0})],
}
TABLE = [
    # sign, ratio, then the columns in the order above
    (+1, 1.25, (0, 1.25, 0, 1.2, 1.25, 1.25, 1.25)),
    (+1, 1.5, (0, 0, 0, 1.2, 1.5, 1.5, 1.5)),
    (+1, 0.5, (0.5, 0.5, 0.5, 0.8, 0.5, 0.5, 0.5)),
    (+1, 4.0, (0, 0, 0, 1.2, 4, 2, 0)),
    (-1, 0.5, (0, 0, 0, 0.8, 0.5, 0.5, 0.5)),
    (-1, 1.5, (1.5, 1.5, 1.5, 1.2, 1.5, 1.5, 1.5)),
    (-1, 4.0, (4, 4, 0, 1.2, 4, 2, 0)),
]
CELLS = [
    pytest.param(preset, overrides, sign, ratio, expected, id=f"{column}-{preset}-{sign}-{ratio}")
    for sign, ratio, row in TABLE
    for (column, methods), expected in zip(COLUMNS.items(), row, strict=True)
    for preset, overrides in methods
]


@pytest.mark.parametrize(("preset", "overrides", "sign", "ratio", "expected"), CELLS)
@pytest.mark.parametrize("size", [1.0, 2.5])
def test_gradient_under_clipping(
    preset: str, overrides: dict[str, Any], sign: int, ratio: float, expected: float, size: float
) -> None:
    assert factor(make_loss(preset, overrides), ratio, sign * size) == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize(("sign", "ratio", "row"), TABLE)
def test_clipped_counts_tokens_whose_gradient_was_taken(sign: int, ratio: float, row: tuple[float, ...]) -> None:
    for column, expected in zip(("ppo", "dapo", "dual"), row, strict=False):
        loss = make_loss(*COLUMNS[column][0])
        logp = double([math.log(ratio)])
        one = torch.zeros(1, dtype=torch.long)
        _, cut = policy_gradient(loss, logp, torch.zeros_like(logp), double([sign]), one, torch.ones(1))
        assert bool(cut[0]) == (expected == 0)


def test_dapo_clips_above_at_1_28_and_below_at_0_8() -> None:
    dapo = make_loss("dapo")
    assert factor(dapo, 1.25, 1.0) == pytest.approx(1.25, abs=1e-5)
    assert factor(dapo, 1.279, 1.0) == pytest.approx(1.279, abs=1e-5)
    assert factor(dapo, 1.3, 1.0) == 0
    assert factor(dapo, 0.801, -1.0) == pytest.approx(0.801, abs=1e-5)
    assert factor(dapo, 0.79, -1.0) == 0


def test_dual_clip_bounds_the_loss_of_negative_advantages_only() -> None:
    loss = make_loss("grpo", {"dual_clip": 3.0})
    for ratio, advantage, value in ((10.0, -2.0, 6.0), (2.9, -2.0, 5.8), (10.0, 2.0, -2.4), (0.1, 2.0, -0.2)):
        assert float(one_row(loss, [math.log(ratio)], advantage)[0]) == pytest.approx(value)


@pytest.mark.parametrize("preset", ["aipo", "aipo_a"])
def test_aipo_is_the_plain_policy_gradient_where_sampler_and_learner_agree(preset: str) -> None:
    advantages = [1.0, -2.0, 0.5]
    plain = make_loss(preset, {"ratio": "none", "clip": "none"})
    expected = one_row(plain, [0.0] * 3, advantages)[1]
    assert expected.tolist() == pytest.approx([-1 / 3, 2 / 3, -0.5 / 3], abs=1e-6)
    torch.testing.assert_close(one_row(make_loss(preset), [0.0] * 3, advantages)[1], expected)


def test_rloo_has_factor_one_whatever_the_ratio() -> None:
    for ratio in (0.1, 1.0, 9.0):
        assert factor(make_loss("rloo"), ratio, -0.7) == pytest.approx(1.0)


class TestGspo:
    log_ratios = [0.003, -0.0015, 0.0]
    s = math.exp(0.0005)

    def test_is_clipped_for_positive_advantages(self) -> None:
        assert one_row(make_loss("gspo"), self.log_ratios, 1.0)[1].tolist() == [0, 0, 0]

    def test_has_an_equal_factor_on_all_tokens_where_it_is_not_clipped(self) -> None:
        assert self.s == pytest.approx(1.0005, abs=1e-6)
        _, gradient = one_row(make_loss("gspo"), self.log_ratios, -1.0)
        assert gradient.tolist() == pytest.approx([self.s / 3] * 3, abs=1e-7)

    def test_is_clipped_below_for_negative_advantages(self) -> None:
        low = [-x for x in self.log_ratios]
        assert one_row(make_loss("gspo"), low, -1.0)[1].tolist() == [0, 0, 0]
        assert one_row(make_loss("gspo"), low, 1.0)[1].tolist() == pytest.approx([-1 / self.s / 3] * 3, abs=1e-7)

    @pytest.mark.parametrize("advantage", [1.0, -1.0, 0.3])
    @pytest.mark.parametrize("shift", [-0.002, 0.0, 0.0002, 0.002])
    def test_token_form_equals_sequence_form(self, advantage: float, shift: float) -> None:
        ratios = double([0.0011, -0.0007, -0.0004]) + shift
        x = ratios.clone().requires_grad_()
        s = x.mean().exp()
        sequence = -torch.minimum(s * advantage, s.clamp(1 - 3e-4, 1 + 4e-4) * advantage)
        value, gradient = one_row(make_loss("gspo"), ratios.tolist(), advantage)
        torch.testing.assert_close(gradient, torch.autograd.grad(sequence, x)[0], atol=1e-7, rtol=1e-6)
        assert float(value) == pytest.approx(float(sequence.detach()))

    def test_advantages_may_differ_along_the_sequence(self) -> None:
        _, gradient = one_row(make_loss("gspo"), [0.0, 0.0], [2.0, -1.0])
        assert gradient.tolist() == pytest.approx([-1.0, 0.5])


@pytest.mark.parametrize("advantage", [1.0, -1.0])
@pytest.mark.parametrize("total", [-0.5, -0.1, 0.1, 0.5])
def test_rloo_with_a_sequence_ratio_equals_the_clipped_product_form(advantage: float, total: float) -> None:
    loss = make_loss("rloo", {"ratio": "sequence_product", "clip": "ppo"})
    ratios = double([0.03, -0.02, total - 0.01])
    x = ratios.clone().requires_grad_()
    s = x.sum().exp()
    sequence = -torch.minimum(s * advantage, s.clamp(0.8, 1.2) * advantage)
    _, gradient = one_row(loss, ratios.tolist(), advantage)
    torch.testing.assert_close(gradient, torch.autograd.grad(sequence, x)[0], atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("preset", POLICY_GRADIENTS)
@pytest.mark.parametrize("difference", [-1000.0, 1000.0])
def test_a_log_ratio_out_of_bounds_stays_finite(preset: str, difference: float) -> None:
    for advantage in (1.0, -1.0):
        value, gradient = one_row(make_loss(preset), [difference, 0.0], advantage)
        assert torch.isfinite(value) and torch.isfinite(gradient).all()


def test_log_ratios_are_clamped_to_twenty() -> None:
    unclipped = make_loss("grpo", {"clip": "none"})
    assert float(one_row(unclipped, [25.0], 1.0)[0]) == pytest.approx(-math.exp(20.0))
    assert float(one_row(unclipped, [19.0], 1.0)[0]) == pytest.approx(-math.exp(19.0))


class TestKl:
    """Five-armed softmax, expectation taken exactly over the arms."""

    logits = double([0.3, -1.0, 0.7, 0.0, 1.4])
    reference = double([-0.2, 0.4, 0.1, 0.9, -0.5]).log_softmax(0)

    def expected_gradient(self, kind: str) -> Tensor:
        logits = self.logits.clone().requires_grad_()
        logp = logits.log_softmax(0)
        expected = (logp.detach().exp() * kl_estimate(kind, logp, self.reference)).sum()
        return torch.autograd.grad(expected, logits)[0]

    def true_gradient(self, reverse: bool) -> Tensor:
        logits = self.logits.clone().requires_grad_()
        p, q = logits.log_softmax(0), self.reference
        divergence = (q.exp() * (q - p)).sum() if reverse else (p.exp() * (p - q)).sum()
        return torch.autograd.grad(divergence, logits)[0]

    def test_k1_in_a_loss_has_no_gradient(self) -> None:
        assert self.expected_gradient("k1").abs().max() < 1e-12

    def test_k2_follows_kl_from_policy_to_reference(self) -> None:
        torch.testing.assert_close(self.expected_gradient("k2"), self.true_gradient(reverse=False))

    def test_k3_follows_kl_from_reference_to_policy(self) -> None:
        torch.testing.assert_close(self.expected_gradient("k3"), self.true_gradient(reverse=True))

    def test_k1_and_k3_have_the_value_of_the_divergence(self) -> None:
        p, q = self.logits.log_softmax(0), self.reference
        for kind in ("k1", "k3"):
            assert float((p.exp() * kl_estimate(kind, p, q)).sum()) == pytest.approx(float((p.exp() * (p - q)).sum()))

    def test_k1_in_the_loss_is_refused(self) -> None:
        with pytest.raises(ConfigError, match="gradient zero"):
            make_objective("grpo", {"kl": "k1", "kl_coef": 0.5})

    @pytest.mark.parametrize(("kind", "where", "expected"), [("k2", "loss", 0.0625), ("k1", "reward", 0.0)])
    def test_stands_in_the_loss_only_where_the_objective_says_so(self, kind: str, where: str, expected: float) -> None:
        loss = make_loss("grpo", {"kl": kind, "kl_coef": 0.5, "kl_in": where})
        terms = TokenTerms(
            logp=double([-1.0]),
            entropy=double([0.0]),
            old=double([-1.0]),
            rows=torch.zeros(1, dtype=torch.long),
            of_rows=Rows(torch.ones(1)),
            advantage=double([0.0]),
            reference=double([-1.5]),
        )
        assert float(compute_loss(loss, terms, Denominators(1, 1))[0]) == pytest.approx(expected)


def test_the_entropy_bonus_lowers_the_loss() -> None:
    terms = TokenTerms(double([-1.0]), double([0.7]), double([-1.0]), torch.tensor([0]), Rows(torch.ones(1)), double([0.0]))
    total, _ = compute_loss(make_loss("grpo", {"entropy_coef": 0.1}), terms, Denominators(1, 1))
    assert float(total) == pytest.approx(-0.07)


class TestTokenWeights:
    rows = torch.tensor([0] * 2 + [1] * 8)
    lengths = torch.tensor([2, 8])

    def weights(self, preset: str, **overrides: Any) -> list[float]:
        loss = make_objective(preset, overrides).loss
        return token_weights(loss, self.rows, self.lengths, Denominators(tokens=10, sequences=2)).tolist()

    def test_grpo_shares_each_sequence_among_its_tokens(self) -> None:
        assert self.weights("grpo") == pytest.approx([1 / 4] * 2 + [1 / 16] * 8)

    def test_dapo_counts_every_token_alike(self) -> None:
        assert self.weights("dapo") == pytest.approx([1 / 10] * 10)

    def test_dr_grpo_divides_by_a_constant_whatever_the_lengths(self) -> None:
        assert self.weights("dr_grpo", length=100) == pytest.approx([1 / 200] * 10)
        assert self.weights("dr_grpo", length=50) == pytest.approx([0.01] * 10)
        with pytest.raises(ValueError, match="needs `length`"):
            self.weights("dr_grpo")

    def test_rloo_sums_tokens_and_averages_sequences(self) -> None:
        assert self.weights("rloo") == pytest.approx([1 / 2] * 10)


@pytest.mark.parametrize("preset", [*POLICY_GRADIENTS, "cross_entropy"])
def test_the_loss_does_not_grow_with_the_batch(preset: str) -> None:
    """Dividing the sum over sequences by the length alone, as verl's variant of Dr.GRPO does, fails here."""
    once = random_batch([3, 1, 4], seed=1)
    twice = join([once, once])
    loss = make_loss(preset, {"length": 16})
    assert whole_loss(loss, twice) == pytest.approx(whole_loss(loss, once), rel=1e-6)


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("size", [4, 8])
def test_bias_of_the_baselines_by_enumeration(p: float, size: int) -> None:
    true = p * (1 - p)
    assert expected_gradient("rloo", p, size) / true == pytest.approx(1.0, abs=1e-6)
    assert expected_gradient("dr_grpo", p, size) / true == pytest.approx((size - 1) / size, abs=1e-6)
    ratios = {(4, 0.1): 1.46, (4, 0.5): 1.40, (4, 0.9): 1.46, (8, 0.1): 2.18, (8, 0.5): 1.74, (8, 0.9): 2.18}
    assert expected_gradient("grpo", p, size) / true == pytest.approx(ratios[size, p], abs=0.005)


def expected_gradient(preset: str, p: float, size: int) -> float:
    """Over all tuples of `size` pulls of two arms, reward 1 for the first, which has probability p."""
    objective = make_objective(preset, {"length": 1})
    logit = double(math.log(p / (1 - p))).requires_grad_()
    pulls = np.array(list(itertools.product([0.0, 1.0], repeat=size)))
    chance = np.prod(np.where(pulls == 1, p, 1 - p), axis=1)
    groups = [g for g in range(len(pulls)) for _ in range(size)]
    advantage = normalise(pulls.ravel(), groups, objective.estimator.advantage) * np.repeat(chance, size)
    rows = torch.arange(pulls.size)
    taken = torch.tensor(pulls.ravel()) == 1
    logp = torch.where(taken, torch.nn.functional.logsigmoid(logit), torch.nn.functional.logsigmoid(-logit))
    lengths, nothing = torch.ones(len(rows)), torch.zeros_like(logp)
    terms = TokenTerms(logp, nothing, logp.detach(), rows, Rows(lengths), torch.tensor(advantage))
    # The chances already average over the tuples: what is left to divide by is one group.
    total, _ = compute_loss(objective.loss, terms, Denominators(tokens=size, sequences=size))
    return -float(torch.autograd.grad(total, logit)[0])


def random_batch(lengths: list[int], seed: int) -> list[dict[str, Tensor]]:
    """One dictionary of per-token columns for each row."""
    generator = torch.Generator().manual_seed(seed)

    def draw(length: int, scale: float = 1.0) -> Tensor:
        return torch.randn(length, generator=generator, dtype=torch.float64) * scale

    rows = []
    for length in lengths:
        old = -draw(length).abs()
        rows.append(
            {
                "logp": old + draw(length, 0.3),
                "old": old,
                "entropy": draw(length).abs(),
                "advantage": draw(length),
                "reference": old + draw(length, 0.1),
            }
        )
    return rows


def join(batches: list[list[dict[str, Tensor]]]) -> list[dict[str, Tensor]]:
    return [row for batch in batches for row in batch]


def part_loss(loss: Loss, part: list[dict[str, Tensor]], over: Denominators) -> tuple[float, dict[str, float]]:
    lengths = torch.tensor([len(row["logp"]) for row in part])
    rows = torch.repeat_interleave(torch.arange(len(part)), lengths)
    columns = {key: torch.cat([row[key] for row in part]) for key in part[0]}
    total, sums = compute_loss(loss, TokenTerms(rows=rows, of_rows=Rows(lengths), **columns), over)
    return float(total), sums


def denominators(batch: list[dict[str, Tensor]]) -> Denominators:
    return Denominators(sum(len(row["logp"]) for row in batch), len(batch))


def whole_loss(loss: Loss, batch: list[dict[str, Tensor]]) -> float:
    return part_loss(loss, batch, denominators(batch))[0]


@PROPERTY
@given(data=st.data(), preset=st.sampled_from([*POLICY_GRADIENTS, "cross_entropy"]), seed=st.integers(0, 2**16))
def test_micro_batches_do_not_change_the_loss(data: st.DataObject, preset: str, seed: int) -> None:
    """Law 5: one sum, divided once by a denominator that is fixed over the whole batch."""
    lengths = data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=8))
    places = data.draw(st.lists(st.integers(0, 3), min_size=len(lengths), max_size=len(lengths)))
    batch = random_batch(lengths, seed)
    regularised = {} if preset == "cross_entropy" else {"kl_coef": 0.1, "entropy_coef": 0.01}
    loss = make_loss(preset, {**regularised, "length": 16})
    over = denominators(batch)
    total, sums = part_loss(loss, batch, over)
    parts = [[row for row, place in zip(batch, places, strict=True) if place == p] for p in sorted(set(places))]
    split = [part_loss(loss, part, over) for part in parts]
    assert sum(value for value, _ in split) == pytest.approx(total, rel=1e-9, abs=1e-9)
    for key, value in sums.items():
        assert sum(s[key] for _, s in split) == pytest.approx(value)


class TestSwitches:
    @pytest.mark.parametrize(
        ("preset", "overrides", "says"),
        [
            ("gspo", {"aggregate": "token_mean"}, "weight by length"),
            ("gspo", {"aggregate": "sequence_sum"}, "weight by length"),
            ("gspo", {"aggregate": "constant"}, "weight by length"),
            ("grpo", {"ratio": "sequence_product"}, "sequence_sum"),
            ("grpo", {"ratio": "none"}, "needs a ratio"),
            ("rloo", {"clip": "ppo"}, "needs a ratio"),
            ("rloo", {"recompute_old": True}, "recompute_old needs"),
            ("dpo", {"recompute_old": True}, "recompute_old needs"),
            ("cispo", {"is_min": 6.0}, "is_min"),
            ("grpo", {"kl_in": "reward"}, "k1"),
            ("rloo", {"kl": "k3"}, "k1"),
            ("grpo", {"dual_clip": 1.0}, "dual_clip"),
            ("grpo", {"aggregate": "mean"}, "aggregate"),
            ("dr_grpo", {"length": 0}, "length"),
            ("reinforce_pp", {"gamma": 0.0}, "gamma"),
            ("cross_entropy", {"entropy_coef": 0.01}, "entropy_coef does nothing in a loss of the kind 'cross_entropy'"),
            ("dpo", {"kl_coef": 0.1}, "kl_coef does nothing in a loss of the kind 'dpo'"),
            ("implicit_bce", {"kl_coef": 0.1}, "kl_coef does nothing"),
            ("bradley_terry", {"entropy_coef": -0.1}, "entropy_coef does nothing"),
        ],
    )
    def test_forbidden_combinations_are_config_errors(self, preset: str, overrides: dict[str, Any], says: str) -> None:
        with pytest.raises(ConfigError, match=says):
            make_objective(preset, overrides)

    def test_an_unknown_field_names_the_nearest(self) -> None:
        with pytest.raises(ConfigError, match=r"clip_hihg.*did you mean 'clip_high'"):
            make_objective("dapo", {"clip_hihg": 0.3})

    def test_the_value_losses_take_both_regularisers(self) -> None:
        made = make_objective("value_bce", {"kl_coef": 0.1, "entropy_coef": 0.01}).loss
        assert (made.kl_coef, made.entropy_coef) == (0.1, 0.01)

    @pytest.mark.parametrize(
        ("objective", "says"),
        [
            ({"clip_low": -1}, "'policies.generator.objective.clip_low': Input should be"),
            ({"clip_lo": 0.1}, "unknown key 'policies.generator.objective.clip_lo': did you mean 'clip_low'"),
            ({"preset": "gprs"}, "policies.generator.objective.preset: unknown objective 'gprs'"),
            ({"ratio": "none"}, "'policies.generator.objective': clip='ppo' needs a ratio"),
        ],
    )
    def test_a_mistake_names_the_policy_that_it_stands_in(self, objective: dict[str, Any], says: str) -> None:
        with pytest.raises(ConfigError) as error:
            resolve([{"recipe": "grpo", "policies": {"generator": {"objective": objective}}}])
        assert str(error.value).startswith(says)

    def test_an_unknown_preset_names_the_nearest(self) -> None:
        with pytest.raises(ConfigError, match="did you mean 'dr_grpo'"):
            make_objective("dr_gpro")

    def test_an_override_leaves_the_preset_alone(self) -> None:
        before = PRESETS.get("grpo")
        assert make_objective("grpo", {"kl_coef": 0.1}).loss.kl_coef == 0.1
        assert PRESETS.get("grpo") == before and before.kl_coef == 0
        with pytest.raises(ValidationError):
            before.kl_coef = 0.1  # type: ignore[misc]


# Written out in full: a changed default must not change a published method in silence.
DEFAULTS: dict[str, Any] = {
    "kind": "policy_gradient",
    "beta": 0.05,
    "pair_loss": "ranking",
    "nll_coef": 0.0,
    "advantage": "zscore",
    "gamma": 1.0,
    "whiten_shift": True,
    "ratio": "token",
    "clip_low": 0.2,
    "clip_high": 0.2,
    "dual_clip": None,
    "recompute_old": None,
    "clip": "ppo",
    "is_min": 0.0,
    "is_max": 5.0,
    "aggregate": "sequence_mean",
    "length": None,
    "kl": "k3",
    "kl_coef": 0.0,
    "kl_in": "loss",
    "kl_from": "ref",
    "entropy_coef": 0.0,
    "dynamic_sampling": False,
    "max_tries": 10,
    "overlong_filter": False,
    "overlong_buffer": 0,
    "format_weight": 0.0,
}
PUBLISHED: dict[str, dict[str, Any]] = {
    "grpo": {},
    "dapo": {
        "clip_high": 0.28,
        "aggregate": "token_mean",
        "dynamic_sampling": True,
        "overlong_filter": True,
        "overlong_buffer": 4096 / 20480,
    },
    "dr_grpo": {"advantage": "centre", "aggregate": "constant"},
    "rloo": {
        "advantage": "leave_one_out",
        "ratio": "none",
        "clip": "none",
        "aggregate": "sequence_sum",
        "kl": "k1",
        "kl_in": "reward",
    },
    "reinforce_pp": {"advantage": "whiten", "aggregate": "token_mean", "kl": "k1", "kl_in": "reward"},
    "reinforce_pp_baseline": {
        "advantage": "whiten_baseline",
        "whiten_shift": False,
        "aggregate": "token_mean",
        "kl": "k2",
    },
    "cispo": {"clip": "detached", "is_min": 0.0, "is_max": 5.0, "aggregate": "token_mean"},
    "gspo": {"ratio": "sequence_mean", "clip_low": 3e-4, "clip_high": 4e-4},
    "aipo": {"advantage": "centre", "clip": "detached", "is_min": 0.0, "is_max": 4.0, "aggregate": "token_mean"},
    "aipo_a": {"advantage": "centre", "clip": "capped", "is_max": 4.0, "aggregate": "token_mean"},
}


@pytest.mark.parametrize("preset", POLICY_GRADIENTS)
def test_presets_are_what_was_published(preset: str) -> None:
    assert PRESETS.get(preset).model_dump() == {**DEFAULTS, **PUBLISHED[preset]}


def test_every_key_of_the_config_reaches_its_part() -> None:
    """And no other: what two parts have in common is the KL, which `kl_in` gives to one of them."""
    parts = (Estimator, Loss, RolloutFilter)
    found = [key for part in parts for key in part.model_fields]
    assert set(found) == set(DEFAULTS) - {"kl_in"}
    assert {key for key in found if found.count(key) > 1} == {"kl_coef", "kl_from"}
    given = {"advantage": "centre", "gamma": 0.9, "clip_high": 0.3, "max_tries": 3, "overlong_buffer": 7, "kl_from": "phase"}
    made = make_objective("grpo", given)
    assert made.estimator == Estimator(advantage="centre", gamma=0.9, kl_from="phase")
    assert made.loss == Loss(clip_high=0.3, kl_from="phase")
    assert made.filter == RolloutFilter(max_tries=3, overlong_buffer=7)


@pytest.mark.parametrize(("preset", "in_reward", "in_loss"), [("rloo", 0.1, 0.0), ("grpo", 0.0, 0.1)])
def test_the_kl_is_in_the_reward_or_in_the_loss(preset: str, in_reward: float, in_loss: float) -> None:
    made = make_objective(preset, {"kl_coef": 0.1})
    assert (made.estimator.kl_coef, made.loss.kl_coef) == (in_reward, in_loss)
    assert made.loss.is_regularised == (in_loss > 0)
