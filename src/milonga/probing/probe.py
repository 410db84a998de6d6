"""The probe itself: sample a few train problems, measure what came back, and advise."""

from __future__ import annotations

import resource
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from milonga.config import is_embedded
from milonga.context import Context, RunContext
from milonga.errors import RunFolderError
from milonga.patterns.bootstrap import list_bootstrapped
from milonga.probing.advice import Advice, advise
from milonga.probing.figures import (
    Asked,
    JudgeFigures,
    LearnsFrom,
    SolverFigures,
    is_readable,
    measure_judge,
    measure_solver,
)
from milonga.reading import check_shape
from milonga.recipe import Recipe
from milonga.resolve import Plan
from milonga.roles import StepSolver
from milonga.runfolder.files import to_json, write_atomically
from milonga.runfolder.record import read_json
from milonga.schedule import Schedule
from milonga.text import clip_text, format_duration, format_number, format_share
from milonga.types import Rollouts

PROBLEMS, ROLLOUTS = 32, 4
"""Size of a probe: problems, and solutions of each."""
FILE = "probe.json"
EXAMPLES, LINES, CHARACTERS = 2, 12, 2000
"""Unreadable outputs that are kept, and how much of each."""
GRADED = ("answers", "hidden tests")
"""What the `truth` of recipes begins with that reward by the grades of the task's own problems."""
SHARES = {
    "can be read": "readable",
    "cut at the limit": "truncated",
    "sampled accuracy": "accuracy",
    "greedy accuracy": "greedy",
    "majority accuracy": "majority",
    "pass@k": "pass_at_k",
    "groups with both outcomes": "signal",
    "right answers with a wrong step": "unsound",
    "calls right": "positive_rate",
    "right solutions called right": "accuracy_on_right",
    "wrong solutions called wrong": "accuracy_on_wrong",
}
NUMBERS = {
    "format score": "format",
    "AUROC": "auroc",
    "AUROC of soft verdicts": "soft_auroc",
    "AUROC of soft step verdicts": "soft_step_auroc",
    "F1 on first errors": "first_error_f1",
}
TOKENS = {"mean tokens": "length", "95th percentile of tokens": "length_95", "limit of tokens": "limit"}


@dataclass(frozen=True)
class Example:
    """The beginning of an output that could not be read, and why."""

    agent: str
    why: str
    text: str


@dataclass(frozen=True)
class Probe:
    """The result of a probe."""

    recipe: str
    task: str
    problems: int
    rollouts: int
    solver: SolverFigures
    judge: JudgeFigures | None
    turn_s: float
    """Estimated seconds of a turn's sampling and judging, at the run's batch size; learning comes on top."""
    memory_gib: float | None
    """Peak memory so far, of the GPU or else of this process; None where workers elsewhere sample."""
    advice: tuple[Advice, ...]
    examples: tuple[Example, ...]
    turn_problems: int | None = None
    turn_rollouts: int | None = None
    """The run's batch size; a probe of an older version does not know it."""

    @property
    def agents(self) -> list[SolverFigures | JudgeFigures]:
        return [self.solver] if self.judge is None else [self.solver, self.judge]

    @property
    def blocking(self) -> list[Advice]:
        """The reasons why nothing can be learned; empty if something can."""
        return [advice for advice in self.advice if advice.blocking]

    def list_rows(self) -> list[tuple[str, ...]]:
        """List the figures for a table: a label, then a cell for each agent; figures that no agent has are left out."""
        rows = []
        for names, format_figure in ((SHARES, format_share), (NUMBERS, format_number), (TOKENS, _format_count)):
            for label, name in names.items():
                values = [getattr(figures, name, None) for figures in self.agents]
                if any(value is not None for value in values):
                    rows.append((label, *("" if value is None else format_figure(value) for value in values)))
        return rows

    def describe_cost(self) -> str:
        """Describe time and memory in one sentence."""
        memory = "" if self.memory_gib is None else f"; {self.memory_gib:.1f} GiB were in use at most"
        known = self.turn_problems is not None and self.turn_rollouts is not None
        turn = f"a turn of {self.turn_problems} problems x {self.turn_rollouts} rollouts" if known else "a turn"
        seconds = f"{self.turn_s:.1f} seconds" if self.turn_s < 10 else format_duration(self.turn_s)
        return f"To sample and judge {turn} takes about {seconds}, learning not counted{memory}."

    def describe(self) -> list[str]:
        """Describe the probe in lines: each agent's figures, the cost, and the advice."""
        rows = self.list_rows()
        lines = [
            f"{figures.agent}: " + ", ".join(f"{label} {cells[at]}" for label, *cells in rows if cells[at])
            for at, figures in enumerate(self.agents)
        ]
        return [*lines, self.describe_cost(), *map(str, self.advice)]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def write(self, folder: Path) -> None:
        write_atomically(folder / FILE, to_json(self.to_json()) + "\n")

    @classmethod
    def read(cls, folder: Path) -> Probe | None:
        """Read the probe of a run; None if there was none. What can be read can be shown."""
        data = read_json(folder / FILE)
        try:
            return None if data is None else cls.from_json(data)
        except ValueError as error:
            raise RunFolderError(f"'{folder / FILE}' holds no probe ({error})") from None

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Probe:
        return check_shape(cls, data)


def should_probe(plan: Plan) -> bool:
    """Whether a run begins with a probe: as its config says; by default unless all its models are embedded ones."""
    if plan.config.probe == "auto":
        return can_probe(plan) and not all(is_embedded(section.model) for section in plan.policies.values())
    return plan.config.probe == "on" and can_probe(plan)


def can_probe(plan: Plan) -> bool:
    """Whether a recipe has an agent that solves problems; not every one has."""
    return isinstance(plan.roles.get(plan.recipe.solving), StepSolver)


def probe(plan: Plan, run_context: RunContext, problems: int = PROBLEMS, rollouts: int = ROLLOUTS) -> Probe:
    """Sample `rollouts` solutions of each of the first train problems, and one verification of each; measure and advise."""
    ledger = run_context.engine.ledger
    ledger.paused = True
    try:
        ctx, solutions, checks = _sample(plan, run_context, problems, rollouts)
        solved = {t.problem.id: t.problem for t in solutions}
        greedy = _make_context(run_context).ask(plan.recipe.solving, list(solved.values()), greedy=True)
    finally:
        ledger.paused = False
    solver = measure_solver(
        _describe_agent(plan, run_context, plan.recipe.solving), solutions, greedy, plan.task.group_equal_answers
    )
    judge = None if checks is None else measure_judge(_describe_agent(plan, run_context, plan.recipe.judging), checks)
    batch = plan.config.batch
    return Probe(
        recipe=plan.config.recipe,
        task=str(plan.config.task["name"]),
        problems=len(solved),
        rollouts=rollouts,
        solver=solver,
        judge=judge,
        turn_s=sum(ctx.timeline.seconds.values()) * batch.problems * batch.rollouts / max(1, len(solutions)),
        memory_gib=_measure_memory() if plan.config.engine == "local" else None,
        advice=tuple(advise(solver, judge, plan.config, list_bootstrapped(plan.recipe, plan.roles))),
        examples=tuple(_select_unreadable(solutions) + _select_unreadable(checks or Rollouts([]))),
        turn_problems=batch.problems,
        turn_rollouts=batch.rollouts,
    )


def _sample(plan: Plan, run_context: RunContext, problems: int, rollouts: int) -> tuple[Context, Rollouts, Rollouts | None]:
    """Sample solutions and, if the recipe has a judge, verifications. The context's timeline has the seconds of both."""
    ctx = _make_context(run_context)
    size = plan.task.size("train")
    solutions = ctx.ask(plan.recipe.solving, ctx.problems(problems if size is None else min(problems, size)), rollouts)
    return ctx, solutions, ctx.judge(plan.recipe.judging, solutions) if plan.recipe.judging in plan.roles else None


def _make_context(run_context: RunContext) -> Context:
    """Make a context whose keys no turn of a run has."""
    return Context(run_context, "probe", "")


def _describe_agent(plan: Plan, run_context: RunContext, agent: str) -> Asked:
    learning = find_learning(plan.recipe, plan.schedule, agent)
    return Asked(agent, plan.agents[agent], learning, run_context.get_max_tokens(agent))


def find_learning(recipe: Recipe, schedule: Schedule, agent: str) -> LearnsFrom:
    """Find out what an agent learns from in its first turns.

    Phases with a name imitate or collect: by them an agent may learn to write what can be read before it is rewarded.
    """
    first = next((phase for phase in schedule.intro + schedule.cycle if phase.learner == agent and phase.turns != 0), None)
    if first is None:
        return "nothing"
    if first.name or recipe.objectives[agent].loss.kind != "policy_gradient":
        return "examples"
    return "outcomes" if recipe.truth.startswith(GRADED) else "rewards"


def _measure_memory() -> float:
    """Peak memory in GiB: of the GPU, if one is in use, else of this process."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available() and (used := torch.cuda.max_memory_allocated()):
        return float(used / 2**30)
    unit = 2**30 if sys.platform == "darwin" else 2**20  # macOS counts bytes, Linux KiB
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit


def _select_unreadable(rollouts: Rollouts) -> list[Example]:
    """Select the first outputs that could not be read, each with its first lines."""
    return [
        Example(t.agent, t.parsed.invalid or "no answer", clip_text("\n".join(t.text.splitlines()[:LINES]), CHARACTERS))
        for t in rollouts.select(lambda t: not is_readable(t))[:EXAMPLES]
    ]


def _format_count(value: float) -> str:
    return f"{value:.0f}"
