"""DeepSeekMath-V2 (arXiv 2511.22570): a verifier lists defects, a meta-verifier keeps it honest, a generator grades itself.

The verifier learns to score proofs, then to score them for reasons that the meta-verifier confirms. The generator starts from
the verifier's weights, writes a proof and grades it; it is rewarded by the verifier's score and for an honest grade. From the
second iteration on the verifier also learns from the generator's proofs, with labels made by voting.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Literal

import numpy as np
from pydantic import Field

from milonga.context import Context
from milonga.credit import outcome_advantages
from milonga.errors import ConfigError
from milonga.evals.metrics import mean
from milonga.patterns.imitation import make_imitation_batch, sample_demonstrations
from milonga.recipe import ALLOWED, Recipe, RecipeOptions, Refused
from milonga.roles import Dialect, Role
from milonga.schedule import Action, Gate, Phase, Schedule
from milonga.systems.deepseek_math_v2.credit import MetaMode, generator_reward, score_reward, verifier_reward
from milonga.systems.deepseek_math_v2.labels import (
    ANSWERED,
    AUDITED,
    audit,
    audit_by_answers,
    filter_readable,
    get_score,
    knows_flaws,
    label_by_votes,
    make_graded_proofs,
    mean_scores,
    true_quality,
    vote_qualities,
)
from milonga.systems.deepseek_math_v2.roles import (
    Analysis,
    DefectVerifier,
    MetaVerifier,
    Proof,
    ProofWriter,
    extract_self_analysis,
)
from milonga.tasks.base import Task
from milonga.tasks.derivations import is_exact
from milonga.types import Rollout, Rollouts, TrainBatch


class DeepSeekMathV2Options(RecipeOptions):
    formats: int = Field(0, ge=0)
    """Turns in which one model imitates a noisy teacher as all three agents, before anything is rewarded."""
    n_score: int = Field(10, ge=1)
    """Verifier turns with R_score only."""
    recall_gate: float = Field(0.0, ge=0, le=1)
    """End those turns early once this share of the flaws is reported (at an evaluation); 0 for never."""
    n_quality: int = Field(10, ge=0)
    """Turns of the meta-verifier, on analyses whose quality is known."""
    n_verifier: int = Field(10, ge=1)
    """Verifier turns with R_meta in an iteration."""
    n_generator: int = Field(10, ge=0)
    """Generator turns in an iteration."""
    meta: Literal["learned", "oracle", "none"] = "learned"
    """Where R_meta comes from: the meta-verifier, the exact rubric, or nowhere (R_score alone to the end)."""
    meta_mode: MetaMode = "multiply"
    """multiply: R_score * R_meta. floor: R_score * max(R_meta, meta_floor), which leaves a right score some reward."""
    meta_floor: float = Field(0.5, ge=0, le=1)
    """The least that R_meta counts, in the mode `floor`."""
    beta_self: float = Field(0.24, ge=0, le=1)
    """Weight of the self-analysis in the generator's reward."""
    n_reward_analyses: int = Field(1, ge=1)
    """Analyses of a proof, and judgements of a self-analysis, that are averaged for the generator's reward; unconfirmed."""
    auto_share: float = Field(0.5, ge=0, le=1)
    """Share of the verifier's proofs that the generator wrote, with labels made by voting, from the second iteration on."""
    auto_n: int = Field(8, ge=1)
    """Analyses that vote on a label; unconfirmed, as the two below."""
    auto_m: int = Field(3, ge=1)
    """Judgements of each analysis that found something."""
    auto_k: int = Field(2, ge=1)
    """Confirmed analyses that the lowest score needs."""
    confirm_at: float = Field(0.5, gt=0, le=1)
    """The quality from which on a judgement confirms an analysis."""
    audit: int = Field(32, ge=3)
    """Held-out problems on which the verifier is measured; of derivations a third of each score."""


class DeepSeekMathV2(Recipe):
    """Verifier, meta-verifier and self-verifying generator, in phases (DeepSeekMath-V2, arXiv 2511.22570)."""

    name = "deepseek_math_v2"
    granularity = "sequence"
    truth = "scores of proofs and of analyses"
    agents = {"generator": ProofWriter, "verifier": DefectVerifier, "meta_verifier": MetaVerifier}
    lead = "verifier"
    overlap = Refused("its gate waits for what was just learned, and labels of a turn are kept in its state")
    bindings = {
        "own": ALLOWED,
        "lora": ALLOWED,
        "shared": Refused("the verifier that pays a generator stands still meanwhile; one set of weights would move along"),
    }
    Options = DeepSeekMathV2Options
    options: DeepSeekMathV2Options
    embedded_defaults = {
        "policies": {"generator": {"lr": 3e-4}, "verifier": {"lr": 2e-4}, "meta_verifier": {"lr": 2e-4}},
        "options": {"formats": 140, "audit": 96},
    }
    published = {"options": {"beta_self": 0.24, "meta_mode": "multiply"}}
    measures = (*AUDITED, *ANSWERED)

    def check(self, task: Task) -> None:
        """Refuse an exact rubric, or a teacher of formats, where nobody knows the flaws of a proof."""
        if (self.options.formats or self.options.meta == "oracle") and not is_exact(task):
            raise ConfigError(
                f"recipe 'deepseek_math_v2': nobody knows the flaws of proofs of task '{task.name}'; set options.formats=0 and "
                "options.meta=learned"
            )

    def roles(self, dialect: Dialect) -> dict[str, Role]:
        if dialect == "plain" and self.options.meta == "oracle":
            raise ConfigError(
                "options.meta = 'oracle' is for proofs in the task's own form, not for prose; set it to 'learned'"
            )
        return super().roles(dialect)

    def schedule(self) -> Schedule:
        o, p = self.options, self.policies
        gate = Gate("eval/verifier/defect_recall", o.recall_gate) if o.recall_gate else None
        start = (Action("copy", p["verifier"], p["generator"]), Action("copy", p["meta_verifier"], p["generator"]))
        inherit = (Action("copy", p["generator"], p["verifier"]),)
        return Schedule(
            intro=(
                Phase("generator", o.formats, name="formats"),
                Phase("verifier", o.n_score, gate, start, name="score"),
                Phase("meta_verifier", o.n_quality if o.meta == "learned" else 0, name="quality"),
            ),
            cycle=(
                Phase("verifier", o.n_verifier, name="analysis"),
                Phase("generator", o.n_generator, enter=inherit, name="proof"),
            ),
        )

    def rollout(self, ctx: Context) -> Rollouts:
        if ctx.phase == "formats":
            taught = [agent for agent in self.agents if agent != "generator" or self.options.n_generator]
            return Rollouts([rollout for agent in taught for rollout in sample_demonstrations(ctx, agent)])
        if ctx.learner == "generator":
            self.state["iterated"] = True
            proofs = ctx.ask("generator", ctx.problems(), self.group_size)
            checks = ctx.ask("verifier", proofs, self.options.n_reward_analyses)
            own = Rollouts(extract_self_analysis(proof) for proof in proofs if proof.parsed.is_valid)
            return Rollouts([*proofs, *checks, *ctx.ask("meta_verifier", own, self.options.n_reward_analyses)])
        proofs = self.sample_labelled_proofs(ctx)
        if ctx.learner == "meta_verifier":
            checks = filter_readable(ctx.ask("verifier", proofs))
            return Rollouts([*checks, *ctx.ask("meta_verifier", checks, self.group_size)])
        checks = ctx.ask("verifier", proofs, self.group_size)
        if ctx.phase == "score" or self.options.meta != "learned":
            return checks
        judged = ctx.ask("meta_verifier", filter_readable(checks))
        # The paper also continues to train on D_mv. So one analysis of each proof gets a full group of meta-judgements.
        again = Rollouts({check.target.id: check for check in filter_readable(checks)}.values())
        return Rollouts([*checks, *judged, *ctx.ask("meta_verifier", again, self.group_size)])

    def sample_labelled_proofs(self, ctx: Context) -> Rollouts:
        """Return the turn's proofs for the verifier. Their labels are stored in the state, by their ids."""
        problems, o = ctx.problems(), self.options
        own = round(o.auto_share * len(problems)) if ctx.learner == "verifier" and self.state.get("iterated") else 0
        if not knows_flaws(ctx):
            if ctx.learner == "meta_verifier":
                return ctx.ask("generator", problems)  # for judgements of its analyses no label is needed
            own = len(problems)
        labelled = make_graded_proofs(ctx, problems[own:])
        if own:
            labelled += label_by_votes(ctx, problems[:own], (o.auto_n, o.auto_m, o.auto_k), o.confirm_at)
        self.state["labels"] = {proof.id: label for proof, label in labelled}
        return Rollouts(proof for proof, _ in labelled)

    def credit(self, ctx: Context, rollouts: Rollouts) -> list[TrainBatch]:
        if ctx.phase == "formats":
            return [
                make_imitation_batch(self, "generator", rollouts)
            ]  # all formats into one model: the others start as its copies
        agents = {agent: rollouts.of(agent) for agent in self.agents}  # type: ignore[misc]
        proofs, checks, judged = agents["generator"], agents["verifier"], agents["meta_verifier"]
        half = self.options.beta_self / 2
        if ctx.learner == "generator":
            rewards = self.compute_generator_rewards(proofs, mean_scores(checks), mean_scores(judged))
            sources = {"verifier": 1 - half, "meta_verifier": half}
            return [self.credit_agent(ctx, "generator", proofs, rewards, proofs.problem_ids, sources)]
        often = Counter(judged.target_ids)
        learned = judged.select(lambda judgement: often[judgement.target.id] > 1)
        exact = knows_flaws(ctx)
        true = {t.id: true_quality(t) for t in learned.targets} if exact else vote_qualities(learned)
        known = [compute_score_reward(judgement, true.get(judgement.target.id, float("nan"))) for judgement in learned]
        by = "steps" if exact else "votes"
        train_batches = []
        if known:
            train_batches.append(self.credit_agent(ctx, "meta_verifier", learned, known, learned.target_ids, {by: 1.0}))
        if ctx.learner == "verifier" and len(checks):
            rewards = self.compute_verifier_rewards(ctx, checks, mean_scores(judged))
            sources = {by: 0.5, "meta_verifier": 0.5} if len(judged) else {by: 1.0}
            train_batches.append(self.credit_agent(ctx, "verifier", checks, rewards, checks.target_ids, sources))
        return train_batches

    def credit_agent(
        self, ctx: Context, agent: str, rollouts: Rollouts, rewards: list[float], groups: list[str], sources: dict[str, float]
    ) -> TrainBatch:
        """Make an agent's train batch by GRPO on these rewards; the same for all three agents."""
        estimator = self.objectives[agent].estimator
        advantages = outcome_advantages(
            np.array(rewards), rollouts, groups, estimator, ctx.compute_kl_penalties(rollouts, estimator)
        )
        notes = {"reward": mean(rewards) or 0.0}
        return self.train_batch(agent, rollouts, advantages=advantages, sources=sources, notes=notes)

    def compute_verifier_rewards(self, ctx: Context, analyses: Rollouts, judged: Mapping[str, float]) -> list[float]:
        """Compute R_format * R_score * R_meta of each analysis; NaN where the meta-verifier's output could not be parsed."""
        out = []
        for analysis in analyses:
            score, quality = compute_score_reward(analysis, self.state["labels"][analysis.target.id]), 1.0
            if score and ctx.phase == "analysis" and self.options.meta != "none":
                exact = self.options.meta == "oracle"
                quality = true_quality(analysis) if exact else judged.get(analysis.id, float("nan"))
            out.append(verifier_reward(score, quality, self.options.meta_mode, self.options.meta_floor))
        return out

    def compute_generator_rewards(
        self, proofs: Rollouts, scores: Mapping[str, float], judged: Mapping[str, float]
    ) -> list[float]:
        """Compute R_format * (0.76 R_Y + 0.24 R_Z) of each proof; NaN where an output of the verifier or the meta-verifier
        could not be parsed."""
        out = []
        for proof in proofs:
            if not proof.parsed.is_valid:
                out.append(0.0)
                continue
            quality = judged.get(f"{proof.id}/self", float("nan"))
            claimed = proof.parsed.get(Proof).analysis.get(Analysis).score
            assert claimed is not None  # a valid proof analyses itself
            reward = generator_reward(scores.get(proof.id, float("nan")), claimed, quality, self.options.beta_self)
            out.append(proof.parsed.format * reward)
        return out

    def measure(self, ctx: Context) -> dict[str, float | None]:
        if knows_flaws(ctx):
            found = audit(ctx, self.options.audit, generator=self.options.n_generator > 0)
        else:
            found = audit_by_answers(ctx, self.options.audit, self.options.confirm_at)
        return dict.fromkeys(self.measures) | found


def compute_score_reward(judgement: Rollout, true: float) -> float:
    """Return R_format * R_score of an analysis, or of a judgement of one."""
    return judgement.parsed.format * score_reward(get_score(judgement), true) if judgement.parsed.is_valid else 0.0
