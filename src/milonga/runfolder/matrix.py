"""The matrix of a run: verifiers of all checkpoints on solutions by generators of all checkpoints, as `milonga eval RUN matrix`
keeps it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from milonga.errors import RunFolderError
from milonga.runfolder.record import read_shape
from milonga.text import format_number

FILE = "matrix.json"
Figure = Literal["soft_auroc", "balanced_accuracy"]
FIGURES: dict[Figure, str] = {"soft_auroc": "AUROC of the soft verdict", "balanced_accuracy": "balanced accuracy"}
"""What is shown of each pair, with its title."""
Share = Annotated[float, Field(ge=0, le=1)] | None


@dataclass(frozen=True)
class Cell:
    """One verifier on one generator's solutions; both are named by the turn of their checkpoint. A figure that is not defined,
    such as an AUROC where all solutions are wrong, is None."""

    generator: int
    verifier: int
    solutions: int
    right: int
    wrong: int
    share_right: Share
    positive_rate: Share
    unparsed_rate: Share
    soft_auroc: Share
    soft_auroc_low: Share
    soft_auroc_high: Share
    balanced_accuracy: Share
    balanced_accuracy_low: Share
    balanced_accuracy_high: Share
    accuracy_on_right: Share
    accuracy_on_wrong: Share

    def format_figure(self, figure: Figure) -> str:
        """Format a figure with its interval, where it has one."""
        value, low, high = (format_number(getattr(self, figure + end)) for end in ("", "_low", "_high"))
        return value if getattr(self, f"{figure}_low") is None else f"{value} [{low}, {high}]"


@dataclass(frozen=True)
class Matrix:
    """What `matrix.json` holds that is shown: one cell for each pair of turns, generators outer."""

    turn: int
    split: str
    problems: int
    samples: int
    turns: Sequence[int]
    rows: Sequence[Cell]

    def list_head(self) -> tuple[str, ...]:
        return "generator of turn", "right", *(f"verifier of turn {turn}" for turn in self.turns)

    def list_rows(self, figure: Figure) -> list[tuple[str, ...]]:
        """List the table of one figure: a row for each generator, with its share of right solutions, and a column for each
        verifier."""
        cells = {(cell.generator, cell.verifier): cell for cell in self.rows}
        return [
            (
                str(wrote),
                format_number(cells[wrote, self.turns[0]].share_right),
                *(cells[wrote, judged].format_figure(figure) for judged in self.turns),
            )
            for wrote in self.turns
        ]

    def describe(self) -> str:
        return (
            f"{self.problems} {self.split} problems, {self.samples} solutions of each by every generator, at turn {self.turn}."
        )


def read_matrix(folder: Path) -> Matrix | None:
    """Read the matrix of a run; None if none was measured."""
    found = read_shape(folder / FILE, Matrix)
    pairs = [(cell.generator, cell.verifier) for cell in found.rows] if found is not None else []
    if found is not None and pairs != [(wrote, judged) for wrote in found.turns for judged in found.turns]:
        raise RunFolderError(f"'{folder / FILE}' holds no matrix: it lacks a pair of its turns, or has another")
    return found
