"""Self-proposed tasks of a turn: programs are proposed, executed, and probed by the solver. Valid ones enter the buffers.

Also their solve rates, and the metrics of a kind.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from pydantic import Field, model_validator

from milonga.context import Context
from milonga.evals.metrics import mean
from milonga.recipe import RecipeOptions
from milonga.systems.absolute_zero.buffers import Buffers, make_initial_state
from milonga.systems.absolute_zero.programs import (
    UNKNOWN,
    VOID,
    extract_draft,
    is_terse,
    make_question,
    run_drafts,
)
from milonga.tasks.code import get_code_task
from milonga.tasks.code_questions import KINDS, Kind, Worked, make_worked_example, remove_comments
from milonga.types import Problem, Rollout, Rollouts

PROPOSERS: dict[Kind, str] = {kind: f"{kind}_proposer" for kind in KINDS}
SOLVERS: dict[Kind, str] = {"deduction": "deducer", "abduction": "abducer", "induction": "inducer"}


class ProgramOptions(RecipeOptions):
    """How programs are proposed, which of them are valid, and what the buffers keep and draw."""

    references: int = Field(3, ge=1)
    """K: earlier programs that a proposer is shown. The paper has 6; the embedded model was taught with up to three."""
    inputs: int = Field(6, ge=2)
    """N: inputs for an induction; the paper has 10."""
    shown: int = Field(3, ge=1)
    """How many of their input-output pairs the prompt shows; the others are hidden, and must be matched."""
    seeds: int = Field(4, ge=1)
    """Seed programs from the untrained model before the first turn, as multiples of `batch.problems`."""
    seed_rounds: int = Field(16, ge=1)
    """Maximum rounds of sampling them; then the run begins with what there is."""
    admission: Literal["all", "non_one", "non_extremes"] = "all"
    """Which valid proposals enter the buffers: all, those with solve rate below 1, or those with 0 < solve rate < 1."""
    fresh_first: bool = True
    """Whether the solver gets the newest entries first, or a uniform draw."""
    keep: int = Field(16384, ge=1)
    """Maximum entries of a buffer; the newest stay."""
    longest: int = Field(400, ge=1)
    """Maximum characters of an output. A longer one makes a program invalid; it is never cut."""
    strip_comments: bool = False
    """Strip comments from all programs, so that they cannot leak the answer; seeds have none in any case."""

    @model_validator(mode="after")
    def _some_are_hidden(self) -> ProgramOptions:
        if self.shown >= self.inputs:
            raise ValueError(f"shown={self.shown} of inputs={self.inputs} leaves nothing hidden")
        return self


@dataclass(frozen=True)
class TaskMaker:
    """Proposes tasks from the buffers, and adds new ones to them."""

    options: ProgramOptions
    buffers: Buffers
    probes: int
    """G: answers to each valid proposal, from which its solve rate is estimated."""

    def seed_buffers(self, ctx: Context) -> None:
        """Seed the buffers: from the identity on, the untrained model proposes until there are enough programs. Nobody learns
        from that."""
        o, count = self.options, ctx.batch_size
        self.buffers.state.update(make_initial_state(get_code_task(ctx.task).tiny))
        for _ in range(o.seed_rounds):
            asked = ctx.ask(
                PROPOSERS["deduction"], self.buffers.sample_reference_prompts("deduction", ctx, count, o.references)
            )
            found = [ran for ran in self.run_proposals(ctx, asked, bare=True) if isinstance(ran, Worked)]
            for kind in ("deduction", "abduction"):
                self.buffers.admit(kind, found, 0)
            if self.buffers.size("deduction") >= o.seeds * count:
                break
        asked = ctx.ask(PROPOSERS["induction"], self.buffers.sample_program_prompts(ctx, count))
        found = [ran for ran in self.run_proposals(ctx, asked) if isinstance(ran, Worked)]
        self.buffers.admit("induction", found, 0)

    def fill_from_task(self, ctx: Context, count: int, turn: int) -> None:
        """Add the task's own functions to the buffers, in place of proposals."""
        task = get_code_task(ctx.task)
        problems = [one for one in ctx.problems(count) if one.answer and not task.holds_out_program(one.answer)]
        for kind in KINDS:
            found = [make_worked_example(problem, kind, self.options.inputs) for problem in problems]
            self.buffers.admit(kind, [worked for worked in found if worked.has_question(kind, self.options.shown)], turn)

    def sample_questions(self, ctx: Context) -> dict[Kind, list[Problem]]:
        """Draw the solver's training questions: a batch of each kind, or all there are."""
        o, count = self.options, ctx.batch_size
        drawn = {kind: self.buffers.draw(kind, ctx, count, o.fresh_first) for kind in KINDS}
        return {
            kind: [make_question(ctx, kind, worked, f"{kind}/{n}", o.shown) for n, worked in enumerate(some)]
            for kind, some in drawn.items()
        }

    def make_held_out_questions(self, ctx: Context, count: int) -> dict[Kind, list[Problem]]:
        """Return the solver's held-out questions, about `count` programs that nobody may propose."""
        o, problems = self.options, get_code_task(ctx.task).find_held_out_functions(ctx.split, count)
        known = {kind: [make_worked_example(problem, kind, o.inputs) for problem in problems] for kind in KINDS}
        return {
            kind: [
                make_question(ctx, kind, w, f"ladder/{n}", o.shown) for n, w in enumerate(some) if w.has_question(kind, o.shown)
            ]
            for kind, some in known.items()
        }

    def run_proposals(self, ctx: Context, proposals: Rollouts, bare: bool = False) -> list[Worked | str]:
        """Execute each proposal. Return its program with inputs and outputs, or why it is not valid. `bare` strips comments."""
        o, drafts = self.options, []
        least = o.inputs if is_terse(ctx) else o.shown + 1
        for proposal in proposals:
            program, inputs = extract_draft(proposal) if proposal.parsed.is_valid else ("", ())
            enough = "program" not in proposal.problem.data or least <= len(inputs) <= o.inputs
            kept = remove_comments(program) if bare or o.strip_comments else program
            drafts.append((kept, inputs if enough else ()))
        return run_drafts(get_code_task(ctx.task), drafts, o.longest)

    def probe_proposals(self, ctx: Context, kind: Kind, count: int) -> tuple[Rollouts, dict[str, Worked], Rollouts]:
        """Sample proposals. Return them without void ones (no verdict by the sandbox, or a held-out program), the valid ones by
        id, and sampled answers to these."""
        o = self.options
        if kind == "induction":
            prompts = self.buffers.sample_program_prompts(ctx, count)
        else:
            prompts = self.buffers.sample_reference_prompts(kind, ctx, count, o.references)
        asked = ctx.ask(PROPOSERS[kind], prompts)
        found = {proposal.id: ran for proposal, ran in zip(asked, self.run_proposals(ctx, asked), strict=True)}
        if unknown := list(found.values()).count(UNKNOWN):
            ctx.dropped[f"{PROPOSERS[kind]}: {UNKNOWN}"] += unknown
        good = {id: ran for id, ran in found.items() if isinstance(ran, Worked)}
        target = [make_question(ctx, kind, worked, f"probe/{id}", o.shown, id) for id, worked in good.items()]
        return asked.select(lambda p: found[p.id] not in VOID), good, ctx.ask(SOLVERS[kind], target, self.probes)

    def propose(self, ctx: Context, kind: Kind, turn: int) -> list[Rollout]:
        """Return new proposals of a kind and the probes of their difficulty. Valid ones enter the buffers."""
        proposals, good, probes = self.probe_proposals(ctx, kind, ctx.batch_size)
        barred = {"all": (), "non_one": (1.0,), "non_extremes": (0.0, 1.0)}[self.options.admission]
        rates = {id: rate for id, rate in compute_solve_rates(probes).items() if not np.isnan(rate) and rate not in barred}
        self.buffers.admit(kind, [worked for id, worked in good.items() if id in rates], turn)
        return [*proposals, *probes]


def compute_solve_rates(rollouts: Rollouts) -> dict[str, float]:
    """Return proposal id to solve rate; NaN where one of the answers could not be graded."""
    found: dict[str, list[float]] = {}
    for rollout in rollouts:
        if rollout.problem.source is not None:
            found.setdefault(rollout.problem.source, []).append(rollout.correct)
    return {id: float(np.mean(answers)) for id, answers in found.items()}


def compute_kind_metrics(
    kind: Kind, proposals: Rollouts, answers: Rollouts, solved: Rollouts, rates: dict[str, float]
) -> dict[str, float]:
    """Return the turn's metrics of a kind. `distinct` answers to one question show that probes are really sampled."""
    known = [rates[p.id] for p in proposals if p.id in rates and not np.isnan(rates[p.id])]
    groups: dict[str, set[str | None]] = {}
    for answer in answers:
        if answer.problem.source is not None:
            groups.setdefault(answer.problem.source, set()).add(answer.solution.answer)
    found = {
        "valid": mean([float(p.id in rates) for p in proposals]),
        "learnable": mean([float(0 < rate < 1) for rate in known]),
        "solve_rate": mean(known),
        "distinct": mean([float(len(group)) for group in groups.values()]),
        "solved": mean(solved.correct),
    }
    return {f"{kind}_{name}": value for name, value in found.items() if value is not None}
