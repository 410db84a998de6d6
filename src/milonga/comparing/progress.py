"""Show the progress of a comparison or a sweep on stderr: finished runs, the turn of each active run, time left."""

from __future__ import annotations

import time
from pathlib import Path

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from milonga.comparing.pool import Run
from milonga.reading import parse_json, read_last_lines
from milonga.runfolder.console import Panel, format_time
from milonga.runfolder.files import is_row
from milonga.text import escape_invisible

AROUND = 6
"""Lines of the view that are no runs: a title, the head of the table and what surrounds it, and the summary."""


class Progress(Panel):
    """A table of the runs in progress on a terminal; a line for each run that begins or ends elsewhere."""

    def __init__(self, total: int, done: int, jobs: int, turns: dict[str, int | None], quiet: bool = False) -> None:
        super().__init__(quiet)
        self.total, self.done, self.failed, self.jobs = total, done, 0, jobs
        self.turns = turns
        """Total turns of a run, by arm; None if unknown."""
        self.began = time.monotonic()
        self.gained = 0.0
        """Runs done since `began`, fractions included: the time left is estimated from it."""
        self.running: dict[Run, float] = {}
        """Active runs, each with the fraction that was already done when it was started here."""

    def begin(self, run: Run) -> None:
        self.running[run] = self.fraction_done(run)
        if not self.live:
            self.say(f"{run}: {'goes on from turn ' + str(read_last_turn(run.folder)) if self.running[run] else 'begins'}")

    def end(self, run: Run, error: str | None, stopped: bool = False) -> None:
        """Note that a run ended: with an error, finished, or `stopped` before its end, to go on later."""
        if stopped:
            self.running.pop(run, None)
            self.say(f"{run}: {error or f'stopped after turn {read_last_turn(run.folder)}'}")
            return
        if run in self.running:  # it may have failed before it began
            self.gained += 1 - self.running.pop(run)
        self.done += error is None
        self.failed += error is not None
        if error is not None:
            self.say(f"{run}: failed: {error}")
        elif not self.live:
            self.say(f"{run}: done  ({self.format_summary()})")

    def tick(self) -> None:
        if self.live:
            self.live.update(self._render(""), refresh=True)

    def fraction_done(self, run: Run) -> float:
        total = self.turns.get(run.arm)
        return min(1.0, read_last_turn(run.folder) / total) if total else 0.0

    def format_summary(self) -> str:
        text = f"{self.done}/{self.total} runs" + (f", {self.failed} failed" if self.failed else "")
        passed, left = time.monotonic() - self.began, self.estimate_seconds_left()
        return f"{text}  [{format_time(passed)}" + (f" < {format_time(left)}]" if left is not None else "]")

    def estimate_seconds_left(self) -> float | None:
        """Estimate the seconds left at the pace so far; None if nothing is done yet."""
        now = sum(self.fraction_done(run) for run in self.running)
        gained = self.gained + now - sum(self.running.values())
        missing = self.total - self.done - self.failed - now
        return (time.monotonic() - self.began) / gained * missing if gained > 0 else None

    def _render(self, now: str) -> RenderableType:
        if not self.running:
            return Text(self.format_summary())
        table = Table("run", "seed", "turn", title="in progress", title_justify="left")
        shown = list(self.running)[: max(1, self.console.height - AROUND)]
        for run in shown:
            total = self.turns.get(run.arm)
            table.add_row(
                Text(escape_invisible(run.arm)), str(run.seed), f"{read_last_turn(run.folder)}" + (f"/{total}" if total else "")
            )
        more = len(self.running) - len(shown)
        return Group(table, Text((f"and {more} more in progress; " if more else "") + self.format_summary()))


def read_last_turn(folder: Path) -> int:
    """Read the last turn of a run from the end of timing.jsonl, the smallest file that grows with it."""
    try:
        lines = read_last_lines(folder / "timing.jsonl", 1000)
    except OSError:
        return 0
    for line in reversed(lines):
        try:
            row = parse_json(line)
        except ValueError:
            continue  # half a line: still being written, or the first one of this block
        if is_row(row):
            return int(row["turn"])
    return 0
