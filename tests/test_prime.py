"""PRIME: token rewards from a log-ratio, their baselines by hand, the modes of the reward model, and the traps."""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import milonga
from cases import FAST, TINY
from helpers import PROPERTY, make_rollout
from milonga.api import make_engine
from milonga.context import Context, RunContext
from milonga.errors import ConfigError
from milonga.resolve import Plan, resolve
from milonga.runfolder.files import JsonLines
from milonga.systems.prime.credit import (
    ImplicitCredit,
    combine_advantages,
    filter_by_accuracy,
    process_contribution_stats,
    rescale_rewards,
)
from milonga.systems.prime.recipe import Prime, PrimeOptions, compute_pair_accuracy, step_auroc
from milonga.types import Floats, Grade, Parsed, Problem, Rollout, Rollouts, TrainBatch, Verification

torch.set_num_threads(1)
EMBEDDED = Path(milonga.__file__).parent / "embedded" / "base"
OPEN = {"accuracy_low": 0.0, "accuracy_high": 1.0}


def rows(*tokens: list[float], groups: str = "") -> tuple[list[Floats], Rollouts]:
    """Rollouts with a prompt of two tokens and these rewards; one group, or as named."""
    names = groups or "p" * len(tokens)
    rollouts = Rollouts(make_rollout(2, len(t), problem=names[i], correct=i % 2 == 0, id=f"t{i}") for i, t in enumerate(tokens))
    return [np.array([0.0, 0.0, *t]) for t in tokens], rollouts


def advantages(form: ImplicitCredit, *tokens: list[float], outcomes: list[float] | None = None) -> list[list[float]]:
    rewards, rollouts = rows(*tokens)
    known = np.array(outcomes if outcomes is not None else [1.0] * len(tokens))
    found = form.advantages(rewards, known, rollouts, rollouts.problem_ids)
    assert all(not array[:2].any() for array in found)  # nothing for the prompt
    return [array[2:].tolist() for array in found]


# The baseline, by hand. Means per token: 0.3 and 0.2. Sums: 0.6 and 0.8.
SHORT, LONG = [0.4, 0.2], [0.1, -0.1, 0.2, 0.6]


def test_the_baseline_is_the_others_reward_per_token() -> None:
    short, long = advantages(ImplicitCredit(), SHORT, LONG)
    assert short == pytest.approx([0.2, 0.0])
    assert long == pytest.approx([-0.4, -0.2, 0.2, 0.3])


def test_the_public_code_differs_after_the_first_token() -> None:
    short, long = advantages(ImplicitCredit(loo="code"), SHORT, LONG)
    assert short == pytest.approx([0.2, -0.1])
    assert long == pytest.approx([-0.4, -0.1, 0.6, 0.7])


def test_the_other_baselines_by_hand() -> None:
    assert advantages(ImplicitCredit("centre"), SHORT, LONG)[0] == pytest.approx([0.1, -0.05])
    deviation = math.sqrt(0.005)  # of 0.3 and 0.2, unbiased
    assert advantages(ImplicitCredit("zscore"), SHORT, LONG)[0] == pytest.approx([0.1 / deviation, -0.05 / deviation], rel=1e-4)
    # By whole scores the short one is behind by 0.2, at its first token; spread over its two tokens.
    assert advantages(ImplicitCredit(level="sequence"), SHORT, LONG)[0] == pytest.approx([-0.2, -0.2])
    assert advantages(ImplicitCredit(gamma=0.5), SHORT, LONG)[1] == pytest.approx([-0.3875, -0.375, 0.05, 0.3])
    assert advantages(ImplicitCredit(length_norm=True), SHORT, LONG)[1] == pytest.approx([-0.1, -0.05, 0.05, 0.075])


tokens = st.lists(st.floats(-2, 2), min_size=1, max_size=6)
group = st.lists(tokens, min_size=2, max_size=5)


@PROPERTY
@given(group)
def test_formula_and_code_differ_by_what_the_trap_says(found: list[list[float]]) -> None:
    """(r_t - its own mean) / (K - 1) at each token: nothing at the first after summing."""
    formula, code = advantages(ImplicitCredit(), *found), advantages(ImplicitCredit(loo="code"), *found)
    for own, one, other in zip(found, formula, code, strict=True):
        extra = (np.array(own) - np.mean(own)) / (len(found) - 1)
        assert np.array(other) - np.array(one) == pytest.approx(np.cumsum(extra[::-1])[::-1], abs=1e-9)
        assert other[0] == pytest.approx(one[0], abs=1e-9)


@PROPERTY
@given(group)
def test_the_first_tokens_credit_grows_with_the_length(found: list[list[float]]) -> None:
    """len(y_i) * (own mean - mean of the others' means): the bias that `length_norm` takes away."""
    means = [float(np.mean(t)) for t in found]
    plain, normed = advantages(ImplicitCredit(), *found), advantages(ImplicitCredit(length_norm=True), *found)
    for i, own in enumerate(found):
        lead = means[i] - float(np.mean(means[:i] + means[i + 1 :]))
        assert plain[i][0] == pytest.approx(len(own) * lead, abs=1e-9)
        assert normed[i][0] == pytest.approx(lead, abs=1e-9)


@PROPERTY
@given(group, st.floats(-3, 3))
def test_what_the_rewards_know_of_the_problem_alone_cancels(found: list[list[float]], bias: float) -> None:
    """By whole scores at any lengths; by token means only where the lengths are equal."""
    shifted = [[r + bias / len(own) for r in own] for own in found]
    form = ImplicitCredit(level="sequence")
    for one, other in zip(advantages(form, *found), advantages(form, *shifted), strict=True):
        assert one == pytest.approx(other, abs=1e-9)
    alike = [own[: min(map(len, found))] for own in found]
    moved = [[r + bias for r in own] for own in alike]
    for one, other in zip(advantages(ImplicitCredit(), *alike), advantages(ImplicitCredit(), *moved), strict=True):
        assert one == pytest.approx(other, abs=1e-9)


def test_by_token_means_a_bias_does_not_cancel_at_unequal_lengths() -> None:
    short, long = advantages(ImplicitCredit(), [0.5, 0.5], [0.25] * 4)  # both score 1
    assert short == pytest.approx([0.5, 0.25]) and long == pytest.approx([-1.0, -0.75, -0.5, -0.25])


# Scale.


def test_rewards_are_rescaled_by_the_whole_batch_not_by_a_part_of_it() -> None:
    rewards, rollouts = rows([0.5, 0.5], [-3.0, -1.0], groups="ab")
    largest = rescale_rewards(rewards, rollouts, "max_return")
    assert [r[2:].tolist() for r in largest] == [[0.125, 0.125], [-0.75, -0.25]]
    deviation = float(np.std([1.0, 0.5, -4.0, -1.0]))
    assert rescale_rewards(rewards, rollouts, "std")[1][2:] == pytest.approx([-3 / deviation, -1 / deviation])
    assert all(np.array_equal(a, b) for a, b in zip(rescale_rewards(rewards, rollouts, "none"), rewards, strict=True))
    zero = [0.0 * r for r in rewards]
    assert not any(r.any() for how in ("max_return", "std") for r in rescale_rewards(zero, rollouts, how))  # type: ignore[arg-type]


def test_each_source_has_its_own_weight() -> None:
    ones, rollouts = rows([1.0], [1.0])
    twos = [2 * array for array in ones]
    assert [a[2:].tolist() for a in combine_advantages(ones, twos, (5.0, 0.25), rollouts, "off")] == [[5.5], [5.5]]
    assert [a[2:].tolist() for a in combine_advantages(ones, twos, (0.0, 1.0), rollouts, "off")] == [[2.0], [2.0]]
    assert PrimeOptions().outcome_weight == PrimeOptions().process_weight == 1.0


def test_full_whitening_can_turn_signs_and_std_only_cannot() -> None:
    """A long rollout with much credit pulls the mean up: the short one's small gain becomes a loss."""
    credit, rollouts = rows([0.1], [2.0] * 8, [-0.1])
    nothing = [np.zeros(len(a)) for a in credit]
    full = combine_advantages(credit, nothing, (1.0, 1.0), rollouts, "full")
    scaled = combine_advantages(credit, nothing, (1.0, 1.0), rollouts, "std_only")
    assert full[0][2] < 0 < scaled[0][2] and scaled[2][2] < 0
    pooled = np.concatenate([a[2:] for a in scaled])
    assert pooled.std() == pytest.approx(1.0, abs=1e-5)


def test_the_notes_say_what_each_source_adds_and_whether_length_does() -> None:
    outcome, rollouts = rows([1.0, 1.0], [1.0] * 4, [1.0] * 3)
    process = [np.array([0.0, 0.0] + [float(t.length)] * t.length) for t in rollouts]
    notes = process_contribution_stats(outcome, process, (1.0, 0.5), rollouts)
    assert notes["length_correlation"] == pytest.approx(1.0)
    assert notes["advantage_outcome"] == 1.0
    assert notes["advantage_process"] == pytest.approx(0.5 * math.sqrt((2 * 4 + 4 * 16 + 3 * 9) / 9))
    assert notes["process_share"] == pytest.approx(notes["advantage_process"] / (1 + notes["advantage_process"]))


def test_the_filter_includes_its_bounds() -> None:
    right = {"a": [1, 0, 0, 0, 0], "b": [1, 1, 1, 1, 0], "c": [1, 1, 1, 1, 1], "d": [0, 0, 0, 0, float("nan")]}
    correct = np.array([value for values in right.values() for value in values], dtype=float)
    groups = [g for g in "abcd" for _ in range(5)]
    kept = filter_by_accuracy(correct, groups, 0.2, 0.8)
    assert kept.tolist() == [True] * 10 + [False] * 10
    assert filter_by_accuracy(correct, groups, 0.0, 1.0).all()
    assert not filter_by_accuracy(np.array([np.nan, np.nan]), ["a", "a"], 0.0, 1.0).any()


def test_pairs_are_taken_within_problems() -> None:
    rewards, rollouts = rows([1.0], [0.5], [9.0], [10.0], groups="aabb")  # right, wrong, right, wrong
    assert compute_pair_accuracy(rewards, rollouts) == {"pair_accuracy": 0.5}
    assert compute_pair_accuracy(rewards[:1], rollouts[:1]) == {}


def test_the_first_wrong_step_is_held_against_the_right_ones() -> None:
    """What follows an error is not counted: the low score of the last step here is nobody's fault."""

    def check(scores: tuple[float, ...], truth: tuple[bool, ...]) -> Rollout:
        solution = Rollout.from_text("s", "generator", Problem("p", "p", "a"), "", Parsed(None, 1.0), Grade(all(truth), truth))
        found = Rollout.from_text(
            "c", "verifier", solution.problem, "", Parsed(Verification(None, True, step_scores=scores), 1.0)
        )
        return replace(found, targets=(solution,))

    one, other = check((0.9, 0.2, 0.1), (True, False, True)), check((0.6, 0.1), (True, True))
    assert step_auroc(Rollouts([one])) == 1.0
    assert step_auroc(Rollouts([one, other])) == pytest.approx(2 / 3)
    assert step_auroc(Rollouts([other])) is None


# With real models.


def plan(**settings: Any) -> Plan:
    return resolve([{"recipe": "prime"}, TINY, {"policies": {"generator": FAST, "verifier": FAST}}, settings])


def test_published_is_what_the_paper_and_its_code_do() -> None:
    """The baseline, the rescaling and the whitening of the released code, without which process rewards have hardly any part;
    batch, updates, rates, lengths and the filter of the paper."""
    p = resolve([{"recipe": "prime", "published": True, "policies": {"generator": {"model": "a/model"}}}])
    options, (policy, reward_model) = p.config.options, (p.policies[agent] for agent in ("generator", "verifier"))
    assert (options["loo"], options["process_norm"], options["whitening"]) == ("code", "max_return", "full")
    assert (options["prm_update"], options["outcome_weight"], options["process_weight"]) == ("after", 1.0, 1.0)
    assert (options["accuracy_low"], options["accuracy_high"], options["gamma"]) == (0.2, 0.8, 1.0)
    assert (p.config.batch.problems, p.config.batch.rollouts, p.config.turns) == (256, 4, 592)
    assert (p.config.sampling.max_tokens, p.config.sampling.temperature) == (3072, 1.0)
    assert (policy.lr, policy.minibatches, policy.grad_clip, policy.schedule) == (5e-7, 4, 1.0, "constant")
    assert (reward_model.lr, reward_model.minibatches, reward_model.grad_clip) == (1e-6, 4, 10.0)
    assert reward_model.weight_decay == 0.0 and reward_model.schedule == "constant"
    generator, verifier = (p.recipe.objectives[agent] for agent in ("generator", "verifier"))
    assert generator.estimator.advantage == "leave_one_out" and generator.loss.kl_coef == generator.loss.entropy_coef == 0.0
    assert verifier.loss.beta == 0.05 and generator.loss.clip_low == generator.loss.clip_high == 0.2


@cache
def engine() -> Any:
    return make_engine(plan())


def fresh(p: Plan) -> Context:
    """A context with both policies as they start."""
    for policy in ("generator", "verifier"):
        engine().copy(policy, policy, "ref")
    sampling, seed, problems = p.config.sampling, p.config.seed, p.config.batch.problems
    return Context(RunContext(engine(), p.task, p.roles, p.agents, sampling, seed, problems), 1, "generator")


def weights(policy: str) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in engine().policy(policy).parameters]


def moved(policy: str) -> bool:
    return any(not torch.equal(a, b) for a, b in zip(weights(policy), engine().policy(policy).get_tag("ref"), strict=True))


def train_batches(p: Plan, ctx: Context, rollouts: Rollouts) -> dict[str, TrainBatch]:
    """As the loop asks for them: each is learned before the next."""
    found = {}
    for train_batch in p.recipe.credit(ctx, rollouts):
        found[train_batch.policy] = train_batch
        engine().learn(train_batch)
    return found


def test_the_process_reward_is_exactly_zero_at_the_start() -> None:
    p = plan(options=OPEN)
    ctx = fresh(p)
    rollouts = p.recipe.rollout(ctx)
    assert not any(numbers.any() for numbers in ctx.score_tokens("verifier", rollouts))
    found = train_batches(p, ctx, rollouts)
    assert list(found) == ["generator", "verifier"]
    assert found["generator"].sources == {"answers": 1.0, "verifier": 0.0}
    # The outcome alone: one for each rollout, the mean of the others taken off.
    for rollout, advantage in zip(rollouts, found["generator"].advantages or [], strict=True):
        others = [t.correct for t in rollouts if t.problem.id == rollout.problem.id and t is not rollout]
        assert advantage[rollout.mask] == pytest.approx(rollout.correct - np.mean(others))


def test_the_reward_model_learns_from_outcomes_and_moves_nobody_else() -> None:
    p = plan(options=OPEN)
    ctx = fresh(p)
    rollouts = p.recipe.rollout(ctx)
    ctx.learner = "verifier"
    (train_batch,) = p.recipe.credit(ctx, rollouts)
    assert train_batch.labels == rollouts.correct.tolist()
    report = engine().learn(train_batch)
    assert report.loss == pytest.approx(math.log(2), abs=1e-6)  # of a judge that knows nothing
    assert moved("verifier") and not moved("generator")
    assert engine().learn(train_batch).loss < math.log(2)


def test_token_rewards_sum_to_the_score_that_the_loss_and_the_judge_use() -> None:
    """One beta in the loss, in the rewards and in the verdict; the end-of-sequence token has its reward too."""
    p = plan(options=OPEN, policies={"verifier": {"objective": {"beta": 0.3}}})
    ctx = fresh(p)
    rollouts = p.recipe.rollout(ctx)
    train_batches(p, ctx, rollouts)
    assert isinstance(p.recipe, Prime)
    rewards = p.recipe.compute_token_rewards(ctx, rollouts)
    for rollout, reward, check in zip(rollouts, rewards, ctx.judge("verifier", rollouts), strict=True):
        logit = math.log(check.parsed.value.score / (1 - check.parsed.value.score))
        assert reward.sum() == pytest.approx(logit, abs=1e-5)
        assert not reward[~rollout.mask].any() and rollout.mask[-1]
    assert any(reward[-1] != 0 for rollout, reward in zip(rollouts, rewards, strict=True) if rollout.finish == "eos")
    scores = np.array([reward.sum() for reward in rewards])
    expected = np.mean(np.logaddexp(0, np.where(rollouts.correct == 1, -scores, scores)))
    ctx.learner = "verifier"
    (train_batch,) = p.recipe.credit(ctx, rollouts)
    assert engine().learn(train_batch).loss == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize(("mode", "first"), [("after", False), ("before", True), ("none", False)])
def test_the_three_modes_of_the_reward_model(mode: str, first: bool) -> None:
    """In the first turn only a reward model that learns before it scores has anything to say."""
    p = plan(options=OPEN | {"prm_update": mode})
    ctx = fresh(p)
    rollouts = p.recipe.rollout(ctx)
    found = train_batches(p, ctx, rollouts)
    assert list(found) == {"after": ["generator", "verifier"], "before": ["verifier", "generator"], "none": ["generator"]}[mode]
    assert (found["generator"].notes["advantage_process"] > 0) == first
    assert moved("generator") and moved("verifier") == (mode != "none")
    if mode == "before":
        assert found["generator"].sources["verifier"] == pytest.approx(found["generator"].notes["process_share"])


def test_all_rollouts_are_scored_before_the_first_step_of_the_reward_model() -> None:
    """With several steps for each turn, later rows must not be scored by a model that has half learned."""
    p = plan(options=OPEN)
    ctx = fresh(p)
    rollouts = p.recipe.rollout(ctx)
    train_batches(p, ctx, rollouts)
    assert isinstance(p.recipe, Prime)
    expected = p.recipe.compute_token_rewards(ctx, rollouts)
    given = iter(p.recipe.credit(ctx, rollouts))
    by_hand = p.recipe.credit_generator(ctx, rollouts, expected)
    first = next(given)
    assert all(np.array_equal(a, b) for a, b in zip(first.advantages or [], by_hand.advantages or [], strict=True))


def test_the_truth_of_steps_rewards_nobody() -> None:
    p = plan(options=OPEN)
    ctx = fresh(p)
    rollouts = p.recipe.rollout(ctx)
    train_batches(p, ctx, rollouts)
    before = list(p.recipe.credit(ctx, rollouts))
    for rollout in rollouts:
        assert rollout.grade is not None and rollout.grade.steps is not None
        rollout.grade = Grade(rollout.grade.correct, tuple(not right for right in rollout.grade.steps))
    after = list(p.recipe.credit(ctx, rollouts))
    assert before[0].advantages is not None and any(a.any() for a in before[0].advantages)
    assert all(np.array_equal(a, b) for a, b in zip(before[0].advantages, after[0].advantages or [], strict=True))
    assert before[1].labels == after[1].labels


def test_problems_outside_the_filter_are_replaced_and_teach_nothing() -> None:
    p = plan(batch={"problems": 8, "rollouts": 2})
    ctx = fresh(p)
    rollouts = p.recipe.rollout(ctx)
    groups: dict[str, list[float]] = {}
    for rollout in rollouts:
        groups.setdefault(rollout.problem.id, []).append(rollout.correct)
    assert len(groups) == 8 and all(np.mean(outcomes) == 0.5 for outcomes in groups.values())
    assert ctx.drawn > 8
    # No share of four rollouts lies between 0.3 and 0.4: the turn goes on with what there is, and nobody learns from it.
    none = plan(options={"accuracy_low": 0.3, "accuracy_high": 0.4}, policies={"generator": {"objective": {"max_tries": 2}}})
    ctx = fresh(none)
    rollouts = none.recipe.rollout(ctx)
    assert len(rollouts) == 16 and ctx.drawn == 8
    train_batches(none, ctx, rollouts)
    assert not moved("generator") and not moved("verifier")


def test_a_warmed_up_reward_model_goes_on_learning_or_stays_as_it_is(tmp_path: Path) -> None:
    """Both arms of the claim share the warm-up to the last bit."""
    found = {}
    for mode in ("after", "none"):
        settings = TINY | {"options": {"prm_warmup": 2, "prm_update": mode}, "policies": {"generator": FAST, "verifier": FAST}}
        milonga.run("prime", turns=2, out=tmp_path / mode, settings=settings, quiet=True)
        found[mode] = JsonLines(tmp_path / mode / "metrics.jsonl").rows()
    online, frozen = found["after"], found["none"]
    assert [row["learner"] for row in frozen[1:]] == ["verifier", "verifier", "generator", "generator"]
    assert online[:3] == frozen[:3]
    assert all(row["learn/verifier/grad_norm"] > 0 for row in online[1:])
    assert all(row["credit/generator/process_share"] > 0 for row in frozen[3:])
    assert not any("learn/verifier/loss" in row for row in frozen[3:])


def test_generator_and_reward_model_need_one_vocabulary(tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(EMBEDDED, other)
    spelt = json.loads((other / "tokenizer.json").read_text())
    names = spelt["model"]["vocab"]
    names["7"], names["8"] = names["8"], names["7"]
    (other / "tokenizer.json").write_text(json.dumps(spelt))
    settings = TINY | {"dialect": "terse"}
    with pytest.raises(ConfigError, match="one vocabulary"):
        milonga.run("prime", turns=1, models={"verifier": str(other)}, out=tmp_path / "run", settings=settings, quiet=True)


def test_settings_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ConfigError, match="no form for advantage 'whiten'"):
        plan(policies={"generator": {"objective": {"preset": "reinforce_pp"}}})
    with pytest.raises(ConfigError, match="accuracy_low"):
        plan(options={"accuracy_low": 0.9})
    with pytest.raises(ConfigError, match="implicit_bce"):
        plan(policies={"verifier": {"objective": {"preset": "grpo"}}})
    with pytest.raises(ConfigError, match="two sets of weights"):
        plan(binding="shared", policies={})
