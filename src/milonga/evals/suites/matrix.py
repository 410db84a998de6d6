"""Matrix: does the verifier of today judge the generator of yesterday and of tomorrow?"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from pydantic import Field

from milonga.charts import Bars, bar_chart
from milonga.errors import Notice
from milonga.evals.suites.base import SUITES, Finding, HeldOut, Row, Subject, Suite, draw_held_out, measure_judging
from milonga.types import Rollouts

FIGURES = {"soft_auroc": "soft AUROC", "balanced_accuracy": "balanced accuracy"}
"""What a terminal shows of each pair."""


class MatrixOptions(HeldOut):
    checkpoints: int = Field(3, ge=1)
    """How many checkpoints, evenly from the start of the run to the newest."""
    samples: int = Field(4, ge=1)
    """Solutions of each problem, by each checkpoint's generator."""


class Checkpoint(NamedTuple):
    """The weights of a run after a turn: a kept checkpoint, or the models that it began with, which every run has."""

    turn: int
    folder: Path | None

    def enter(self, subject: Subject) -> str:
        """Load the weights; return the tag under which they are used."""
        if self.folder is None:
            return "ref"
        subject.run_context.engine.load(self.folder)
        return "live"


@SUITES.register("matrix")
class Matrix(Suite):
    """The pair over time: the verifier of every checkpoint on solutions by the generator of every checkpoint."""

    name = "matrix"
    Options = MatrixOptions
    columns = ("generator", "verifier", "share_right", "soft_auroc", "balanced_accuracy", "positive_rate")
    keeps = True
    options: MatrixOptions

    @classmethod
    def select_rows(cls, rows: Sequence[Row]) -> Sequence[Row]:
        """Select a row for each figure and generator, with a column for each verifier."""
        out: list[Row] = []
        for figure, title in FIGURES.items():
            for wrote in dict.fromkeys(row["generator"] for row in rows):
                own = [row for row in rows if row["generator"] == wrote]
                cells = {f"verifier {r['verifier']}{end}": r[figure + end] for r in own for end in ("", "_low", "_high")}
                out.append({"figure": title, "generator": wrote, "share_right": own[0]["share_right"]} | cells)
        return out

    @classmethod
    def select_columns(cls, rows: Sequence[Row]) -> Sequence[str]:
        return [name for name in rows[0] if not name.endswith(("_low", "_high"))]

    def measure(self, subject: Subject) -> Finding:
        kept = {} if subject.list_checkpoints is None else subject.list_checkpoints()
        chosen = choose_checkpoints(kept, self.options.checkpoints)
        turns = [one.turn for one in chosen]
        if len(turns) < self.options.checkpoints:
            said = f"weights of turns {', '.join(map(str, turns))} alone, not of {self.options.checkpoints} checkpoints"
            kinds = "a run keeps its newest two, and more with --set keep.checkpoints=N"
            warnings.warn(f"the run has the {said}: {kinds}", Notice, stacklevel=2)
        solutions = {one.turn: self.sample(subject, one) for one in chosen}
        cells: dict[tuple[int, int], Row] = {}
        for one in chosen:
            tag = one.enter(subject)
            for turn, written in solutions.items():
                cells[turn, one.turn] = measure_judging(subject.verify_all(subject.make_context(), written, tag=tag))
        rows = [{"generator": wrote, "verifier": judged} | cells[wrote, judged] for wrote in turns for judged in turns]
        problems = len({solution.problem.id for solution in solutions[turns[0]]})
        facts: Row = {"split": self.options.split, "problems": problems, "samples": self.options.samples}
        return Finding(facts | {"turns": turns, "kept": sorted(kept)}, rows)

    def sample(self, subject: Subject, checkpoint: Checkpoint) -> Rollouts:
        """Sample a checkpoint's solutions: of the same problems, with the same random keys for each."""
        tag = checkpoint.enter(subject)
        ctx, problems = draw_held_out(subject, None, self.options.split, self.options.problems)
        return ctx.ask(subject.solver, problems, self.options.samples, tag=tag)

    def chart(self, rows: Sequence[Row]) -> str:
        turns = list(dict.fromkeys(row["verifier"] for row in rows))
        bars = []
        for turn in turns:
            own = [row for row in rows if row["verifier"] == turn]
            bars.append(
                Bars(f"verifier of turn {turn}", *([r[f"soft_auroc{end}"] for r in own] for end in ("", "_low", "_high")))
            )
        names = [f"generator of turn {turn}" for turn in turns]
        return bar_chart("AUROC of the soft verdict", names, bars, value_range=(0, 1))


def choose_checkpoints(kept: Mapping[int, Path], count: int) -> list[Checkpoint]:
    """Choose `count` checkpoints evenly among the start and those that are kept, the newest always among them; all of them
    where there are fewer."""
    folders: dict[int, Path | None] = {0: None, **kept}
    known = [Checkpoint(turn, folders[turn]) for turn in sorted(folders)]
    if count == 1:
        return known[-1:]
    picks = range(len(known)) if len(known) <= count else [i * (len(known) - 1) // (count - 1) for i in range(count)]
    return [known[i] for i in picks]
