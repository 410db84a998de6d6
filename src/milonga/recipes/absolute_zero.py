"""Absolute Zero (arXiv 2505.03335): one model makes up programs and answers questions about them; running them is all truth.

Three kinds of questions: what comes out (deduction), what must go in (abduction), which program it was (induction). Who
proposes earns most for what the solver can just about do. There are no problems and no answers from outside.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from pydantic import Field, model_validator

from milonga.credit import outcome_advantages
from milonga.credit.difficulty import edge, graded_reward
from milonga.errors import ConfigError
from milonga.evals.metrics import mean
from milonga.recipes.base import RECIPES, Recipe, RecipeOptions
from milonga.recipes.self_programs import (
    UNKNOWN,
    VOID,
    Buffers,
    code_of,
    draft_of,
    first_state,
    ladder,
    of_task,
    question,
    rates_of,
    run_drafts,
    valid,
)
from milonga.roles import Abducer, Coder, Deducer, Dialect, Inducer, InputProposer, ProgramProposer, Role
from milonga.schedule import Schedule, always
from milonga.table import Table
from milonga.tasks.base import split_of
from milonga.tasks.code_questions import KINDS, Kind, Worked, without_comments
from milonga.types import Floats, Lesson, Problem, Trace, Traces

PROPOSERS: dict[Kind, str] = {kind: f"{kind}_proposer" for kind in KINDS}
SOLVERS: dict[Kind, str] = {"deduction": "deducer", "abduction": "abducer", "induction": "inducer"}
AIMS = {
    "deduction_proposer": "Its output should be hard to work out from the program and the input.",
    "abduction_proposer": "An input should be hard to find from the program and the output.",
}
ONE = "proposing and solving are one policy in Absolute Zero"


class AbsoluteZeroOptions(RecipeOptions):
    references: int = Field(3, ge=1)
    """K: earlier programs that a proposer is shown. The paper has 6; the embedded model was taught with up to three."""
    inputs: int = Field(6, ge=2)
    """N: inputs for an induction; the paper has 10."""
    shown: int = Field(3, ge=1)
    """How many of their pairs are told; the others are hidden, and must be matched."""
    seeds: int = Field(4, ge=1)
    """Programs from the untrained model before the first turn, as multiples of `batch.problems`."""
    seed_rounds: int = Field(16, ge=1)
    """Most rounds of asking for them; then the run begins with what there is."""
    difficulty: Literal["edge", "plain"] = "edge"
    """edge: 1 - solve rate, and `extreme_value` where all or none solve it. plain: 1 - solve rate everywhere."""
    extreme_value: float = -0.5
    """Of a task that all solve or none; the paper's formula reads as 0, the released code has this."""
    wrong_value: float = -0.5
    """Of a wrong answer that can be read."""
    invalid_value: float = -1.0
    """Of what cannot be read, and of a program that does not count."""
    baseline: Literal["task", "global"] = "task"
    """What rewards are compared with: their own kind and role, six groups in all, or all of the turn."""
    whiten: Literal["sequence", "token"] = "sequence"
    """token: long outputs weigh more in mean and deviation, as in the released code."""
    proposer: Literal["trained", "untrained", "task"] = "trained"
    """untrained: the proposers' own outputs teach nothing. task: programs are the task's, and nobody proposes."""
    admission: Literal["all", "non_one", "non_extremes"] = "all"
    """Which valid proposals enter the buffers: all, those that somebody failed, or those that also somebody solved."""
    fresh_first: bool = True
    """Whether the solver gets what came in last first, or everything alike."""
    solver_lag: int = Field(1, ge=0, le=1)
    """1: the solver's questions are drawn before this turn's proposals arrive. 0: after."""
    train_on_probes: bool = False
    """Whether the answers by which difficulty is measured teach the solver too."""
    keep: int = Field(16384, ge=1)
    """Most entries of a buffer; the newest stay."""
    longest: int = Field(400, ge=1)
    """Characters of an output; what is longer makes a program invalid, and is never cut."""
    strip_comments: bool = False
    """Take comments out of all programs, so that nothing is whispered; seeds have none in any case."""
    measured: int = Field(32, ge=1)
    """Held-out questions of each kind, and proposals, in an evaluation."""

    @model_validator(mode="after")
    def _some_are_hidden(self) -> AbsoluteZeroOptions:
        if self.shown >= self.inputs:
            raise ValueError(f"shown={self.shown} of inputs={self.inputs} leaves nothing hidden")
        return self


@RECIPES.register("absolute_zero")
class AbsoluteZero(Recipe):
    """One policy proposes programs and solves questions about them (Absolute Zero, arXiv 2505.03335)."""

    name = "absolute_zero"
    paper = "arXiv 2505.03335"
    paradigm = "self-play"
    granularity = "sequence"
    truth = "execution"
    seats = {
        "generator": Coder,
        **dict.fromkeys((PROPOSERS["deduction"], PROPOSERS["abduction"]), ProgramProposer),
        PROPOSERS["induction"]: InputProposer,
        "deducer": Deducer,
        "abducer": Abducer,
        "inducer": Inducer,
    }
    """The generator writes programs that are told in words. It is measured, and never asked in training."""
    lead = "generator"
    tasks = ("code",)
    bindings = {"shared": "", "own": ONE, "lora": ONE}
    Options = AbsoluteZeroOptions
    options: AbsoluteZeroOptions
    defaults = {"task": {"name": "code"}, "binding": "shared", "policies": {"generator": {"minibatches": 3}}}
    measures = (
        *(f"{kind}/accuracy" for kind in KINDS),
        "solver/accuracy",
        *(f"proposer/{what}" for what in ("valid", "learnable", "solve_rate")),
        "buffer/programs",
        "buffer/length",
    )

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        if self.objectives["generator"].advantage != "zscore":
            raise ConfigError(
                "policies.generator.objective.advantage: absolute_zero has its own rule (options.baseline, options.whiten); "
                "use zscore"
            )

    def roles(self, dialect: Dialect) -> dict[str, Role]:
        proposers = {seat: ProgramProposer(dialect, aim) for seat, aim in AIMS.items()}
        return super().roles(dialect) | proposers | {PROPOSERS["induction"]: InputProposer(dialect, self.options.inputs)}

    def schedule(self) -> Schedule:
        return always("generator")

    @property
    def buffers(self) -> Buffers:
        return Buffers(self.state, self.options.keep)

    def play(self, table: Table) -> Traces:
        """Questions are drawn for the solver; programs are proposed, run and probed; then the questions are solved."""
        turn = int(table.turn)
        if not self.state:
            self.seed(table)
        questions = self.questions(table) if self.options.solver_lag else {}
        played: list[Trace] = []
        if self.options.proposer == "task":
            self.feed(table, table.setting.batch, turn)
        else:
            played += [trace for kind in KINDS for trace in self.propose(table, kind, turn)]
        for kind, asked in (questions or self.questions(table)).items():
            played += table.ask(SOLVERS[kind], asked)
        return Traces(played)

    def seed(self, table: Table) -> None:
        """From the identity on, the untrained model proposes until there are enough programs; nobody learns from that."""
        o, count = self.options, table.setting.batch
        if o.proposer == "task":
            return self.feed(table, o.seeds * count, 0)
        self.state |= first_state(code_of(table).tiny)
        for _ in range(o.seed_rounds):
            asked = table.ask(PROPOSERS["deduction"], self.buffers.references("deduction", table, count, o.references))
            for kind in ("deduction", "abduction"):
                self.buffers.admit(kind, valid(self.run(table, asked, bare=True)), 0)
            if self.buffers.size("deduction") >= o.seeds * count:
                break
        asked = table.ask(PROPOSERS["induction"], self.buffers.programs(table, count))
        self.buffers.admit("induction", valid(self.run(table, asked)), 0)

    def feed(self, table: Table, count: int, turn: int) -> None:
        """The task's own functions into the buffers, in place of what would have been proposed."""
        problems = [problem for problem in table.problems(count) if split_of(problem.answer) == "train"]
        for kind in KINDS:
            found = [of_task(problem, kind, self.options.inputs) for problem in problems]
            self.buffers.admit(kind, [worked for worked in found if worked.asks(kind, self.options.shown)], turn)

    def questions(self, table: Table) -> dict[Kind, list[Problem]]:
        """What the solver is to train on: so many of each kind as a turn has problems, or all there are."""
        o, count = self.options, table.setting.batch
        drawn = {kind: self.buffers.drawn(kind, table, count, o.fresh_first) for kind in KINDS}
        return {
            kind: [question(table, kind, worked, f"{kind}/{n}", o.shown) for n, worked in enumerate(some)]
            for kind, some in drawn.items()
        }

    def run(self, table: Table, proposals: Traces, bare: bool = False) -> list[Worked | str]:
        """What each proposal is, once it was run; or why it does not count. `bare` of comments."""
        o, drafts = self.options, []
        for proposal in proposals:
            program, inputs = draft_of(proposal) if proposal.reading.valid else ("", ())
            enough = "program" not in proposal.problem.data or len(inputs) == o.inputs
            kept = without_comments(program) if bare or o.strip_comments else program
            drafts.append((kept, inputs if enough else ()))
        return run_drafts(code_of(table), drafts, o.longest)

    def probed(self, table: Table, kind: Kind, buffers: Buffers, count: int) -> tuple[Traces, dict[str, Worked], Traces]:
        """Proposals, but for those that nobody can hold against anybody; the valid ones by id; and answers to these."""
        o = self.options
        prompts = (
            buffers.programs(table, count) if kind == "induction" else buffers.references(kind, table, count, o.references)
        )
        asked = table.ask(PROPOSERS[kind], prompts)
        found = {proposal.id: ran for proposal, ran in zip(asked, self.run(table, asked), strict=True)}
        if unknown := list(found.values()).count(UNKNOWN):
            table.dropped[f"{PROPOSERS[kind]}: {UNKNOWN}"] += unknown
        good = {id: ran for id, ran in found.items() if isinstance(ran, Worked)}
        about = [question(table, kind, worked, f"probe/{id}", o.shown, id) for id, worked in good.items()]
        return asked.keep(lambda p: found[p.id] not in VOID), good, table.ask(SOLVERS[kind], about, self.rollouts)

    def propose(self, table: Table, kind: Kind, turn: int) -> list[Trace]:
        """New tasks of a kind, with the answers that show how hard they are; what is valid is remembered."""
        proposals, good, probes = self.probed(table, kind, self.buffers, table.setting.batch)
        barred = {"all": (), "non_one": (1.0,), "non_extremes": (0.0, 1.0)}[self.options.admission]
        rates = {id: rate for id, rate in rates_of(probes).items() if not np.isnan(rate) and rate not in barred}
        self.buffers.admit(kind, [worked for id, worked in good.items() if id in rates], turn)
        return [*proposals, *probes]

    def credit(self, table: Table, played: Traces) -> list[Lesson]:
        """One lesson from all kinds and roles; each is compared with itself, so that the hardest kind is not starved."""
        o, rates = self.options, rates_of(played)
        parts: list[tuple[str, Traces, Floats]] = []
        notes: dict[str, float] = {}
        for kind in KINDS:
            proposals = played.keep(lambda t, kind=kind: t.seat == PROPOSERS[kind])  # type: ignore[misc]
            answers = played.keep(lambda t, kind=kind: t.seat == SOLVERS[kind])  # type: ignore[misc]
            solved = answers.keep(lambda t: t.problem.source is None)
            notes |= figures(kind, proposals, answers, solved, rates)
            if o.proposer == "trained":
                parts.append((PROPOSERS[kind], proposals, np.array([self.pay(p, rates) for p in proposals])))
            taught = answers if o.train_on_probes else solved
            parts.append((SOLVERS[kind], taught, np.array([self.pay_solver(t) for t in taught])))
        parts = [part for part in parts if len(part[1]) > 1]  # one alone has nothing to be compared with
        if not parts:
            return []
        rows, advantages = self.advantages(table, parts)
        for seat in (*PROPOSERS.values(), *SOLVERS.values()):
            size = [np.abs(a).max() for a, row in zip(advantages, rows, strict=True) if row.seat == seat]
            notes[f"{seat}_advantage"] = mean(size) or 0.0
        return [self.lesson("generator", rows, advantages=advantages, sources=sources_of(rows, rates), notes=notes)]

    def pay(self, proposal: Trace, rates: dict[str, float]) -> float:
        """Of who proposed: what nobody could be asked about was not valid."""
        o = self.options
        return edge(rates[proposal.id], o.extreme_value, o.difficulty == "plain") if proposal.id in rates else o.invalid_value

    def pay_solver(self, answer: Trace) -> float:
        return graded_reward(answer.correct, answer.reading.valid, self.options.wrong_value, self.options.invalid_value)

    def advantages(self, table: Table, parts: list[tuple[str, Traces, Floats]]) -> tuple[Traces, list[Floats]]:
        """Task-relative REINFORCE++: standard scores within each part, or over all of them; by outputs, or by tokens."""
        objective = self.objectives["generator"]
        if self.options.whiten == "token":
            objective = objective.model_copy(update={"advantage": "whiten"})
        rows = Traces(row for _, some, _ in parts for row in some)
        if self.options.baseline == "global":
            parts = [("all", rows, np.concatenate([rewards for _, _, rewards in parts]))]
        out: list[Floats] = []
        for name, some, rewards in parts:
            out += outcome_advantages(rewards, some, [name] * len(some), objective, table.penalties(some, objective))
        return rows, out

    def measure(self, table: Table) -> dict[str, float | None]:
        """Answers to questions about held-out programs, and what is proposed now: is it valid, and can it be learned from."""
        o, task = self.options, code_of(table)
        buffers = self.buffers if self.state else Buffers(first_state(task.tiny), o.keep)
        right: dict[Kind, list[float]] = {}
        checked: list[float] = []
        rates: list[float] = []
        for kind in KINDS:
            known = [of_task(problem, kind, o.inputs) for problem in ladder(task, table.split, o.measured)]
            asked = [question(table, kind, w, f"ladder/{n}", o.shown) for n, w in enumerate(known) if w.asks(kind, o.shown)]
            right[kind] = list(table.ask(SOLVERS[kind], asked).correct)
            proposals, good, probes = self.probed(table, kind, buffers, o.measured)
            checked += [float(proposal.id in good) for proposal in proposals]
            rates += rates_of(probes).values()
        programs = {item[0] for kind in KINDS for item in self.state.get(kind, [])}
        return {f"{kind}/accuracy": mean(values) for kind, values in right.items()} | {
            "solver/accuracy": mean([value for values in right.values() for value in values]),
            "proposer/valid": mean(checked),
            "proposer/learnable": mean([float(0 < rate < 1) for rate in rates]),
            "proposer/solve_rate": mean(rates),
            "buffer/programs": float(len(programs)),
            "buffer/length": mean([float(len(program)) for program in sorted(programs)]),
        }


def sources_of(rows: Traces, rates: dict[str, float]) -> dict[str, float]:
    """Whose credit it was, by rows: a valid proposal is paid by its solver, all else by running."""
    solvers = {PROPOSERS[kind]: SOLVERS[kind] for kind in KINDS}
    paid = [solvers[row.seat] if row.id in rates else "execution" for row in rows]
    return {source: paid.count(source) / len(paid) for source in dict.fromkeys(paid)}


def figures(kind: Kind, proposals: Traces, answers: Traces, solved: Traces, rates: dict[str, float]) -> dict[str, float]:
    """What became of a kind in this turn; `distinct` answers to one question show that probes are really sampled."""
    known = [rates[p.id] for p in proposals if p.id in rates and not np.isnan(rates[p.id])]
    groups: dict[str, set[str | None]] = {}
    for answer in answers:
        if answer.problem.source is not None:
            groups.setdefault(answer.problem.source, set()).add(answer.reading.value.answer)
    found = {
        "valid": mean([float(p.id in rates) for p in proposals]),
        "learnable": mean([float(0 < rate < 1) for rate in known]),
        "solve_rate": mean(known),
        "distinct": mean([float(len(group)) for group in groups.values()]),
        "solved": mean(solved.correct),
    }
    return {f"{kind}_{name}": value for name, value in found.items() if value is not None}
