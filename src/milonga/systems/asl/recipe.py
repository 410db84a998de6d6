"""Agentic Self-Learning (arXiv 2510.14253): one model proposes questions, solves them and judges the solutions.

Proposer, judge and solver learn in phases, each from what the earlier phases stored. No answer of the task is a reward. The
truth is computed only as a metric: a gap between the judge's reward and the true accuracy shows reward hacking.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Literal

import numpy as np
from pydantic import Field

from milonga.context import Context
from milonga.credit import outcome_advantages
from milonga.credit.self_learning import proposal_reward, substring_agrees
from milonga.evals.metrics import mean
from milonga.patterns.imitation import make_imitation_batch
from milonga.patterns.self_questions import (
    POSABLE,
    WORDS,
    Memory,
    audit_judge_and_proposer,
    demonstrate_formats,
    extract_conclusion,
    make_gold_pairs,
    parse_verdict,
    proposal_to_problem,
    refuse_formats,
    restore_solution,
)
from milonga.recipe import ALLOWED, Recipe, RecipeOptions, Refused
from milonga.roles import StepSolver
from milonga.roles.proposer import Proposal, Proposer
from milonga.schedule import Action, Phase, Plateau, Schedule
from milonga.systems.asl.roles import RewardModel
from milonga.tasks.base import ANSWERS, DEMONSTRATIONS, Capability, Task
from milonga.types import Rollout, Rollouts, TrainBatch

Verdicts = Mapping[str, list[bool]]
"""Solution id to its parsable verdicts."""


class AslOptions(RecipeOptions):
    formats: int = Field(0, ge=0)
    """Turns of imitating a noisy teacher as all three agents; the embedded model does not know the proposer's format."""
    n_proposer: int = Field(3, ge=1)
    """Turns of the proposer in a cycle."""
    n_verifier: int = Field(4, ge=0)
    """Turns of the judge in a cycle, at most."""
    n_generator: int = Field(8, ge=1)
    """Turns of the solver in a cycle, at most."""
    patience: int = Field(0, ge=0)
    """End a phase of judge or solver early when its best reward is this many turns old; 0 for never."""
    grm: Literal["cotrained", "frozen"] = "cotrained"
    """frozen: the judge stays as it was before the first cycle, also where it shares its weights with the others."""
    grm_label_source: Literal["self", "pg_answer", "gold_mix"] = "self"
    """Labels that the judge is trained on: its own earlier verdict; whether the attempt has the proposer's answer; or its own
    verdict and, late in the run, a share of solutions with known truth."""
    inject_start: float = Field(2 / 3, ge=0, le=1)
    """Share of the run after which gold_mix begins; unconfirmed, as the next."""
    inject_fraction: float = Field(0.05, ge=0, le=1)
    """Share of the judge's pairs with known truth from then on."""
    attempts: int = Field(10, ge=2)
    """Solutions of a proposed question. The verdicts on them give the proposer's reward."""
    judgements: int = Field(1, ge=1)
    """Verdicts on each of them; the majority counts."""
    subtract_noise: bool = False
    """Subtract the judge's disagreement with itself from the proposer's reward. Needs several judgements. Not in the paper."""
    self_checks: int = Field(5, ge=1)
    """Verdicts on the proposer's own answer."""
    accept: float = Field(0.8, ge=0, le=1)
    """Share of them that must accept it."""
    format_bonus: float = Field(0.05, ge=0, le=0.5)
    """Format reward of all agents; the paper's reaches 0.5, which rivals the reward itself."""
    parser: Literal["strict", "substring"] = "strict"
    """substring: how the released code parses verdicts. One string then satisfies every label; only to show that trap."""
    keep: int = Field(512, ge=1)
    """Maximum number of questions, and of pairs, in memory; the newest stay."""
    audit: int = Field(64, ge=1)
    """Held-out problems on which the judge that gives rewards is compared with the truth."""


class Asl(Recipe):
    """Proposer, generative reward model and solver in one model, trained in phases (ASL, arXiv 2510.14253)."""

    name = "asl"
    granularity = "sequence"
    truth = "none"
    agents = {"proposer": Proposer, "generator": StepSolver, "verifier": RewardModel}
    inference_only_if = {"verifier": {"grm": "frozen", "formats": 0}}
    lead = "generator"
    overlap = Refused("its problems and labels come from what it remembers of earlier turns")
    tasks = POSABLE
    bindings = {"own": ALLOWED, "lora": ALLOWED, "shared": ALLOWED}
    Options = AslOptions
    options: AslOptions
    defaults = {"binding": "shared"}
    embedded_defaults = {"options": {"formats": 30}}
    published = {
        "batch": {"problems": 32, "rollouts": 4},
        "sampling": {"temperature": 1.0, "max_tokens": 2048},
        "policies": {"generator": {"lr": 1e-6, "objective": {"preset": "grpo", "dual_clip": 3.0, "entropy_coef": 0.001}}},
        "options": {"attempts": 10, "self_checks": 5, "accept": 0.8, "format_bonus": 0.5, "keep": 5000},
    }
    measures = ("grm/reward", "grm/hacking_gap", "grm/gold_accuracy", "proposer/well_formed", "proposer/claim_right")

    @property
    def needs(self) -> Set[Capability]:
        known: dict[str, Set[Capability]] = {"self": set(), "pg_answer": {ANSWERS}, "gold_mix": {DEMONSTRATIONS}}
        return known[self.options.grm_label_source]

    def check(self, task: Task) -> None:
        refuse_formats(task, self.options.formats)

    def schedule(self) -> Schedule:
        o = self.options
        over = {
            agent: Plateau(f"credit/{policy}/reward", o.patience) if o.patience else None
            for agent, policy in self.policies.items()
        }
        others = (
            Phase("verifier", o.n_verifier if o.grm == "cotrained" else 0, over["verifier"]),
            Phase("generator", o.n_generator, over["generator"]),
        )
        start = Phase("proposer", o.n_proposer, enter=(Action("snapshot", self.policies["verifier"], "grm"),))
        intro = (Phase("proposer", o.formats, name="formats"), start, *others)
        return Schedule(intro, (Phase("proposer", o.n_proposer), *others))

    @property
    def judge_tag(self) -> str:
        """The tag of the judge's weights that give rewards: its live ones, or those it had before the first cycle."""
        return "grm" if self.options.grm == "frozen" and "tasks" in self.state else "live"

    @property
    def memory(self) -> Memory:
        return Memory(self.state, self.options.keep)

    def rollout(self, ctx: Context) -> Rollouts:
        o = self.options
        if ctx.phase == "formats":
            return demonstrate_formats(ctx)
        if ctx.learner == "proposer":
            proposals = ctx.ask("proposer", self.memory.sample_requests(ctx), self.group_size)
            questions = {
                rollout.id: problem for rollout in proposals if (problem := proposal_to_problem(ctx, rollout)) is not None
            }
            own = [
                restore_solution(ctx, questions[t.id], t.parsed.get(Proposal).work, f"{t.id}/own")
                for t in proposals
                if t.id in questions
            ]
            attempts = ctx.ask("generator", list(questions.values()), o.attempts)
            checks = ctx.ask("verifier", attempts, o.judgements, tag=self.judge_tag)
            return Rollouts(
                [*proposals, *attempts, *checks, *ctx.ask("verifier", Rollouts(own), o.self_checks, tag=self.judge_tag)]
            )
        if ctx.learner == "verifier":
            return ctx.ask("verifier", self.sample_labelled_pairs(ctx), self.group_size)
        solutions = ctx.ask("generator", self.memory.sample_questions(ctx), self.group_size)
        return Rollouts([*solutions, *ctx.ask("verifier", solutions, tag=self.judge_tag)])

    def sample_labelled_pairs(self, ctx: Context) -> Rollouts:
        """Return attempts for the judge. Their labels are stored in the state, by their ids."""
        o, labelled = self.options, self.memory.sample_pairs(ctx)
        if o.grm_label_source == "pg_answer":
            labelled = [(rollout, rollout.correct == 1.0) for rollout, _ in labelled if not np.isnan(rollout.correct)]
        if o.grm_label_source == "gold_mix" and ctx.progress >= o.inject_start and labelled:
            gold = make_gold_pairs(ctx, max(1, round(o.inject_fraction * len(labelled))))
            labelled[: len(gold)] = gold
        self.state["labels"] = {rollout.id: label for rollout, label in labelled}
        return Rollouts(rollout for rollout, _ in labelled)

    def credit(self, ctx: Context, rollouts: Rollouts) -> list[TrainBatch]:
        if ctx.phase == "formats":
            return [make_imitation_batch(self, "proposer", rollouts)]
        rows = rollouts.of(ctx.learner)
        if not len(rows):
            return []  # the judge has not yet disagreed about any question: there is nothing to learn
        sources, groups = {"verifier": 1.0}, rows.problem_ids
        if ctx.learner == "verifier":
            rewards, groups = [self.compute_judge_reward(check, ctx) for check in rows], rows.target_ids
            sources = {"proposer" if self.options.grm_label_source == "pg_answer" else "verifier": 1.0}
        elif ctx.learner == "proposer":
            rewards = self.compute_proposer_rewards(rows, rollouts, self.collect_verdicts(ctx, rollouts))
        else:
            rewards = self.compute_solver_rewards(rows, self.collect_verdicts(ctx, rollouts))
        bonus = self.options.format_bonus * np.array([rollout.parsed.format for rollout in rows])
        estimator = self.objectives[ctx.learner].estimator
        advantages = outcome_advantages(
            np.array(rewards) + bonus, rows, groups, estimator, ctx.compute_kl_penalties(rows, estimator)
        )
        notes = {"reward": mean(rewards) or 0.0} | self.memory.count_entries()
        return [self.train_batch(ctx.learner, rows, advantages=advantages, sources=sources, notes=notes)]

    def collect_verdicts(self, ctx: Context, rollouts: Rollouts) -> Verdicts:
        """Return the parsable verdicts on each solution, by its id."""
        out: dict[str, list[bool]] = {}
        for check in rollouts.of("verifier"):
            found = parse_verdict(check, self.options.parser, ctx.role("verifier").dialect)
            out.setdefault(check.target.id, []).extend([] if found is None else [found])
        return out

    def compute_judge_reward(self, check: Rollout, ctx: Context) -> float:
        """Return the judge's reward: 1 where its verdict is the label. An ambiguous verdict is invalid, and earns 0."""
        label, dialect = self.state["labels"][check.target.id], ctx.role("verifier").dialect
        if self.options.parser == "substring":
            return float(substring_agrees(extract_conclusion(check, dialect), label, WORDS[dialect]))
        return float(parse_verdict(check, "strict", dialect) == label)

    def compute_proposer_rewards(self, proposals: Rollouts, rollouts: Rollouts, verdicts: Verdicts) -> list[float]:
        """Compute R_PG for each proposal, and store questions with split verdicts and judged attempts for later phases."""
        rewards = []
        for proposal in proposals:
            attempts = rollouts.select(lambda t, id=proposal.id: t.agent == "generator" and t.problem.source == id)  # type: ignore[misc]
            votes = [verdicts.get(attempt.id, []) for attempt in attempts]
            own = verdicts.get(f"{proposal.id}/own", [])
            rewards.append(proposal_reward(votes, own, self.options.accept, self.options.subtract_noise))
            judged = [(attempt, 2 * sum(vote) > len(vote)) for attempt, vote in zip(attempts, votes, strict=True) if vote]
            self.memory.remember(proposal, rewards[-1], judged)
        return rewards

    def compute_solver_rewards(self, solutions: Rollouts, verdicts: Verdicts) -> list[float]:
        """Compute the solver's reward from one verdict: 0 for a solution without an answer, NaN where the verdict cannot be
        parsed."""
        rewards = []
        for solution in solutions:
            votes = verdicts.get(solution.id, [])
            rewards.append(0.0 if not solution.parsed.is_valid else float(votes[0]) if votes else float("nan"))
        self.memory.update_solve_rates(solutions, rewards)
        return rewards

    def measure(self, ctx: Context) -> dict[str, float | None]:
        return audit_judge_and_proposer(ctx, self.options.audit, self.judge_tag)
