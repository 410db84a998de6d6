"""MAPoRL (arXiv 2502.18439): two agents answer, read each other's answers and revise; they are trained together.

Each turn of each agent is rewarded for its own answer and, discounted, for later answers of all agents, plus bonuses for
changing its own or the other's mind in the right direction. The baseline is over the same turn of the same agent.
"""

from __future__ import annotations

from collections.abc import Set
from typing import Any, Literal

import numpy as np
from pydantic import Field

from milonga.context import Context
from milonga.credit import turn_advantages
from milonga.errors import ConfigError
from milonga.evals.metrics import mean
from milonga.patterns.conversation import CHANGES, compute_change_metrics
from milonga.patterns.debate import Debates, demonstrate_debates, sample_debates
from milonga.patterns.imitation import make_imitation_batch
from milonga.recipe import ALLOWED, Recipe, RecipeOptions, merge_train_batches
from milonga.roles import Debater, Dialect, Role
from milonga.schedule import Phase, Schedule
from milonga.systems.maporl.credit import Share, Tie, TransitionBonus, influence_rewards
from milonga.tasks.base import ANSWERS, DEMONSTRATIONS, Capability
from milonga.types import Floats, Rollouts, TrainBatch

FORMAT = "format"
AGENTS = ("generator", "partner")


class MaporlOptions(RecipeOptions):
    formats: int = Field(0, ge=0)
    """Turns of imitating a noisy teacher in every turn of a debate, before RL; 0 for models that can already debate."""
    format_lines: int = Field(64, ge=2)
    """Examples of each agent in each of them."""
    noise: float = Field(0.0, ge=0, le=1)
    """Share of the teacher's solutions with a wrong step."""
    talk: int = Field(3, ge=2)
    """Turns of a debate."""
    gamma: float = Field(0.3, ge=0, le=1)
    """Discount of later answers; with 0 every turn is rewarded for its own answer only."""
    share: Share = "all"
    """Whose later answers count: everybody's, or those of the others."""
    persuaded: float = Field(0.0, ge=0)
    """Bonus for moving to where the others stood (the paper's alpha_1)."""
    critical: float = Field(0.0, ge=0)
    """Bonus for moving against them (alpha_0)."""
    leading: float = Field(0.0, ge=0)
    """Bonus when the others move to where I stand (beta_1)."""
    provoking: float = Field(0.0, ge=0)
    """Bonus when they move away from there (beta_0)."""
    tie: Tie = "half"
    """The others' majority where they are split; with two agents they never are."""
    unreadable: float = Field(-0.5, le=0)
    """Reward of an answer that cannot be parsed. It counts for its writer only; the paper's -10 counts for all agents."""
    train: Literal["both", "lead"] = "both"
    """lead: the partner is not trained after the format phase."""
    train_first: bool = True
    """Whether turn 0 is trained too. Without it, a gain comes from the debate and not from better first answers."""
    measured: int = Field(64, ge=1)
    """Held-out debates in an evaluation."""


class Maporl(Recipe):
    """Two agents debate over several turns and are trained together (MAPoRL, arXiv 2502.18439)."""

    name = "maporl"
    granularity = "turn"
    truth = "answers"
    pays_outcomes = True
    pays_format = AGENTS
    agents = dict.fromkeys(AGENTS, Debater)
    inference_only_if = {"partner": {"train": "lead", "formats": 0}}
    lead = "generator"
    learns_along = ("partner",)
    bindings = {"own": ALLOWED, "lora": ALLOWED, "shared": ALLOWED}
    embedded_defaults = {"options": {"formats": 12, "noise": 0.3}}
    published = {
        "binding": "lora",
        "sampling": {"max_tokens": 300},
        "policies": {
            agent: {
                "lr": 1e-5,
                "epochs": 4,
                "minibatches": 8,
                "lora": {"rank": 8, "alpha": 16.0},
                "objective": {"advantage": "whiten", "kl": "k1", "kl_coef": 0.002, "kl_in": "reward"},
            }
            for agent in AGENTS
        },
        "options": {"unreadable": -10.0},
    }
    Options = MaporlOptions
    options: MaporlOptions
    measures = tuple(f"team/{what}" for what in (*CHANGES, "disagreement"))

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        if self.options.train == "lead" and len(set(self.policies.values())) == 1:
            raise ConfigError(
                "options.train = 'lead' leaves the partner as it was, but both agents share one model; use 'both'"
            )

    @property
    def needs(self) -> Set[Capability]:
        return {ANSWERS, DEMONSTRATIONS} if self.options.formats > 0 else {ANSWERS}

    def roles(self, dialect: Dialect) -> dict[str, Role]:
        return {agent: Debater(dialect, self.options.noise) for agent in AGENTS}

    def schedule(self) -> Schedule:
        return Schedule((Phase("generator", self.options.formats, name=FORMAT),), (Phase("generator", 1),))

    def rollout(self, ctx: Context) -> Rollouts:
        """Sample debates. Return the conversations of both agents, which contain all their turns."""
        if ctx.phase == FORMAT:
            return demonstrate_debates(ctx, AGENTS, self.options.talk, self.options.format_lines)
        found = sample_debates(ctx, AGENTS, ctx.problems(), self.options.talk, self.group_size)
        return Rollouts(talk for talks in found.talks.values() for talk in talks)

    def credit(self, ctx: Context, rollouts: Rollouts) -> list[TrainBatch]:
        """Make one train batch for each policy that learns: of one agent, or of both where they share weights."""
        by_agent = {agent: rollouts.of(agent) for agent in AGENTS}  # type: ignore[misc]
        if ctx.phase == FORMAT:
            rows = {self.policies[agent]: agent for agent in AGENTS}
            return [make_imitation_batch(self, agent, self.collect_policy_rows(by_agent, name)) for name, agent in rows.items()]
        if not len(rollouts):
            return []  # no debate had room for all its turns; the drops were counted
        learners = AGENTS if self.options.train == "both" else AGENTS[:1]
        debates = Debates(by_agent)
        rewards = self.compute_rewards(debates)
        train_batches: dict[str, TrainBatch] = {}
        for debater, agent in enumerate(learners):
            train_batch = self.credit_agent(ctx, agent, by_agent[agent], list(rewards[:, :, debater].T))
            train_batches[train_batch.policy] = (
                merge_train_batches(train_batches[train_batch.policy], train_batch)
                if train_batch.policy in train_batches
                else train_batch
            )
        known = {key: value for key, value in _compute_debate_metrics(debates).items() if value is not None}
        train_batches[self.policies["generator"]].notes.update(known)
        return list(train_batches.values())

    def collect_policy_rows(self, by_agent: dict[str, Rollouts], policy: str) -> Rollouts:
        """Return the rollouts of all agents that share this policy."""
        return Rollouts(
            rollout for agent, rollouts in by_agent.items() if self.policies[agent] == policy for rollout in rollouts
        )

    def compute_rewards(self, debates: Debates) -> Floats:
        """Compute influence-aware rewards plus transition bonuses, and what an agent's own format is paid: float array of shape
        (debates, turns, agents)."""
        o, rewards, readable = self.options, debates.rewards, debates.readable == 1.0
        bonus = TransitionBonus(o.persuaded, o.critical, o.leading, o.provoking, o.tie)
        own = np.where(readable, rewards, o.unreadable)
        visible = np.where(readable, rewards, np.nan)
        influence = [influence_rewards(*pair, o.gamma, o.share) for pair in zip(own, visible, strict=True)]
        out: Floats = np.array(influence) + np.array([bonus.rewards(one) for one in debates.correct])
        out += debates.formats * [self.objectives[agent].filter.format_weight for agent in AGENTS]
        if not o.train_first:
            out[:, 0] = np.nan  # NaN gives no advantage: turn 0 is not trained
        return out

    def credit_agent(self, ctx: Context, agent: str, talks: Rollouts, rewards: list[Floats]) -> TrainBatch:
        estimator = self.objectives[agent].estimator
        advantages = turn_advantages(rewards, talks, talks.problem_ids, estimator, ctx.compute_kl_penalties(talks, estimator))
        notes = {f"{agent}_reward_turn{turn}": mean(reward) or 0.0 for turn, reward in enumerate(rewards)}
        return self.train_batch(agent, talks, advantages=advantages, sources={"answers": 1.0}, notes=notes)

    def measure(self, ctx: Context) -> dict[str, float | None]:
        found = sample_debates(ctx, AGENTS, ctx.problems(self.options.measured), self.options.talk)
        return {f"team/{key}": value for key, value in _compute_debate_metrics(found).items()}


def _compute_debate_metrics(debates: Debates) -> dict[str, float | None]:
    """Compare the first with the last turn over both agents, and measure how often their last answers differ."""
    answers = [[talk.solution.answer for talk in talks] for talks in debates.talks.values()]
    apart = [len(set(last)) > 1 for last in zip(*answers, strict=True)]
    return compute_change_metrics(debates.select_turn(0), debates.select_turn(-1)) | {"disagreement": mean(apart)}
