"""Search Self-Play (arXiv 2510.18821): a searching proposer makes a question from an answer; a searching solver must find the
answer again.

The proposer is rewarded for what the solver fails at. A gate keeps the best question from being an impossible one: a reader
must find the answer in what the proposer itself saw, among other passages.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any, Literal

import numpy as np
from pydantic import Field

from milonga.context import Context
from milonga.credit import broadcast_to_tokens
from milonga.errors import ConfigError
from milonga.evals.metrics import mean
from milonga.patterns.outcome import outcome_credit, subtract_kl
from milonga.recipe import ALLOWED, Recipe, RecipeOptions, Refused
from milonga.roles import Searcher, SearchProposer, SearchReader
from milonga.schedule import Schedule, always
from milonga.systems.search_self_play.credit import Baseline, Difficulty, question_reward, subtract_baseline
from milonga.systems.search_self_play.proposals import (
    Gate,
    Pool,
    Rates,
    ReaderKind,
    Rules,
    compute_question_metrics,
    compute_solve_rates,
    compute_turn_metrics,
    format_rejections,
)
from milonga.tasks import Search, Task
from milonga.types import Problem, Rollouts, TrainBatch


class SearchSelfPlayOptions(RecipeOptions):
    train: Literal["both", "solver", "proposer"] = "both"
    """Who learns; the other uses its initial weights."""
    reader: ReaderKind = "auto"
    """Who must find the answer in what the proposer saw: exact inference, the reader with its initial weights, or nobody. auto:
    exact where the corpus allows it. Without a reader the best question is one that nobody can answer."""
    unique: bool = True
    """Whether a question must have exactly one answer in the whole corpus, where that can be known. Not in the paper."""
    noise: int = Field(4, ge=0)
    """Passages of other proposers that are mixed into the reader's input."""
    reader_temperature: float = Field(0.1, gt=0)
    """Temperature of the reader, where it is a model: whether an answer can be found should not be a matter of luck."""
    min_words: int = Field(6, ge=1)
    """Least number of words of a question; 10 in the paper."""
    min_searches: int = Field(1, ge=1)
    """Least number of searches behind a question; 2 in the paper, which has no questions of one hop."""
    hide_answer: bool = False
    """Whether the answer may stand in none of the proposer's searches."""
    reward: Difficulty = "one_minus"
    """The reward of a question with solve rate s: 1 - s; 4 (low + s)(high - s) where s is not 0 or 1; or 1."""
    low: float = Field(0.0, ge=0)
    """The `low` of the reward `window`."""
    high: float = Field(1.0, gt=0)
    """The `high` of the reward `window`."""
    invalid: float = 0.0
    """The reward of a question that does not pass; the paper's scripts have 0, its config file -1."""
    proposals: int = Field(1, ge=1)
    """Questions for each answer."""
    baseline: Baseline = "batch_mean"
    """The baseline of the proposer's reward: the batch mean, the questions for the same answer, a running mean, or none, as in
    the paper."""
    decay: float = Field(0.9, ge=0, lt=1)
    """Decay of the running mean, where that is the baseline."""
    fill: Literal["drop", "reuse", "resample"] = "drop"
    """What replaces a question that does not pass: nothing, one of the pool, or another sample of the proposer."""
    reuse_below: float = Field(1.0, ge=0, le=1)
    """Questions of the pool are used again if no larger share of the tries solved them."""
    pool_age: int = Field(10, ge=1)
    """Turns that a question stays in the pool."""
    measured: int = Field(64, ge=1)
    """Held-out answers from which the proposer makes questions in an evaluation."""


class SearchSelfPlay(Recipe):
    """A searching proposer and a searching solver, from answers alone (SSP, arXiv 2510.18821)."""

    name = "search_self_play"
    granularity = "sequence"
    truth = "answers"
    agents = {"proposer": SearchProposer, "generator": Searcher, "reader": SearchReader}
    pays_format = ("generator",)
    lead = "generator"
    learns_along = ("proposer",)
    frozen_if = {"proposer": {"train": "solver"}, "generator": {"train": "proposer"}}
    overlap = Refused("its proposer is paid for questions that are hard now, and reuses those of a pool")
    tasks = ("search",)
    tools = True
    bindings = {"own": ALLOWED, "lora": ALLOWED, "shared": ALLOWED}
    inference_only = ("reader",)
    Options = SearchSelfPlayOptions
    options: SearchSelfPlayOptions
    defaults = {"task": {"name": "search"}, "binding": "shared", "batch": {"rollouts": 5}}
    embedded_defaults = {"options": {"min_words": 2}}
    published = {
        "turns": 150,
        "task": {"name": "search", "top": 3, "calls": 10},
        "batch": {"problems": 256, "rollouts": 5},
        "policies": {
            "generator": {"lr": 1e-6, "minibatches": 2, "objective": {"kl_coef": 0.01, "clip_high": 0.285}},
        },
        "options": {"unique": False, "min_words": 10, "min_searches": 2, "baseline": "none", "fill": "reuse"},
    }
    measures = (
        *(f"proposer/{what}" for what in ("valid", "wrong", "ambiguous", "hops")),
        "easiest_accuracy",
        "hardest_accuracy",
    )

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        o = self.options
        if o.baseline == "group" and o.proposals < 2:
            raise ConfigError(
                "options.baseline = 'group' compares questions for the same answer; set options.proposals=2 or more"
            )
        for agent in ("proposer", "generator"):
            if self.objectives[agent].filter.dynamic_sampling:
                switch = f"policies.{self.policies[agent]}.objective.dynamic_sampling"
                raise ConfigError(f"'{self.name}' lets its proposer make the questions; set {switch}=false")
        self.gate = Gate(Rules(o.min_words, o.min_searches, o.hide_answer), o.reader, o.noise, o.unique, o.reader_temperature)

    @property
    def pool(self) -> Pool:
        return Pool(self.state, self.options.pool_age)

    def check(self, task: Task) -> None:
        if self.options.reader == "exact" and isinstance(task, Search) and not task.exact:
            raise ConfigError("options.reader = 'exact' knows the embedded graph alone; use 'model' with a corpus of your own")

    def schedule(self) -> Schedule:
        return always("generator")

    def rollout(self, ctx: Context) -> Rollouts:
        """Draw answers, sample questions from them, and sample solutions of those that pass the gate."""
        proposals = self.propose(ctx, ctx.problems())
        questions, reasons = self.gate.filter_proposals(ctx, proposals)
        if self.options.fill == "resample":
            failed = [proposal.problem for proposal in proposals if proposal.id in reasons]
            again = self.sample_agent(ctx, "proposer", failed) if failed else Rollouts([])
            more, _ = self.gate.filter_proposals(ctx, again)
            questions, proposals = [*questions, *more], Rollouts([*proposals, *again])
        elif self.options.fill == "reuse":
            questions = [*questions, *self.pool.draw(ctx, len(reasons), self.options.reuse_below)]
        self.state["rejected"] = dict(Counter(reasons.values()))
        if not questions:
            ctx.dropped["proposer: not one question of this turn is valid"] += len(proposals)
        solutions = self.sample_agent(ctx, "generator", questions, self.group_size) if questions else Rollouts([])
        return Rollouts([*proposals, *solutions])

    def propose(self, ctx: Context, problems: list[Problem]) -> Rollouts:
        """Sample questions from the answers of problems; the problems' own questions are shown to nobody."""
        targets = [Problem(f"target/{problem.id}", problem.answer, "") for problem in problems]
        return self.sample_agent(ctx, "proposer", targets, self.options.proposals)

    def sample_agent(self, ctx: Context, agent: str, problems: list[Problem], n: int = 1) -> Rollouts:
        """Sample an agent. One that does not learn uses its initial weights, whatever these weights learn as another agent."""
        learns = self.options.train in ("both", "proposer" if agent == "proposer" else "solver")
        return ctx.ask(agent, problems, n, tag="live" if learns else "ref")

    def credit(self, ctx: Context, rollouts: Rollouts) -> Iterator[TrainBatch]:
        """Train the proposer, then the solver. Both were sampled before: their log-probabilities are stored with the
        rollouts."""
        proposals, solutions = (rollouts.of(agent) for agent in ("proposer", "generator"))  # type: ignore[misc]
        rates = compute_solve_rates(solutions)
        notes = compute_turn_metrics(proposals, solutions, rates) | format_rejections(self.state["rejected"])
        if self.options.train != "solver" and len(proposals) > 1:
            yield self.credit_proposer(ctx, proposals, rates, notes)
        if self.options.train != "proposer" and len(solutions):
            credit = outcome_credit(ctx, solutions, self.objectives["generator"])
            yield self.train_batch("generator", solutions, advantages=credit, sources={"answers": 1.0}, notes=notes)
        for problem in {t.problem.id: t.problem for t in solutions if t.problem.source is not None}.values():
            self.pool.admit(int(ctx.turn), problem, rates[problem.source])

    def credit_proposer(self, ctx: Context, proposals: Rollouts, rates: Rates, notes: dict[str, float]) -> TrainBatch:
        """Make the proposer's train batch: reward for what the solver fails at, `invalid` for what did not pass the gate."""
        o, estimator = self.options, self.objectives["proposer"].estimator
        raw = [question_reward(rates[p.id], o.reward, o.low, o.high) if p.id in rates else o.invalid for p in proposals]
        rewards = subtract_kl(ctx, proposals, np.array(raw), estimator)
        running = self.state.get("running", mean(rewards) or 0.0)
        self.state["running"] = o.decay * running + (1 - o.decay) * (mean(rewards) or 0.0)
        advantages = subtract_baseline(rewards, proposals.problem_ids, o.baseline, running)
        notes = notes | {"proposer_reward": mean(raw) or 0.0}
        sources = {"generator": 1.0}
        return self.train_batch(
            "proposer", proposals, advantages=broadcast_to_tokens(advantages, proposals), sources=sources, notes=notes
        )

    def measure(self, ctx: Context) -> dict[str, float | None]:
        """Measure questions from held-out answers against the exact truth, and the solver at the lowest and the highest
        level."""
        task = ctx.task
        assert isinstance(task, Search)
        proposals = self.propose(ctx, ctx.problems(self.options.measured))
        questions, _ = self.gate.filter_proposals(ctx, proposals)
        out: dict[str, float | None] = {"proposer/valid": len(questions) / len(proposals)}
        if not task.exact:
            return out | dict.fromkeys(self.measures[1:])
        out |= compute_question_metrics(task, proposals, questions)
        for name, level in (("easiest", task.levels[0]), ("hardest", task.levels[-1])):
            solved = ctx.ask("generator", ctx.draw_problems_at([level] * ctx.batch_size), 2)
            out[f"{name}_accuracy"] = mean(solved.correct)
        return out
