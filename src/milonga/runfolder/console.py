"""The live view of a run in the terminal: progress, time left, metrics. It goes to stderr; stdout is for results."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TextIO, cast

from rich.box import HEAVY_HEAD, Box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.measure import Measurement
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from milonga.text import escape_invisible, format_number

if TYPE_CHECKING:
    from milonga.engine.base import Progress  # numpy would load with it, in every command
    from milonga.health import Finding

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
SPARED = (
    "learn/generator/entropy",
    "eval/generator/sound_accuracy",
    "rollouts/verifier/balanced_accuracy",
    "eval/hacking_gap",
    "eval/verifier/f1",
    "rollouts/generator/accuracy",
    "rollouts/generator/reward",
    "learner",
)
"""Columns that a narrow terminal leaves out, the first ones first."""
SHOWN, FEWEST = 12, 3
"""Turns that are shown at most; and that are worth more than whole sentences, where a screen has no room for both."""
ENDLESS = 10_000
"""Columns in which any table has its whole width."""
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


def make_text(*parts: str | tuple[str, str]) -> Text:
    """Make text that may be anybody's: no part of it is markup, and control characters are escaped. A part may come with a
    style."""
    pairs = [(part, "") if isinstance(part, str) else part for part in parts]
    return Text.assemble(*((escape_invisible(text, lines=True), style) for text, style in pairs))


def name_badge(one: Finding) -> tuple[str, str]:
    """The word for what is wrong, in the colour that says how bad it is."""
    return one.badge, "bold red" if one.severe else "bold yellow"


def render_finding(one: Finding) -> Text:
    """Render what is wrong with a run, as every view of a terminal says it."""
    return make_text("health: ", name_badge(one), f": {one}")


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
            last = self._render("")  # what was going on is over
            self.live.transient = last is None
            self.live.update(last or Text())
            self.live.stop()

    def say(self, text: str) -> None:
        """Print a line that stays. It may hold the user's text, so it is never read as markup."""
        self.console.print(text, highlight=False, markup=False, soft_wrap=True)
        if self.live and self.live.is_started:
            self.live.refresh()  # what is below the line was drawn without wrapping too
        self.watch.spoke = time.monotonic()

    def show_progress(self, text: str) -> None:
        """Show what is going on: below what is there, on a terminal; elsewhere as a line."""
        if self.live:
            self.live.update(self._render(text) or Text(), refresh=True)
        else:
            self.say(text)

    def _render(self, now: str) -> RenderableType | None:
        """Render what is shown in place, and what is going on, if anything is; None if there is nothing to be shown."""
        return make_text(now) if now else None


class LiveView(Panel):
    """A table of the last turns with a progress bar on a terminal; one line per turn elsewhere.

    Invariant: no number and no heading is cut, and how far the run is stays on the screen. What has no room is left out: the
    first of the turns, the columns that matter least, and of what is wrong all but a word each.
    """

    def __init__(self, title: str, total: int | None, quiet: bool = False) -> None:
        super().__init__(quiet)
        self.title, self.total = title, total
        self.rows: deque[dict[str, Any]] = deque(maxlen=SHOWN)
        self.findings: Sequence[Finding] = ()
        """What is wrong now."""
        self.began, self.first = time.monotonic(), 0

    def add(self, row: dict[str, Any], findings: Sequence[Finding] = ()) -> None:
        """Show a turn and the run's health. Where lines stay, what is wrong is said once of each agent, when it begins."""
        known = {(one.badge, one.subject) for one in self.findings}
        self.findings = findings
        if not self.rows:
            self.began, self.first = time.monotonic(), int(row["turn"])
        self.rows.append(row)
        if self.live:
            self.live.update(self._render("") or Text(), refresh=True)
        else:
            cells = [f"{name} {format_number(row[key])}" for key, name in COLUMNS.items() if _is_shown(row, key)]
            self.say("  ".join(cells) + f"  {self.format_time_left(row)}")
            for one in findings:
                if (one.badge, one.subject) not in known:
                    self.say(render_finding(one).plain)

    def format_time_left(self, row: dict[str, Any]) -> str:
        """Format the elapsed time, and an estimate of the time left after the first turn."""
        passed = time.monotonic() - self.began
        done = int(row["turn"]) - self.first
        if self.total is None or done <= 0:
            return f"[{format_time(passed)}]"
        left = passed / done * max(0, self.total - int(row["turn"]))
        return f"[{format_time(passed)} < {format_time(left)}]"

    def _render(self, now: str) -> RenderableType | None:
        """Render as much as the screen has room for. How far the run is, and what is going on, is always seen."""
        if not self.rows:
            return super()._render(now)
        left, going = f" {self.format_time_left(self.rows[-1])}", super()._render(now)
        width = max(1, min(40, self.console.width - len(left)))
        bar = ProgressBar(total=self.total, completed=int(self.rows[-1]["turn"]), width=width)
        foot = [bar, Text(left), *([] if going is None else [going])]  # the time is on the line of the bar
        title, (columns, box) = Text(escape_invisible(self.title), style="italic"), self._choose_columns()
        for health in self._list_health():
            taken = self._count_lines(title, *health, *foot) + (1 if box is None else 4)
            if (room := self.console.height - taken) >= min(FEWEST, len(self.rows)):
                return Group(title, self._make_table(columns, box, room), *health, *foot)
        return Group(*foot)

    def _list_health(self) -> Iterator[list[Text]]:
        """What is wrong in sentences; and where these have no room, in a word each."""
        yield [render_finding(one) for one in self.findings]
        words = [part for one in self.findings for part in (", ", name_badge(one))][1:]
        yield [make_text("health: ", *words)] if words else []

    def _count_lines(self, *parts: RenderableType) -> int:
        return len(self.console.render_lines(Group(*parts), pad=False))

    def _choose_columns(self) -> tuple[list[str], Box | None]:
        """Choose the columns that have room: all of them, with lines around them or without, or those that matter most."""
        present = [key for key in COLUMNS if any(_is_shown(row, key) for row in self.rows)]
        spared = [key for key in SPARED if key in present]
        fewer = [[key for key in present if key not in spared[:count]] for count in range(len(spared) + 1)]
        options = self.console.options.update(width=ENDLESS)
        for columns, box in ((present, HEAVY_HEAD), *((columns, None) for columns in fewer)):
            table = self._make_table(columns, box, SHOWN)
            if Measurement.get(self.console, options, table).maximum <= self.console.width:
                return columns, box
        return fewer[-1], None

    def _make_table(self, columns: Sequence[str], box: Box | None, most: int) -> Table:
        """Make the table of the last turns, at most so many."""
        table = Table(box=box)
        for key in columns:
            table.add_column(COLUMNS[key], justify="right", no_wrap=True)
        for row in list(self.rows)[-most:]:
            table.add_row(*("" if row.get(key) is None else format_number(row[key]) for key in columns))
        return table
