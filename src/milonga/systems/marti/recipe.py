"""MARTI (OpenReview E7jZqo0A50): agents in a workflow, each trained on its own turns.

A solution is criticised and refined (chain), two agents debate (debate), or an aggregator reads two proposals (mixture). The
checker rewards every turn by itself. A turn that follows others is also rewarded by how it compares with them.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import replace
from typing import Any, Literal

import numpy as np
from pydantic import Field

from milonga.context import Context
from milonga.credit import compute_class_weights, has_both_outcomes, turn_advantages
from milonga.credit.critiques import names_answer
from milonga.credit.history import Rounds, Scope, Shaping, max_safe_alpha, shape_by_history
from milonga.errors import ConfigError
from milonga.evals.metrics import mean
from milonga.patterns.conversation import CHANGES, compute_change_metrics, list_turns
from milonga.patterns.debate import Debating
from milonga.patterns.imitation import make_imitation_batch
from milonga.patterns.outcome import add_format_rewards
from milonga.patterns.voting import (
    grade_by_truth,
    majority_at_budget,
    make_majority_grader,
    make_majority_labeller,
    tally_votes,
)
from milonga.patterns.workflows import (
    AgentTurns,
    Mixing,
    Refining,
    Rules,
    VerifierReward,
    Workflow,
    collect_solutions,
)
from milonga.recipe import ALLOWED, Recipe, RecipeOptions
from milonga.roles import Dialect, Role, StepSolver
from milonga.schedule import Phase, Schedule
from milonga.tasks.base import ANSWERS, DEMONSTRATIONS, Capability
from milonga.types import Floats, Rollouts, TrainBatch

FORMAT = "format"
VOTERS = 8
"""The fewest solutions of a problem whose majority may be taken for its answer."""


class MartiOptions(RecipeOptions):
    workflow: Literal["chain", "debate", "mixture"] = "chain"
    """chain: generator, verifier, refiner. debate: generator and partner. mixture: generator, partner, aggregator."""
    formats: int = Field(0, ge=0)
    """Turns of imitating a noisy teacher as the agents that read others, before RL; 0 for models that know the format."""
    format_lines: int = Field(64, ge=2)
    """Examples of each such agent in each of them."""
    noise: float = Field(0.0, ge=0, le=1)
    """Share of the teacher's solutions with a wrong step."""
    critiques: int = Field(2, ge=1)
    """Chain: critiques of each solution, each of which is refined once."""
    rounds: int = Field(2, ge=2)
    """Debate: rounds."""
    shaping: Shaping = "margin"
    """How earlier turns shape a reward: margin rewards corrections, quality rewards staying right."""
    alpha: float = Field(0.5, ge=0)
    """Weight of the shaping term."""
    history_scope: Scope = "own"
    """Whose earlier turns count. In a chain, own is the solution that is refined, and all the critique's reward too."""
    history_rounds: Rounds = "all"
    """Debate: whether all earlier rounds count, or the last one."""
    outcome: Literal["none", "own_last", "vote", "last_stage"] = "none"
    """What is added to every turn: nothing; in a debate the agent's own last answer, or the vote; else the last stage."""
    beta: float = Field(0.5, ge=0)
    """Weight of the outcome term."""
    verifier_reward: VerifierReward = "agreement"
    """Chain: agreement rewards a critique for the right final verdict, checker for naming the right answer."""
    verifier_group: Literal["solution", "problem"] = "solution"
    """Chain: the group of a critique's baseline: critiques of the same solution, or of the same problem."""
    refiner_gain: float = Field(0.0, ge=0)
    """Chain: weight of the refiner's gain over the solution in the critique's reward."""
    labels: Literal["truth", "majority"] = "truth"
    """majority: the most frequent answer over all agents and turns is the label of a problem (test-time training)."""
    min_share: float = Field(0.25, ge=0, le=1)
    """Minimum share of votes for that; below it a problem is not learned from."""
    filter: bool = True
    """Only groups with right and wrong solutions are learned from, by the rewards before shaping."""
    train: Literal["all", "generator"] = "all"
    """generator: the other agents are not trained after the format phase."""
    measured: int = Field(64, ge=1)
    """Held-out problems in an evaluation."""


class Marti(Recipe):
    """Agents of a chain, a debate or a mixture are trained on their own turns (MARTI, OpenReview E7jZqo0A50)."""

    name = "marti"
    granularity = "turn"
    truth = "answers"
    agents = Refining.agents | Mixing.agents
    pays_format = ("generator", "partner", "refiner", "aggregator")
    inference_only_if = {agent: {"train": "generator", "formats": 0} for agent in agents.keys() - {"generator"}}
    lead = "generator"
    learns_along = ("verifier", "refiner")
    bindings = {"own": ALLOWED, "lora": ALLOWED, "shared": ALLOWED}
    embedded_defaults = {"options": {"formats": 12, "noise": 0.3}}
    published = {
        "batch": {"problems": 16, "rollouts": 2},
        "policies": {agent: {"lr": 1e-6, "objective": {"preset": "gspo", "kl_coef": 0.001}} for agent in agents},
        "options": {"workflow": "debate"},
    }
    Options = MartiOptions
    options: MartiOptions
    measures = (*(f"team/{what}" for what in (*CHANGES, "outcome", "vote", "over_vote")), "critic/names_answer")

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        o = self.options
        self.workflow = _make_workflow(o)
        _check_options(o, self.group_size)
        if o.train == "generator" and len(set(self.policies.values())) == 1:
            raise ConfigError("options.train = 'generator' leaves the others as they were, but all share one model; use 'all'")

    @property
    def needs(self) -> Set[Capability]:
        shown = {DEMONSTRATIONS} if self.options.formats > 0 else set()
        return shown | {ANSWERS} if self.options.labels == "truth" else shown

    @classmethod
    def select_agents(cls, options: MartiOptions) -> Mapping[str, type[Role]]:
        return _make_workflow(options).agents

    def roles(self, dialect: Dialect) -> dict[str, Role]:
        noise = self.options.noise
        return {s: r(dialect, noise) if issubclass(r, StepSolver) else r(dialect) for s, r in self.workflow.agents.items()}

    def schedule(self) -> Schedule:
        return Schedule((Phase("generator", self.options.formats, name=FORMAT),), (Phase("generator", 1),))

    def rollout(self, ctx: Context) -> Rollouts:
        if ctx.phase == FORMAT:
            return self.workflow.write_demonstrations(ctx, self.options.format_lines)
        return self.workflow.rollout(ctx, ctx.problems(), self.group_size)

    def credit(self, ctx: Context, rollouts: Rollouts) -> list[TrainBatch]:
        """Make one train batch for each agent, from its own turns."""
        if ctx.phase == FORMAT:
            return [make_imitation_batch(self, agent, rollouts.of(agent)) for agent in self.workflow.taught]
        turns = [s for s in self.workflow.score_turns(ctx, rollouts, self.make_rules(ctx, rollouts)) if len(s.rows)]
        return [self.credit_agent(ctx, one) for one in turns if self.options.train == "all" or one.agent == "generator"]

    def make_rules(self, ctx: Context, rollouts: Rollouts) -> Rules:
        """Make the rules of the rewards. With majority labels nothing in them knows the truth."""
        o = self.options
        rules = Rules(grade_by_truth, o.verifier_reward, o.history_scope, o.history_rounds)
        if o.labels == "truth":
            return rules
        found = tally_votes(ctx, collect_solutions(rollouts))
        return replace(rules, right=make_majority_grader(found, o.min_share), label=make_majority_labeller(found, o.min_share))

    def credit_agent(self, ctx: Context, turns: AgentTurns) -> TrainBatch:
        """Make an agent's train batch. The baseline of a turn is over the same turn of the same problem (or solution)."""
        o, agent, estimator = self.options, turns.agent, self.objectives[turns.agent].estimator
        groups = (
            turns.rows.target_ids
            if turns.target_correct is not None and o.verifier_group == "solution"
            else turns.rows.problem_ids
        )
        rewards = [self.compute_turn_reward(turns, turn) for turn in range(len(turns.local))]
        if o.filter:
            raw = zip(rewards, turns.local, strict=True)
            rewards = [np.where(has_both_outcomes(local, groups), reward, np.nan) for reward, local in raw]
        penalties = ctx.compute_kl_penalties(turns.rows, estimator)
        credit = turn_advantages(rewards, turns.rows, groups, estimator, penalties)
        weights = None if turns.target_correct is None else compute_class_weights(turns.target_correct)
        notes = {f"{agent}_earned_turn{turn}": mean(local) or 0.0 for turn, local in enumerate(turns.local)}
        source = "answers" if o.labels == "truth" else "agreement"
        return self.train_batch(agent, turns.rows, advantages=credit, weights=weights, sources={source: 1.0}, notes=notes)

    def compute_turn_reward(self, turns: AgentTurns, turn: int) -> Floats:
        """Compute the shaped reward R' of a turn plus the outcome term, and what a solution's format is paid, one value per
        row."""
        o = self.options
        out = shape_by_history(turns.local[turn], turns.before[turn], o.shaping, o.alpha)
        if o.outcome != "none":
            out = out + o.beta * (turns.own_last if o.outcome == "own_last" else turns.whole)
        if turns.target_correct is None:
            spoken = [list_turns(row)[turn] for row in turns.rows]
            return add_format_rewards(out, spoken, self.objectives[turns.agent].filter)
        if o.refiner_gain:
            out = out + o.refiner_gain * (turns.whole - turns.target_correct)
        return out

    def measure(self, ctx: Context) -> dict[str, float | None]:
        """Compare first with last answers, and the outcome with a majority vote of the generator at equal sampled tokens."""
        problems = ctx.problems(self.options.measured)
        rollouts = _make_workflow(self.options.model_copy(update={"critiques": 1})).rollout(ctx, problems, 1)
        turns = self.workflow.score_turns(ctx, rollouts, Rules(grade_by_truth))
        outcome, voted = (
            mean(turns[-1].whole),
            mean(majority_at_budget(ctx, "generator", problems, sum(t.length for t in rollouts))),
        )
        found = compute_change_metrics(*self.workflow.pair_first_and_final(rollouts))
        found |= {"outcome": outcome, "vote": voted}
        found["over_vote"] = None if outcome is None or voted is None else outcome - voted
        named = mean([names_answer(t.text, t.problem.answer) for t in rollouts.of("verifier")])
        return {f"team/{key}": value for key, value in found.items()} | {"critic/names_answer": named}


def _make_workflow(options: MartiOptions) -> Workflow:
    """Build the workflow that the options name."""
    if options.workflow == "debate":
        return Debating(options.rounds)
    return Mixing() if options.workflow == "mixture" else Refining(options.critiques)


def _check_options(options: MartiOptions, rollouts: int) -> None:
    """Raise a ConfigError for options that would reward the wrong thing or give no learning signal."""
    o, debate = options, options.workflow == "debate"
    turns = o.rounds if debate else 2
    if o.shaping == "margin" and o.alpha > max_safe_alpha(turns):
        most = f"{max_safe_alpha(turns):.3f}"
        raise ConfigError(f"options.alpha={o.alpha:g} pays a wrong first answer on purpose over {turns} turns; at most {most}")
    if o.outcome in ("own_last", "vote") and not debate:
        raise ConfigError(f"options.outcome = '{o.outcome}' is for a debate; a {o.workflow} has 'last_stage'")
    if o.outcome == "last_stage" and debate:
        raise ConfigError("options.outcome = 'last_stage' is for a chain or a mixture; a debate has 'vote' and 'own_last'")
    if o.workflow == "chain" and o.verifier_group == "solution" and o.critiques < 2:
        raise ConfigError(
            "options.critiques=1 leaves a critique nothing to be compared with; use 2, or verifier_group = 'problem'"
        )
    voters = rollouts * (2 * o.rounds if debate else 3 if o.workflow == "mixture" else 1 + o.critiques)
    if o.labels == "majority" and voters < VOTERS:
        raise ConfigError(
            f"{voters} solutions of a problem are too few for a majority, at least {VOTERS}: raise batch.rollouts"
        )
