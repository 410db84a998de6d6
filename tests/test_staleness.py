"""Samples of older versions: what they count, by hand, and which runs refuse them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch

from cases import TINY
from engine_helpers import engine_of, gap, gradients, model_folder, sample_rollouts, train_batch, weights
from helpers import make_rollout
from milonga.api import make_engine
from milonga.config import PlacementSection
from milonga.context import Context, RunContext
from milonga.credit.staleness import mean_staleness, token_staleness
from milonga.engine import Completion, Decoding, Request
from milonga.engine.local import LocalEngine
from milonga.engine.pinned import PinnedSampler, Stopped
from milonga.errors import ConfigError, UserError
from milonga.loop import Loop
from milonga.objectives import PRESETS, make_objective
from milonga.objectives.losses import policy_gradient, truncated_weights
from milonga.prefetch import Prefetcher, isolate_recipe
from milonga.recipe import ALLOWED, Refused
from milonga.resolve import resolve
from milonga.runfolder.console import LiveView
from milonga.runfolder.folder import RunFolder
from milonga.schedule import Gate, until
from milonga.systems.grpo.recipe import Grpo
from milonga.systems.index import RECIPES
from milonga.types import Rollouts, TrainBatch

PLACED: dict[str, Any] = {"engine": "ray", "placement": {"samplers": 1}, "staleness": 1}


def test_weights_by_hand() -> None:
    sampled = torch.tensor([0.5, 0.5, 0.5, 1e-30]).log()
    now = torch.tensor([0.5, 0.25, 0.8, 1.0]).log()
    weight, cut = truncated_weights(now, sampled, 1.5)
    assert weight.tolist() == pytest.approx([1.0, 0.5, 1.5, 1.5]) and cut.tolist() == [False, False, True, True]
    weight, cut = truncated_weights(now[:3], sampled[:3], 2.0)
    assert weight.tolist() == pytest.approx([1.0, 0.5, 1.6]) and not cut.any()
    weight, cut = truncated_weights(sampled, sampled, 1.0)
    assert weight.tolist() == [1.0] * 4 and not cut.any()


def test_decoupled_clipping_by_hand() -> None:
    """w min(r A, clip(r) A), with r = pi / pi_now between 0.8 and 1.2 and w = min(pi_now / pi_sampled, 2). Of the five tokens
    the second is clipped as too far up, the third as too far down; the last two are far from who sampled, not from now."""
    sampled = torch.tensor([0.5, 0.5, 0.2, 0.1, 0.8]).log()
    now = torch.tensor([0.5, 0.5, 0.5, 0.4, 0.2]).log()
    logp = torch.tensor([0.55, 0.7, 0.3, 0.44, 0.22]).log()
    weight, _ = truncated_weights(now, sampled, 2.0)
    advantage = weight * torch.tensor([1.0, 1.0, -1.0, 1.0, -1.0])
    loss = make_objective("grpo", {"clip_low": 0.2, "clip_high": 0.2}).loss
    found, cut = policy_gradient(loss, logp, now, advantage, torch.arange(5), torch.ones(5))
    assert found.tolist() == pytest.approx([1.1, 1.2, 2 * -0.8, 2 * 1.1, 0.25 * -1.1])
    assert cut.tolist() == [False, True, True, False, False]


def old_train_batch() -> TrainBatch:
    """Of version 3: two tokens after a prompt of one, one after two, and two without credit."""
    rows = [
        make_rollout(1, 2, logprobs=np.log([0.5, 0.2])),
        make_rollout(2, 1, logprobs=np.log([0.5]), id="u"),
        make_rollout(0, 2, logprobs=np.log([0.1, 0.1]), id="v"),
    ]
    rows = [replace(t, segments=(t.segments[0], replace(t.segments[1], version=3))) for t in rows]
    advantages = [np.array([0.0, 1.0, -1.0]), np.array([0.0, 0.0, 2.0]), np.zeros(2)]
    return TrainBatch("generator", make_objective("grpo").loss, Rollouts(rows), advantages=advantages)


def test_age_counts_only_what_the_learner_sampled() -> None:
    train_batch = old_train_batch()
    assert token_staleness(train_batch.rollouts[0], "generator", 5).tolist() == [0.0, 2.0, 2.0]
    assert token_staleness(train_batch.rollouts[0], "verifier", 5).tolist() == [0.0] * 3
    assert (
        mean_staleness(train_batch, 3) == 0
        and mean_staleness(train_batch, 4) == 1
        and mean_staleness(replace(train_batch, policy="verifier"), 9) == 0
    )


@pytest.mark.parametrize("preset", [n for n in PRESETS if PRESETS.get(n).kind == "policy_gradient"])
def test_a_weight_on_the_advantage_is_a_weight_on_the_token(preset: str) -> None:
    """With every kind of clipping, on both sides of the bounds; so that a correction needs no place in the losses."""
    loss = make_objective(preset).loss
    loss = loss.model_copy(update={"dual_clip": 1.5}) if loss.clip == "ppo" else loss
    draw = np.random.default_rng(0)
    logp, old, advantage = (torch.tensor(draw.normal(size=40)) for _ in range(3))
    weight, rows = torch.tensor(draw.uniform(0, 2, 40)), torch.arange(40) // 8
    lengths = torch.full((5,), 8)
    plain, cut = policy_gradient(loss, logp, old, advantage, rows, lengths)
    weighed, also = policy_gradient(loss, logp, old, weight * advantage, rows, lengths)
    assert torch.allclose(weighed, weight * plain) and torch.equal(cut, also)


def test_other_train_batches_cannot_be_corrected() -> None:
    with pytest.raises(ValueError, match="'cross_entropy' cannot learn from older samples"):
        TrainBatch("generator", make_objective("cross_entropy").loss, old_train_batch().rollouts, stale_cap=2.0)


CAP = 1.05
MIXED = [1.0, -0.5, 2.0, 0.0, -1.5, 0.7, 0.0, 1.2]
TAUGHT: dict[str, dict[str, Any]] = {
    "grpo": {},
    "dr_grpo": {"kl_coef": 0.1, "length": 16, "entropy_coef": 0.01},
    "gspo": {},
    "reinforce_pp": {"ratio": "none", "clip": "none"},
}


WEIGHED: dict[str, dict[str, Any]] = {"cispo": {"is_max": CAP}, "aipo": {"is_max": CAP}, "aipo_a": {"is_max": CAP}}
"""Losses whose ratio to who sampled is the weight; bounds within reach of what has been learned since."""


def aged(tmp_path: Path, preset: str = "grpo", **options: Any) -> tuple[LocalEngine, TrainBatch]:
    """An engine that has learned something else since it sampled these rows."""
    engine = engine_of(model_folder(tmp_path), lr=1e-3, grad_clip=1e9, **options)
    rows = sample_rollouts(engine)
    engine.learn(train_batch(sample_rollouts(engine, seed=1), MIXED[::-1]))
    return engine, train_batch(rows, MIXED, preset, **(TAUGHT | WEIGHED)[preset])


def by_hand(engine: LocalEngine, taught: TrainBatch) -> tuple[TrainBatch, float, float]:
    """The weighted advantages, against log-probabilities of now: what an ordinary train batch needs to be this one. And the
    mean weight, and the share that is cut off."""
    assert taught.advantages is not None
    rows, advantages, weights = list(taught.rollouts), list(taught.advantages), []
    for row, new in enumerate(engine.score("p", taught.rollouts)):
        if advantages[row].any():
            ratio = np.exp(new - rows[row].logprobs)
            weights += list(ratio[rows[row].mask])
            advantages[row], rows[row] = advantages[row] * np.minimum(ratio, CAP), replace(rows[row], logprobs=new)
    mean, share = np.mean(np.minimum(weights, CAP)), np.mean(np.array(weights) > CAP)
    return replace(taught, rollouts=Rollouts(rows), advantages=advantages), float(mean), float(share)


@pytest.mark.parametrize("preset", TAUGHT)
def test_one_step_from_older_samples_needs_no_scores_of_its_own(tmp_path: Path, preset: str) -> None:
    engine, taught = aged(tmp_path, preset)
    expected, mean, share = by_hand(engine, taught)
    assert abs(mean - 1) > 1e-3 and 0.05 < share < 0.95
    before = engine.ledger.policies["p"].score
    found = gradients(engine, replace(taught, stale_cap=CAP))
    scored = engine.ledger.policies["p"].score - before
    assert scored == (sum(len(t.ids) for t in taught.rollouts) if TAUGHT[preset].get("kl_coef") else 0), "the start's alone"
    assert gap(found, gradients(engine, expected)) < 1e-6
    assert gap(found, gradients(engine, taught)) > 1e-3, "nothing was corrected"
    report, plain = engine.learn(replace(taught, stale_cap=CAP)), engine.learn(taught)
    assert (report.stale_weight, report.stale_truncated) == (pytest.approx(mean, rel=1e-6), pytest.approx(share, rel=1e-6))
    assert (plain.stale_weight, plain.stale_truncated) == (1.0, 0.0)


@pytest.mark.parametrize("preset", WEIGHED)
def test_a_ratio_that_is_an_importance_weight_is_to_who_sampled(tmp_path: Path, preset: str) -> None:
    """AIPO's rho = min(pi / mu, is_max), with mu the version that sampled: no other weight stands beside it."""
    engine, taught = aged(tmp_path, preset)
    assert taught.advantages is not None
    most, rows = taught.loss.is_max, [t for t, value in zip(taught.rollouts, MIXED, strict=True) if value]
    pairs = zip(engine.score("p", Rollouts(rows)), rows, strict=True)
    ratios = np.concatenate([np.exp(new - t.logprobs)[t.mask] for new, t in pairs])
    assert 0.05 < np.mean(ratios > most) < 0.95, "rho would not be seen"
    found = gradients(engine, replace(taught, stale_cap=100.0))
    assert gap(found, gradients(engine, taught)) < 1e-6, "the train batch as it was sampled, whatever staleness_cap says"
    other = replace(taught, loss=taught.loss.model_copy(update={"is_max": 100.0}))
    assert gap(found, gradients(engine, replace(other, stale_cap=100.0))) > 1e-3, "rho is not used"
    report = engine.learn(replace(taught, stale_cap=100.0))
    assert report.stale_weight == pytest.approx(np.minimum(ratios, most).mean(), rel=1e-6)
    assert report.stale_truncated == pytest.approx(np.mean(ratios > most), rel=1e-6)


@pytest.mark.parametrize("parts", [{"epochs": 2}, {"minibatches": 2}])
def test_several_steps_from_older_samples_are_those_of_scores_before_the_first(tmp_path: Path, parts: dict[str, int]) -> None:
    engine, taught = aged(tmp_path, **parts)
    other, _ = aged(tmp_path, **parts)
    expected, mean, share = by_hand(other, taught)
    before = engine.ledger.policies["p"].score
    report = engine.learn(replace(taught, stale_cap=CAP))
    credited = sum(len(t.ids) for t, value in zip(taught.rollouts, MIXED, strict=True) if value)
    assert engine.ledger.policies["p"].score - before == credited, "rows without credit are not scored"
    assert other.learn(expected).steps == report.steps == 2
    assert gap(weights(engine), weights(other)) < 1e-6
    assert (report.stale_weight, report.stale_truncated) == (pytest.approx(mean, rel=1e-6), pytest.approx(share, rel=1e-6))


@pytest.mark.parametrize("parts", [{}, {"epochs": 2}])
def test_the_mismatch_of_older_samples_is_to_who_sampled_them(tmp_path: Path, parts: dict[str, int]) -> None:
    engine, taught = aged(tmp_path, **parts)
    rows = [t for t, value in zip(taught.rollouts, MIXED, strict=True) if value]
    now = engine.score("p", Rollouts(rows))
    apart = np.concatenate([np.abs(new - t.logprobs)[t.mask] for new, t in zip(now, rows, strict=True)])
    report = engine.learn(replace(taught, stale_cap=CAP))
    assert report.mismatch == pytest.approx(apart.mean(), rel=1e-5) and apart.mean() > 1e-3


@pytest.mark.parametrize("recipe", ["grpo", "tango", "frozen", "oracle", "verifier_only"])
def test_recipes_that_only_sample_may_overlap(recipe: str) -> None:
    pytest.importorskip("ray")
    assert resolve([{"recipe": recipe}, PLACED]).config.staleness == 1


@pytest.mark.parametrize("recipe", [n for n in RECIPES if RECIPES.get(n).overlap != ALLOWED])
def test_all_others_refuse_with_their_reason(recipe: str) -> None:
    pytest.importorskip("ray")
    with pytest.raises(ConfigError, match="does not run with staleness=1") as refused:
        resolve([{"recipe": recipe}, PLACED])
    overlap = RECIPES.get(recipe).overlap
    assert isinstance(overlap, Refused) and overlap.reason in str(refused.value)


OWN = """
from milonga.recipe import ALLOWED
from milonga.systems.grpo.recipe import Grpo


class Mine(Grpo):
    def rollout(self, ctx):
        return super().rollout(ctx)
"""


def test_a_permission_is_not_inherited(tmp_path: Path) -> None:
    """What a subclass changes nobody can know: it says itself that its turns may overlap. A reason why not is inherited."""
    pytest.importorskip("ray")
    (tmp_path / "mine.py").write_text(OWN)
    with pytest.raises(ConfigError, match="its class does not say, by `overlap`, that its turns need nothing"):
        resolve([{"recipe": f"{tmp_path / 'mine.py'}:Mine"}, PLACED])
    (tmp_path / "allowed.py").write_text(OWN + "    overlap = ALLOWED\n")
    assert resolve([{"recipe": f"{tmp_path / 'allowed.py'}:Mine"}, PLACED]).config.staleness == 1
    assert RECIPES.get("tango_free_adversary").overlap == RECIPES.get("tango_free").overlap != ALLOWED
    allowed = {"grpo", "tango", "frozen", "sequential", "oracle", "verifier_only"}
    assert {n for n in RECIPES if RECIPES.get(n).overlap == ALLOWED} == allowed


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"engine": "local"}, "set engine=ray and placement.samplers=1, or staleness=0"),
    ({"placement": {"samplers": 0}}, "set engine=ray and placement.samplers=1, or staleness=0"),
    ({"placement": {"policies": {"generator": {"samplers": 0}}}}, "set engine=ray and placement.samplers=1"),
    ({"placement": {"transfer": "nccl"}}, "set placement.transfer=store"),
    ({"budget": {"tokens": 1e6}}, "with a budget each turn decides whether there is another"),
    ({"policies": {"generator": {"objective": {"preset": "dapo"}}}}, "policies.generator.objective.dynamic_sampling=false"),
    ({"staleness": -1}, "staleness"),
    ({"staleness_cap": 0.5}, "staleness_cap"),
]


@pytest.mark.parametrize(("mistake", "said"), REFUSED)
def test_runs_that_cannot_overlap_say_what_to_set(mistake: dict[str, Any], said: str) -> None:
    pytest.importorskip("ray")
    with pytest.raises(ConfigError) as refused:
        resolve([{"recipe": "grpo"}, PLACED, mistake])
    assert said in str(refused.value)


def test_phases_that_wait_for_a_metric_refuse(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray")
    monkeypatch.setattr(RECIPES.get("grpo"), "schedule", lambda self: until("generator", Gate("eval/generator/accuracy", 0.5)))
    with pytest.raises(ConfigError, match="each turn of 'grpo' decides whether its phase goes on"):
        resolve([{"recipe": "grpo"}, PLACED])


class Still(PinnedSampler):
    """A local engine that nobody trains meanwhile."""

    def draw(self, policy: str, requests: Sequence[Request], decoding: Decoding) -> list[Completion]:
        return self.engine.sample(policy, requests, decoding)


def test_asynchronous_rollouts_can_only_sample(tmp_path: Path) -> None:
    """What goes wrong in a turn comes out where it is taken, and not before."""
    plan = resolve([TINY, {"recipe": "grpo"}])
    engine = make_engine(plan)
    view = Still(engine, {"generator": 7})
    run_context = RunContext(view, plan.task, plan.roles, plan.agents, plan.config.sampling, 0, 2)
    ctx = Context(run_context, 1, "generator")
    rollouts = ctx.ask("generator", ctx.problems())
    assert {t.segments[-1].version for t in rollouts} == {7} and not engine.ledger.policies.keys() ^ {"generator"}
    refused: list[Callable[[], Any]] = [
        lambda: ctx.ask("generator", ctx.problems(), tag="ref"),
        lambda: ctx.compute_logprobs("generator", rollouts),
        lambda: view.values("generator", rollouts),
        lambda: view.learn(old_train_batch()),
        lambda: view.publish("generator"),
        lambda: view.snapshot("generator", "now"),
        lambda: view.copy("generator", "generator"),
        lambda: view.save(tmp_path),
        lambda: view.load(tmp_path),
        lambda: view.export("generator", tmp_path),
        view.checkpoint_bytes,
    ]
    for ask in refused:
        with pytest.raises(ValueError, match=r"asynchronous rollouts cannot .* says in `overlap` why"):
            ask()
    with pytest.raises(NotImplementedError, match="LocalEngine has no samplers"):
        engine.sampling_view()


def test_turns_draw_one_problem_after_another_and_errors_come_out_in_order() -> None:
    plan = resolve([TINY, {"recipe": "grpo"}])
    engine = Freezing(make_engine(plan), {"generator": 0})
    run_context = RunContext(engine, plan.task, plan.roles, plan.agents, plan.config.sampling, 0, 2)

    def rollout(ctx: Context) -> Rollouts:
        if ctx.turn == 3:
            raise ValueError("turn 3")
        ctx.problems(int(ctx.turn))
        return Rollouts([])

    prefetcher = Prefetcher(rollout, engine, staleness=1)
    prefetcher.begin(Context(run_context, turn, "generator", start=10) for turn in range(1, 6))
    assert prefetcher.take_next().ctx.start == 10 and engine.views_taken == 2
    prefetcher.submit_next()
    second = prefetcher.take_next()
    assert second.ctx.start == 11 and engine.views_taken == 3
    assert second.hidden_seconds(second.ended + 1) == second.ended - second.began and second.hidden_seconds(second.began) == 0
    with pytest.raises(ValueError, match="turn 3"):
        prefetcher.take_next()
    assert not prefetcher.is_empty
    prefetcher.close()


class Looking(Grpo):
    """Plays by what it remembers, though it says that it does not."""

    overlap = ALLOWED

    def rollout(self, ctx: Context) -> Rollouts:
        if ctx.turn == 1:
            self.state["seen"] = 1
        if ctx.turn == 2:
            assert "seen" not in self.state
        if ctx.turn == 3:
            self.group_size += 1
            return Rollouts([])
        return ctx.preferences.kept  # type: ignore[return-value]


def test_rollouts_cannot_reach_what_learning_changes() -> None:
    plan = resolve([TINY, {"recipe": "grpo"}])
    recipe = Looking(plan.recipe.options, plan.recipe.objectives, plan.recipe.policies, 2)
    engine = Freezing(make_engine(plan), {"generator": 0})
    run_context = RunContext(engine, plan.task, plan.roles, plan.agents, plan.config.sampling, 0, 2)
    prefetcher = Prefetcher(isolate_recipe(recipe), engine, staleness=3)
    prefetcher.begin(Context(run_context, turn, "generator") for turn in (1, 2, 3, 4))
    state = "use the recipe's `state`"
    for what in (state, state, "set attributes of the recipe", "use the pairs that were kept"):
        with pytest.raises(ValueError, match=f"asynchronous rollouts cannot {what}"):
            prefetcher.take_next()
    prefetcher.close()
    assert recipe.state == {} and recipe.group_size == 2


def test_who_closes_waits_for_the_call_under_way_and_for_no_other() -> None:
    plan = resolve([TINY, {"recipe": "grpo"}])
    engine = Freezing(make_engine(plan), {"generator": 0})
    run_context = RunContext(engine, plan.task, plan.roles, plan.agents, plan.config.sampling, 0, 2)
    asked, reached = threading.Event(), []

    def rollout(ctx: Context) -> Rollouts:
        ctx.ask("generator", ctx.problems())
        asked.set()
        assert prefetcher.stop.wait(60)
        reached.append("the end of the first call")
        ctx.ask("generator", ctx.problems())
        reached.append("the end of the second")
        return Rollouts([])

    prefetcher = Prefetcher(rollout, engine, staleness=1)
    prefetcher.begin(Context(run_context, turn, "generator") for turn in (1, 2))
    assert asked.wait(60)
    prefetcher.close()
    assert reached == ["the end of the first call"]
    with pytest.raises(Stopped):
        prefetcher.take_next()
    with pytest.raises(CancelledError):
        prefetcher.take_next()


def test_a_thread_that_missed_the_end_starts_no_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a run that was interrupted twice: the call under way fails when its workers go, and would start them again."""
    pytest.importorskip("ray")
    from milonga.engine.ray import group

    monkeypatch.setattr(group.ray, "is_initialized", lambda: False)
    monkeypatch.setattr(group, "placement_group", lambda *_, **__: pytest.fail("workers were placed"))
    with pytest.raises(UserError, match="samplers: not started, since the engine was closed"):
        group.Group("samplers", cast(Any, None), 1, PlacementSection()).start()


class Asking(Grpo):
    """Asks a agent again when it gives credit."""

    overlap = ALLOWED

    def credit(self, ctx: Context, rollouts: Rollouts) -> list[TrainBatch]:
        ctx.ask("generator", [rollout.problem for rollout in rollouts[:1]])
        return super().credit(ctx, rollouts)


def test_credit_cannot_ask_samplers_that_are_busy_with_the_next_turns(tmp_path: Path) -> None:
    """They would be given other weights under the hands of who plays."""
    plan = resolve([TINY, {"recipe": "grpo", "turns": 2, "keep": {"checkpoint_every": 9}, "eval": {"every": 100}}])
    recipe = Asking(plan.recipe.options, plan.recipe.objectives, plan.recipe.policies, 2)
    plan = replace(plan, recipe=recipe, config=plan.config.model_copy(update={"staleness": 1}))
    engine = Freezing(make_engine(plan), {"generator": 0})
    with RunFolder(tmp_path, 1) as folder:
        loop = Loop(plan, engine, folder, LiveView("", None, quiet=True))
        for _ in range(2):
            with pytest.raises(ValueError, match="the generator cannot be asked while later turns are sampled"):
                recipe.credit(*loop.take_prefetched(loop.next_cursor()))
        loop.prefetcher.close()


class Fleeting(dict[Any, Any]):
    """What another thread takes out as soon as it is in."""

    def __setitem__(self, key: Any, value: Any) -> None:
        return None


def test_weights_are_handed_over_though_a_sampler_of_another_thread_is_lost() -> None:
    pytest.importorskip("ray")
    from milonga.engine.ray.samplers import Handover

    learners: Any = SimpleNamespace(call_workers=lambda method, *_, **__: ([method], []))
    handover = Handover({}, {"generator": learners}, PlacementSection())
    handover.stamps["generator", "live"], handover.sent = 3, Fleeting()
    handed = handover.get_newest("generator")
    assert handed is not None and (handed.stamp, handed.weights) == (3, "weights")


def test_prefetched_turns_know_how_far_the_run_is(tmp_path: Path) -> None:
    """At their own place, though they are set up together."""
    plan = resolve([TINY, {"recipe": "grpo", "turns": 4, "keep": {"checkpoint_every": 3}, "eval": {"every": 100}}])
    with RunFolder(tmp_path, 1) as folder:
        loop = Loop(plan, make_engine(plan), folder, LiveView("", None, quiet=True))
        tables = [loop.make_context(*turn) for turn in loop.list_prefetchable_turns(loop.next_cursor())]
    assert [ctx.turn for ctx in tables] == [1, 2, 3]
    assert [ctx.progress for ctx in tables] == [0.0, 0.25, 0.5]


class Freezing(Still):
    """One that counts how often it was asked for what is published."""

    views_taken = 0

    def sampling_view(self) -> Still:
        self.views_taken += 1
        return Still(self.engine, self.versions)


def test_a_judge_behind_an_endpoint_is_not_overlapped() -> None:
    pytest.importorskip("ray")
    judge = {"policies": {"verifier": {"model": "openai:http://127.0.0.1:9/v1#judge"}}, "dialect": "terse"}
    with pytest.raises(ConfigError, match="behind an endpoint"):
        resolve([{"recipe": "frozen"}, PLACED, judge])
