"""Multi-Agent Evolve (arXiv 2510.23595): one model proposes questions, answers them and judges both.

The judge's scores are the only content reward of proposer and solver. The judge itself is rewarded for its format only. Every
evaluation compares its scores with the hidden truth.
"""

from __future__ import annotations

from collections.abc import Set
from typing import Any, Literal

import numpy as np
from pydantic import Field

from milonga.context import Context
from milonga.credit import outcome_advantages
from milonga.evals.metrics import mean
from milonga.patterns.imitation import make_imitation_batch
from milonga.patterns.self_questions import POSABLE, audit_judge, make_gold_pairs, refuse_formats, restore_solution
from milonga.recipe import ALLOWED, Recipe, RecipeOptions, Refused
from milonga.roles import StepSolver
from milonga.roles.proposer import Proposal
from milonga.schedule import Schedule, always, warm_up
from milonga.systems.multi_agent_evolve.credit import difficulty_reward, mean_score, proposer_reward, solver_reward
from milonga.systems.multi_agent_evolve.questions import Pool, demonstrate_formats, is_question, question_to_problem
from milonga.systems.multi_agent_evolve.roles import Asker, Judge
from milonga.tasks.base import DEMONSTRATIONS, Capability, Task
from milonga.tasks.chain import Chain
from milonga.types import Rollout, Rollouts, TrainBatch

Scores = dict[str, list[float]]
"""Rollout id to its parsable judgements, from 0 to 1; a judge that gives no points says 1 for right, 0 for wrong."""


class MultiAgentEvolveOptions(RecipeOptions):
    formats: int = Field(0, ge=0)
    """Turns of imitating a noisy teacher as all agents; the embedded model can neither ask nor judge a question."""
    gate: float = Field(0.7, ge=0, le=1)
    """Mean judgement from which on a question enters the pool; 0 lets everything in."""
    answers: int = Field(5, ge=1)
    """Answers to a new question. The judgements of them give its difficulty."""
    judgements: int = Field(5, ge=1)
    """Judgements of a new question."""
    probe_judgements: int = Field(1, ge=1)
    """Judgements of each answer to a new question: five in the released code. Other answers are judged once."""
    reference: float = Field(0.5, ge=0, le=1)
    """rho: how often a proposer is shown a question of the pool; otherwise one of the task's own."""
    difficulty: Literal["plain", "zero_at_extremes"] = "plain"
    """plain: 1 - mean judgement, which is highest where no answer is right. zero_at_extremes: 0 there; not in the paper."""
    difficulty_below_gate: bool = False
    """Whether difficulty is rewarded below the gate: yes in the paper's algorithm, no in the released code."""
    judge_label_frac: float = Field(0.0, ge=0, le=1)
    """Share of the judge's rollouts on solutions of known truth, rewarded for the right verdict; not in the paper."""
    keep: int = Field(512, ge=1)
    """Maximum number of questions, and of answered ones, in the pool; the newest stay."""
    audit: int = Field(64, ge=1)
    """Held-out problems on which the judge that gives rewards is compared with the truth."""


class MultiAgentEvolve(Recipe):
    """Proposer, solver and judge from one model, rewarded by its judgements alone (MAE, arXiv 2510.23595)."""

    name = "multi_agent_evolve"
    granularity = "sequence"
    truth = "none"
    agents = {"proposer": Asker, "generator": StepSolver, "verifier": Judge}
    lead = "generator"
    learns_along = ("verifier",)
    overlap = Refused("its proposer's questions come from a pool that every turn adds to")
    tasks = POSABLE
    bindings = {"own": ALLOWED, "lora": ALLOWED, "shared": ALLOWED}
    Options = MultiAgentEvolveOptions
    options: MultiAgentEvolveOptions
    defaults = {"binding": "shared"}
    embedded_defaults = {"options": {"formats": 40}}
    published = {
        "turns": 300,
        "batch": {"problems": 128, "rollouts": 2},
        "sampling": {"temperature": 1.0, "max_tokens": 8192},
        "policies": {"generator": {"lr": 1e-6, "minibatches": 2, "objective": {"preset": "grpo", "entropy_coef": 0.001}}},
        "options": {"answers": 5, "judgements": 5, "probe_judgements": 5, "gate": 0.7, "reference": 0.5, "keep": 100_000},
    }
    measures = ("grm/reward", "grm/hacking_gap", "grm/gold_accuracy", "proposer/well_formed", "pool/malformed", "pool/size")

    in_words: bool = False
    """Whether questions are in words, and not chain arithmetic; the task says so."""

    @property
    def needs(self) -> Set[Capability]:
        return {DEMONSTRATIONS} if self.options.judge_label_frac else set()

    def check(self, task: Task) -> None:
        self.in_words = not isinstance(task, Chain)
        refuse_formats(task, self.options.formats)

    def schedule(self) -> Schedule:
        return warm_up("proposer", self.options.formats) + always("generator")

    @property
    def pool(self) -> Pool:
        return Pool(self.state, self.options.keep)

    def rollout(self, ctx: Context) -> Rollouts:
        """Draw the solver's questions before new ones arrive, then sample new questions, answers, and judgements of all."""
        if ctx.learner == "proposer":
            return demonstrate_formats(ctx)
        o = self.options
        tried = ctx.ask("generator", self.pool.sample_questions(ctx), self.group_size)
        proposals = ctx.ask("proposer", self.pool.sample_requests(ctx, o.reference))
        real = proposals.select(lambda t: is_question(t, self.in_words))
        probes = ctx.ask(
            "generator", [question_to_problem(ctx, p.parsed.get(Proposal).question, p.id) for p in real], o.answers
        )
        practice = ctx.ask("verifier", self.sample_judge_practice(ctx))
        checks = [ctx.ask("verifier", real, o.judgements), ctx.ask("verifier", Rollouts([*tried, *probes])), practice]
        if o.probe_judgements > 1:
            checks.append(ctx.ask("verifier", probes, o.probe_judgements - 1))
        return Rollouts([*tried, *proposals, *probes, *(check for some in checks for check in some)])

    def sample_judge_practice(self, ctx: Context) -> Rollouts:
        """Return answered questions of earlier turns for the judge, and a share of solutions with known truth. The labels of
        the latter are stored in the state, by their ids."""
        count = ctx.batch_size
        known = round(self.options.judge_label_frac * count)
        gold = make_gold_pairs(ctx, known) if known else []
        self.state["told"] = {rollout.id: label for rollout, label in gold}
        old = [restore_solution(ctx, question_to_problem(ctx, text, id), work, f"{ctx.turn}/pair/{n}")
               for n, (text, id, work) in enumerate(self.pool.draw_items("pairs", ctx, count - known))]  # fmt: skip
        return Rollouts([*old, *(rollout for rollout, _ in gold)])

    def credit(self, ctx: Context, rollouts: Rollouts) -> list[TrainBatch]:
        """Make three train batches, the solver's last. Each agent's baseline is over the whole turn, as in the paper."""
        if ctx.learner == "proposer":
            return [make_imitation_batch(self, agent, rollouts.of(agent)) for agent in self.agents]  # type: ignore[misc]
        by_agent = {agent: rollouts.of(agent) for agent in self.agents}  # type: ignore[misc]
        solutions, checks = by_agent["generator"], by_agent["verifier"]
        scores: Scores = {}
        for check in checks:
            value = check.verification.final if check.verification.score is None else check.verification.score
            scores.setdefault(check.target.id, []).extend([] if value is None else [float(value)])
        asked = {proposal.id for proposal in by_agent["proposer"]}
        tried = solutions.select(lambda t: t.problem.source not in asked)
        practice = checks.select(lambda t: t.target.id in self.state["told"] or "/pair/" in t.target.id)
        rewards = {
            "proposer": (by_agent["proposer"], self.compute_proposer_rewards(by_agent["proposer"], solutions, scores)),
            "verifier": (practice, [self.compute_judge_reward(check) for check in practice]),
            "generator": (tried, [solver_reward(mean_score(scores.get(t.id, [])), t.parsed.format) for t in tried]),
        }
        self.pool.remember_pairs(tried)
        return [self.credit_agent(ctx, agent, *rewarded) for agent, rewarded in rewards.items() if len(rewarded[0]) > 1]

    def credit_agent(self, ctx: Context, agent: str, rows: Rollouts, rewards: list[float]) -> TrainBatch:
        estimator = self.objectives[agent].estimator
        groups = [agent] * len(rows)
        credit = outcome_advantages(np.array(rewards), rows, groups, estimator, ctx.compute_kl_penalties(rows, estimator))
        source = "format" if agent == "verifier" else "verifier"
        share = self.options.judge_label_frac if agent == "verifier" else 0.0
        sources = {source: 1 - share} | ({"answers": share} if share else {})
        return self.train_batch(
            agent, rows, advantages=credit, sources=sources, notes={f"{agent}_reward": mean(rewards) or 0.0}
        )

    def compute_proposer_rewards(self, proposals: Rollouts, solutions: Rollouts, scores: Scores) -> list[float]:
        """Compute R_P for each proposal. Questions that pass the gate enter the pool, valid or not: only the judge decides."""
        o, rewards = self.options, []
        for proposal in proposals:
            judged = [scores.get(t.id, []) for t in solutions if t.problem.source == proposal.id]
            answered = mean_score([score for some in judged for score in some])
            quality = mean_score(scores.get(proposal.id, []))
            hard = 0.0 if np.isnan(answered) else difficulty_reward(answered, o.difficulty == "zero_at_extremes")
            real = is_question(proposal, self.in_words)
            form = proposal.parsed.format if real else 0.0
            rewards.append(proposer_reward(quality, hard, form, o.gate, o.difficulty_below_gate))
            if real and quality >= o.gate:
                self.pool.add_question(proposal)
        return rewards

    def compute_judge_reward(self, check: Rollout) -> float:
        """Return the judge's reward: for its format, or for the right verdict on a solution of known truth. Points in prose may
        be in half the form; a verdict has it or not."""
        label = self.state["told"].get(check.target.id)
        if label is not None:
            return float(check.verification.final == label)
        return float(check.parsed.is_valid) if check.verification.score is None else check.parsed.format

    def measure(self, ctx: Context) -> dict[str, float | None]:
        found: dict[str, Any] = dict(audit_judge(ctx, self.options.audit, "live"))
        asked = ctx.ask("proposer", self.pool.sample_requests(ctx, 0.0))
        real = [
            is_question(p, self.in_words)
            and (self.in_words or bool(question_to_problem(ctx, p.parsed.get(Proposal).question, p.id).answer))
            for p in asked
        ]
        return found | {"proposer/well_formed": mean(real)} | self.pool.compute_metrics(ctx)
