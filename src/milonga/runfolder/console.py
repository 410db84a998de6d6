"""The live view of a run in the terminal: progress, time left, metrics. It goes to stderr; stdout is for results."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, Any, Self, TextIO, cast

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from milonga.text import escape_invisible, format_number

if TYPE_CHECKING:
    from milonga.engine.base import Progress  # numpy would load with it, in every command

COLUMNS = {
    "turn": "turn",
    "learner": "learns",
    "rollouts/generator/accuracy": "accuracy",
    "rollouts/generator/reward": "reward",
    "rollouts/verifier/balanced_accuracy": "verifier",
    "eval/generator/accuracy": "held-out",
    "eval/generator/sound_accuracy": "sound",
    "eval/verifier/f1": "F1",
    "eval/hacking_gap": "gap",
    "learn/generator/entropy": "entropy",
}
SHOWN = 12
PATIENCE, FRAME = 20.0, 0.5
"""Seconds of silence before a line says how far sampling is; and between two pictures on a terminal."""


def format_time(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}" if minutes >= 60 else f"{minutes}:{rest:02d}"


def _is_shown(row: dict[str, Any], key: str) -> bool:
    """Whether a row has something to show in a column. A reward that is the accuracy again has nothing."""
    again = key == "rollouts/generator/reward" and row.get(key) == row.get("rollouts/generator/accuracy")
    return row.get(key) is not None and not again


class Stderr:
    """Standard error that may go away: a pipe that nobody reads any more, or a terminal that was closed, ends no run. What a
    signal's handler says while something else is being written may be lost too."""

    @property
    def stream(self) -> TextIO:
        """The stream itself: a live view puts a proxy in its place, which would write to us again."""
        return cast("TextIO", getattr(sys.stderr, "rich_proxied_file", sys.stderr))

    @property
    def encoding(self) -> str:
        return self.stream.encoding

    def write(self, text: str) -> int:
        with suppress(OSError, RuntimeError):
            self.stream.write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError, RuntimeError):
            self.stream.flush()

    def isatty(self) -> bool:
        return self.stream.isatty()

    def fileno(self) -> int:
        return self.stream.fileno()


class SafeConsole(Console):
    """A console for text of others. Invariant: no string, and no cell of a table, brings control characters to the terminal:
    they are printed as escapes."""

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(escape_invisible(text, lines=True), **options)


class Ticker:
    """Follows an engine's calls of `sample` and `learn`, and says how far one is whenever nothing else was said for a while."""

    def __init__(self, say: Callable[[str], None], pause: float = PATIENCE) -> None:
        self.say, self.pause = say, pause
        self.spoke = self.began = time.monotonic()
        self.last: Progress | None = None

    def __call__(self, progress: Progress) -> None:
        last, now = self.last, time.monotonic()
        same = last is not None and (last.policy, last.work, last.total) == (progress.policy, progress.work, progress.total)
        if last is None or not same or progress.done < last.done:
            self.began = now
        self.last = progress
        if now - self.spoke >= self.pause:
            self.spoke = now
            self.say(describe_progress(progress, now - self.began))


def describe_progress(progress: Progress, passed: float) -> str:
    """Describe how far a call is, and how long it would still take if all outputs went to their limit."""
    share = (progress.done + progress.writing * progress.tokens / progress.limit) / progress.total
    left = passed * (1.0 - share) / share if share else 0.0
    what = "outputs written" if progress.work == "sample" else "rollouts learned from"
    said = f"{progress.policy}: {progress.done} of {progress.total} {what}"
    if progress.writing:
        said += f", the next {progress.writing} are at token {progress.tokens:,} of at most {progress.limit:,}"
    return f"{said}  [{format_time(passed)} < {format_time(left)}]"


def print_to_stderr(text: str) -> None:
    """Print a line on standard error, which may have gone away."""
    Stderr().write(f"{text}\n")


class Panel:
    """A view that updates in place on a terminal, and prints lines elsewhere. All of it goes to stderr."""

    def __init__(self, quiet: bool = False) -> None:
        self.console = SafeConsole(file=cast("TextIO", Stderr()), quiet=quiet)
        self.live = Live(console=self.console, auto_refresh=False) if self.console.is_terminal and not quiet else None
        self.watch = Ticker(self.show_progress, FRAME if self.live else PATIENCE)
        """Told how far sampling is."""

    def __enter__(self) -> Self:
        if self.live:
            self.live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.live:
            self.live.stop()

    def say(self, text: str) -> None:
        """Print a line that stays. It may hold the user's text, so it is never read as markup."""
        self.console.print(text, highlight=False, markup=False, soft_wrap=True)
        self.watch.spoke = time.monotonic()

    def show_progress(self, text: str) -> None:
        """Show what is going on: below what is there, on a terminal; elsewhere as a line."""
        if self.live:
            self.live.update(self._render(text), refresh=True)
        else:
            self.say(text)

    def _render(self, now: str) -> RenderableType:
        """Render what is shown in place, and what is going on."""
        return Text(escape_invisible(now))


class LiveView(Panel):
    """A table of the last turns with a progress bar on a terminal; one line per turn elsewhere."""

    def __init__(self, title: str, total: int | None, quiet: bool = False) -> None:
        super().__init__(quiet)
        self.title, self.total = title, total
        self.rows: deque[dict[str, Any]] = deque(maxlen=SHOWN)
        self.health: dict[tuple[str, str], str] = {}
        """What is wrong now: the word for it and the agent it is about, and the sentence."""
        self.began, self.first = time.monotonic(), 0

    def add(self, row: dict[str, Any], health: Mapping[tuple[str, str], str] = MappingProxyType({})) -> None:
        """Show a turn and the run's health. Where lines stay, what is wrong is said once of each agent, when it begins."""
        new = [f"{key[0]}: {text}" for key, text in health.items() if key not in self.health]
        self.health = dict(health)
        if not self.rows:
            self.began, self.first = time.monotonic(), int(row["turn"])
        self.rows.append(row)
        if self.live:
            self.live.update(self._render(""), refresh=True)
        else:
            cells = [f"{name} {format_number(row[key])}" for key, name in COLUMNS.items() if _is_shown(row, key)]
            self.say("  ".join(cells) + f"  {self.format_time_left(row)}")
            for line in new:
                self.say(f"health: {line}")

    def format_time_left(self, row: dict[str, Any]) -> str:
        """Format the elapsed time, and an estimate of the time left after the first turn."""
        passed = time.monotonic() - self.began
        done = int(row["turn"]) - self.first
        if self.total is None or done <= 0:
            return f"[{format_time(passed)}]"
        left = passed / done * max(0, self.total - int(row["turn"]))
        return f"[{format_time(passed)} < {format_time(left)}]"

    def _render(self, now: str) -> RenderableType:
        if not self.rows:
            return super()._render(now)
        table = Table(title=self.title, title_justify="left")
        present = [key for key in COLUMNS if any(_is_shown(row, key) for row in self.rows)]
        for key in present:
            table.add_column(COLUMNS[key], justify="right")
        for row in self.rows:
            table.add_row(*("" if row.get(key) is None else format_number(row[key]) for key in present))
        last = self.rows[-1]
        bar = ProgressBar(total=self.total, completed=int(last["turn"]), width=40)
        health = [Text(escape_invisible(f"{badge}: {text}"), style="yellow") for (badge, _), text in self.health.items()]
        return Group(table, *health, bar, Text(self.format_time_left(last)), *([super()._render(now)] if now else []))
