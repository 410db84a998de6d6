"""Absolute Zero (arXiv 2505.03335): one model proposes programs and answers questions about them. Only execution gives labels.

There are three kinds of questions: predict the output (deduction), find an input (abduction), and write the program
(induction). A proposer earns most for questions that the solver can only just answer. No problems or answers come from outside.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from pydantic import Field

from milonga.context import Context
from milonga.credit import outcome_advantages
from milonga.credit.difficulty import graded_reward, task_proposer_reward
from milonga.errors import ConfigError
from milonga.evals.metrics import mean
from milonga.recipe import ALLOWED, Recipe, Refused
from milonga.roles import Coder, Dialect, Role
from milonga.schedule import Schedule, always
from milonga.systems.absolute_zero.buffers import Buffers, make_initial_state
from milonga.systems.absolute_zero.proposals import (
    PROPOSERS,
    SOLVERS,
    ProgramOptions,
    TaskMaker,
    compute_kind_metrics,
    compute_solve_rates,
)
from milonga.systems.absolute_zero.roles import Abducer, Deducer, Inducer, InputProposer, ProgramProposer
from milonga.tasks.code import get_code_task
from milonga.tasks.code_questions import KINDS, Kind
from milonga.types import Floats, Rollout, Rollouts, TrainBatch

AIMS = {
    "deduction_proposer": "Its output should be hard to work out from the program and the input.",
    "abduction_proposer": "An input should be hard to find from the program and the output.",
}
ONE = Refused("proposing and solving are one policy in Absolute Zero")
ONE_ADAPTER = Refused(f"{ONE.reason}: instead of --lora, set policies.generator.lora.rank=16 for one adapter")


class AbsoluteZeroOptions(ProgramOptions):
    """How a turn is rewarded and learned from. `ProgramOptions` has the options of how its programs are proposed."""

    difficulty: Literal["edge", "plain"] = "edge"
    """edge: 1 - solve rate, and `extreme_value` where all or none solve it. plain: 1 - solve rate everywhere."""
    extreme_value: float = -0.5
    """Reward of a question that all attempts solve or none; the paper's formula reads as 0, the released code has this."""
    wrong_value: float = -0.5
    """Reward of a wrong answer that can be parsed."""
    invalid_value: float = -1.0
    """Reward of an output that cannot be parsed, and of a program that is not valid."""
    baseline: Literal["task", "global"] = "task"
    """The group of the baseline: rewards of the same kind and role (six groups in all), or all rewards of the turn."""
    whiten: Literal["sequence", "token"] = "sequence"
    """token: long outputs weigh more in mean and deviation, as in the released code."""
    proposer: Literal["trained", "untrained", "task"] = "trained"
    """untrained: the proposers are not trained on their outputs. task: programs come from the task, and nobody proposes."""
    solver_lag: int = Field(1, ge=0, le=1)
    """1: the solver's questions are drawn before this turn's proposals arrive. 0: after."""
    train_on_probes: bool = False
    """Whether the solver is also trained on the probes, the answers by which difficulty is measured."""
    measured: int = Field(32, ge=1)
    """Held-out questions of each kind, and proposals, in an evaluation."""


class AbsoluteZero(Recipe):
    """One policy proposes programs and solves questions about them (Absolute Zero, arXiv 2505.03335)."""

    name = "absolute_zero"
    granularity = "sequence"
    truth = "execution"
    agents = {
        "generator": Coder,
        **dict.fromkeys((PROPOSERS["deduction"], PROPOSERS["abduction"]), ProgramProposer),
        PROPOSERS["induction"]: InputProposer,
        "deducer": Deducer,
        "abducer": Abducer,
        "inducer": Inducer,
    }
    """The generator writes programs from a description in words. It is measured, and never sampled in training."""
    lead = "generator"
    tasks = ("code",)
    bindings = {"shared": ALLOWED, "own": ONE, "lora": ONE_ADAPTER}
    Options = AbsoluteZeroOptions
    options: AbsoluteZeroOptions
    defaults = {"task": {"name": "code"}, "binding": "shared", "policies": {"generator": {"minibatches": 3}}}
    published = {
        "turns": 500,
        "task": {"cpu_s": 10},
        "batch": {"problems": 64},
        "sampling": {"max_tokens": 8096},
        "policies": {"generator": {"lr": 1e-6, "objective": {"entropy_coef": 0.001}}},
        "options": {"references": 6, "inputs": 10, "shown": 5},
    }
    measures = (
        *(f"{kind}/accuracy" for kind in KINDS),
        "solver/accuracy",
        *(f"proposer/{what}" for what in ("valid", "learnable", "solve_rate")),
        "buffer/programs",
        "buffer/length",
    )

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        if self.objectives["generator"].estimator.advantage != "zscore":
            raise ConfigError(
                "policies.generator.objective.advantage: absolute_zero has its own rule (options.baseline, options.whiten); "
                "use zscore"
            )

    def roles(self, dialect: Dialect) -> dict[str, Role]:
        proposers = {agent: ProgramProposer(dialect, aim) for agent, aim in AIMS.items()}
        return super().roles(dialect) | proposers | {PROPOSERS["induction"]: InputProposer(dialect, self.options.inputs)}

    def schedule(self) -> Schedule:
        return always("generator")

    def make_task_maker(self, state: dict[str, Any]) -> TaskMaker:
        """Return a task maker that proposes tasks from the buffers in `state`, and stores new ones there."""
        return TaskMaker(self.options, Buffers(state, self.options.keep), self.group_size)

    def rollout(self, ctx: Context) -> Rollouts:
        """Draw questions for the solver; propose, run and probe programs; then sample answers to the questions."""
        o, maker, turn, count = self.options, self.make_task_maker(self.state), int(ctx.turn), ctx.batch_size
        if not self.state and o.proposer == "task":
            maker.fill_from_task(ctx, o.seeds * count, 0)
        elif not self.state:
            maker.seed_buffers(ctx)
        questions = maker.sample_questions(ctx) if o.solver_lag else {}
        rollouts: list[Rollout] = []
        if o.proposer == "task":
            maker.fill_from_task(ctx, count, turn)
        else:
            rollouts += [rollout for kind in KINDS for rollout in maker.propose(ctx, kind, turn)]
        for kind, asked in (questions or maker.sample_questions(ctx)).items():
            rollouts += ctx.ask(SOLVERS[kind], asked)
        return Rollouts(rollouts)

    def credit(self, ctx: Context, rollouts: Rollouts) -> list[TrainBatch]:
        """Make one train batch from all kinds and roles. Each has its own baseline, so that the hardest kind is not starved."""
        o, rates = self.options, compute_solve_rates(rollouts)
        parts: list[tuple[str, Rollouts, Floats]] = []
        notes: dict[str, float] = {}
        for kind in KINDS:
            proposals = rollouts.of(PROPOSERS[kind])
            answers = rollouts.of(SOLVERS[kind])
            solved = answers.select(lambda t: t.problem.source is None)
            notes |= compute_kind_metrics(kind, proposals, answers, solved, rates)
            if o.proposer == "trained":
                parts.append(
                    (PROPOSERS[kind], proposals, np.array([self.compute_proposer_reward(p, rates) for p in proposals]))
                )
            taught = answers if o.train_on_probes else solved
            parts.append((SOLVERS[kind], taught, np.array([self.compute_solver_reward(t) for t in taught])))
        parts = [part for part in parts if len(part[1]) > 1]  # a single rollout has no baseline
        if not parts:
            return []
        rows, advantages = self.compute_advantages(ctx, parts)
        for agent in (*PROPOSERS.values(), *SOLVERS.values()):
            size = [np.abs(a).max() for a, row in zip(advantages, rows, strict=True) if row.agent == agent]
            notes[f"{agent}_advantage"] = mean(size) or 0.0
        return [
            self.train_batch("generator", rows, advantages=advantages, sources=compute_source_shares(rows, rates), notes=notes)
        ]

    def compute_proposer_reward(self, proposal: Rollout, rates: dict[str, float]) -> float:
        """Return the proposer's reward for a proposal, by its solve rate. A proposal without a solve rate was not valid."""
        o = self.options
        return (
            task_proposer_reward(rates[proposal.id], o.extreme_value, o.difficulty == "plain")
            if proposal.id in rates
            else o.invalid_value
        )

    def compute_solver_reward(self, answer: Rollout) -> float:
        return graded_reward(answer.correct, answer.parsed.is_valid, self.options.wrong_value, self.options.invalid_value)

    def compute_advantages(self, ctx: Context, parts: list[tuple[str, Rollouts, Floats]]) -> tuple[Rollouts, list[Floats]]:
        """Compute task-relative REINFORCE++ advantages: z-scores within each part or over all parts, by sequence or by token.

        `parts` has a name, rollouts and one reward per rollout. Returns all rollouts, and one float array per rollout, aligned
        with its ids.
        """
        estimator = self.objectives["generator"].estimator
        if self.options.whiten == "token":
            estimator = estimator.model_copy(update={"advantage": "whiten"})
        rows = Rollouts(row for _, some, _ in parts for row in some)
        if self.options.baseline == "global":
            parts = [("all", rows, np.concatenate([rewards for _, _, rewards in parts]))]
        out: list[Floats] = []
        for name, some, rewards in parts:
            out += outcome_advantages(rewards, some, [name] * len(some), estimator, ctx.compute_kl_penalties(some, estimator))
        return rows, out

    def measure(self, ctx: Context) -> dict[str, float | None]:
        """Measure accuracy on questions about held-out programs, and whether current proposals are valid and learnable."""
        maker = self.make_task_maker(self.state or make_initial_state(get_code_task(ctx.task).tiny))
        right: dict[Kind, list[float]] = {}
        checked: list[float] = []
        rates: list[float] = []
        for kind, asked in maker.make_held_out_questions(ctx, self.options.measured).items():
            right[kind] = list(ctx.ask(SOLVERS[kind], asked).correct)
            proposals, good, probes = maker.probe_proposals(ctx, kind, self.options.measured)
            checked += [float(proposal.id in good) for proposal in proposals]
            rates += compute_solve_rates(probes).values()
        programs = {item[0] for kind in KINDS for item in self.state.get(kind, [])}
        return {f"{kind}/accuracy": mean(values) for kind, values in right.items()} | {
            "solver/accuracy": mean([value for values in right.values() for value in values]),
            "proposer/valid": mean(checked),
            "proposer/learnable": mean([float(0 < rate < 1) for rate in rates]),
            "proposer/solve_rate": mean(rates),
            "buffer/programs": float(len(programs)),
            "buffer/length": mean([float(len(program)) for program in sorted(programs)]),
        }


def compute_source_shares(rows: Rollouts, rates: dict[str, float]) -> dict[str, float]:
    """Return the share of rows rewarded by each source: valid proposals by their solver, all else by execution."""
    solvers = {PROPOSERS[kind]: SOLVERS[kind] for kind in KINDS}
    sources = [solvers[row.agent] if row.id in rates else "execution" for row in rows]
    return {source: sources.count(source) / len(sources) for source in dict.fromkeys(sources)}
