"""Browse the saved rollouts of a run: paged, filtered lists of problems, and the transcript of one problem.

Invariants: files are read only on request; a list reads a few narrow columns, newest turn first, and stops when its page is
full or its time is up; the counts of a turn (per problem, without texts) are kept in a cache of bounded size; a transcript
reads only the row groups that hold its problem; a file that cannot be read is named and skipped.
"""

from __future__ import annotations

import math
import re
import threading
import time
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from milonga.reading import ROWS, open_parquet, read_batches
from milonga.roles import StepSolver
from milonga.roles.verifier import parse_tagged, parse_terse
from milonga.runfolder.rollouts import check_columns, is_contradiction, is_fooled
from milonga.types import Solution

if TYPE_CHECKING:
    import pyarrow.parquet as pq

Flag = Literal["fooled", "invalid", "contradiction", "few"]
FLAGS: dict[Flag, str] = {
    "fooled": "the verifier called a wrong solution right",
    "invalid": "something could not be read",
    "contradiction": "a final verdict does not follow from the step verdicts",
    "few": "solved, but by at most a quarter of the rollouts",
}
COUNTS = ("rollouts", "graded", "solved", "checks", "fooled", "invalid", "contradiction")
NARROW = ("problem", "verification", "correct", "fooled", "invalid", "contradiction")
WIDE = (
    "id", "agent", "problem", "question", "targets", "text", "advantages", "chars", "trained_from", "policy", "version",
    "step_ends", "step_chars", "finish", "invalid", "format", "answer", "verification", "final_verdict", "step_verdicts",
    "score", "step_scores", "contradiction", "fooled", "correct", "step_truth",
)  # fmt: skip
KEPT_GROUPS = 300_000
"""Most problems whose counts are cached in memory, over all turns."""
PAGE = 40
MOST_ROLLOUTS = 32
"""Most rollouts of one kind that a transcript shows."""
Ints = NDArray[np.int64]
T = TypeVar("T")


@dataclass(frozen=True)
class Filters:
    """The filters of a list of problems."""

    turn: int | None = None
    flags: frozenset[Flag] = frozenset()
    text: str = ""
    """A substring of the question or of the problem's name, ignoring case."""


@dataclass(frozen=True)
class Cursor:
    """The position where a list continues: a turn, and how many of its problems were already listed."""

    turn: int
    passed: int = 0

    def __str__(self) -> str:
        return f"{self.turn}.{self.passed}"


@dataclass(frozen=True)
class Group:
    """Counts for one problem in one turn: its rollouts and their verifications."""

    turn: int
    problem: str
    question: str
    rollouts: int
    graded: int
    solved: int
    checks: int
    fooled: int
    invalid: int
    contradiction: int


@dataclass(frozen=True)
class Listing:
    """One page of a list of problems."""

    groups: tuple[Group, ...]
    after: Cursor | None
    """Where the next page begins; None after the last page."""
    oldest: int | None
    """The last turn that was searched."""
    broken: tuple[str, ...]


@dataclass(frozen=True)
class Note:
    """The verdict and comment of one verification on one step."""

    check: int
    text: str
    right: bool | None
    score: float | None = None


@dataclass(frozen=True)
class Step:
    text: str
    truth: bool | None
    notes: tuple[Note, ...]
    advantages: tuple[float, ...]
    ends: tuple[int, ...] = ()
    """End of each token in the text, aligned with `advantages`; empty if unknown."""

    @property
    def verdict(self) -> bool | None:
        """The majority verdict of the verifications; None on a tie or without any verdict."""
        said = [note.right for note in self.notes if note.right is not None]
        rights = sum(said)
        return None if 2 * rights == len(said) else 2 * rights > len(said)


@dataclass(frozen=True)
class Check:
    """A verification of a whole solution."""

    id: str
    agent: str
    policy: str
    text: str
    """The whole completion."""
    rest: str
    """The text after the last step: the final verdict."""
    final: bool | None
    score: float | None
    invalid: str
    contradiction: bool
    fooled: bool
    advantages: tuple[float, ...]


@dataclass(frozen=True)
class RolloutView:
    id: str
    agent: str
    policy: str
    answer: str | None
    correct: bool | None
    invalid: str
    finish: str
    steps: tuple[Step, ...]
    rest: str
    """The text after the last step; the whole completion if there are no steps."""
    rest_advantages: tuple[float, ...]
    rest_ends: tuple[int, ...]
    checks: tuple[Check, ...]


@dataclass(frozen=True)
class Transcript:
    turn: int
    problem: str
    question: str
    rollouts: tuple[RolloutView, ...]
    left_out: int
    """How many rollouts are not shown."""


@dataclass(frozen=True)
class Digest:
    """Summary of one turn: its problems in order of appearance, with counts for each."""

    problems: pa.StringArray
    rows: Ints
    """Index of the first row of each problem in the file."""
    counts: dict[str, Ints]

    def mask_by_flags(self, flags: Iterable[Flag]) -> NDArray[np.bool_]:
        """Boolean mask over `problems`: those that have every flag."""
        keep = np.ones(len(self.problems), dtype=bool)
        for flag in flags:
            if flag == "few":
                keep &= (self.counts["solved"] > 0) & (4 * self.counts["solved"] <= self.counts["graded"])
            else:
                keep &= self.counts[flag] > 0
        return keep


class Rollouts:
    """The folder with the saved rollouts of one run."""

    def __init__(self, folder: Path, terse: bool) -> None:
        self.folder, self.terse = folder, terse
        self.lock = threading.Lock()
        self.digests: OrderedDict[tuple[int, int, int], Digest] = OrderedDict()

    def list_turns(self) -> list[int]:
        """List the turns whose rollouts were saved, newest first."""
        try:
            names = [path.name for path in self.folder.iterdir()]
        except OSError:
            return []
        found = (re.fullmatch(r"turn-(\d{1,12})\.parquet", name) for name in names)
        return sorted((int(match[1]) for match in found if match), reverse=True)

    def turn_path(self, turn: int) -> Path:
        return self.folder / f"turn-{turn:06d}.parquet"

    def list_problems(self, filters: Filters, start: Cursor | None = None, limit: int = PAGE, seconds: float = 1.0) -> Listing:
        """Return a page of problems, newest turn first. At least one turn is searched, even if the time is up."""
        until = time.monotonic() + seconds
        turns = [t for t in self.list_turns() if filters.turn in (None, t) and (start is None or t <= start.turn)]
        found: list[Group] = []
        broken: list[str] = []
        for place, turn in enumerate(turns):
            passed = start.passed if start is not None and start.turn == turn else 0
            try:
                hits = self._filter_problems(turn, filters)
                taken = hits[hits >= passed][: limit - len(found)]
                found += self._load_groups(turn, taken)
            except Exception as error:  # whatever a foreign file may hold
                broken.append(f"{self.turn_path(turn).name} cannot be read: {str(error).splitlines()[0][:200]}")
                continue
            if len(found) == limit:
                more = bool(len(hits) and hits[-1] > taken[-1])
                older = Cursor(turns[place + 1]) if place + 1 < len(turns) else None
                return Listing(tuple(found), Cursor(turn, int(taken[-1]) + 1) if more else older, turn, tuple(broken))
            if time.monotonic() > until and place + 1 < len(turns):
                return Listing(tuple(found), Cursor(turns[place + 1]), turn, tuple(broken))
        return Listing(tuple(found), None, turns[-1] if turns else None, tuple(broken))

    def _filter_problems(self, turn: int, filters: Filters) -> Ints:
        """Indices of the problems of a turn that pass the filters."""
        digest = self._load_digest(turn)
        keep = digest.mask_by_flags(filters.flags)
        if filters.text and keep.any():
            keep &= self._mask_by_text(turn, digest, filters.text)
        return np.flatnonzero(keep)

    def _mask_by_text(self, turn: int, digest: Digest, text: str) -> NDArray[np.bool_]:
        with open_parquet(self.turn_path(turn), ROWS) as file:
            table = _read_columns(file, ["problem", "question"])
        found = pc.match_substring(table["question"], text, ignore_case=True)
        problems = pc.unique(table["problem"].filter(found))
        asked = pc.or_(
            pc.is_in(digest.problems, value_set=problems), pc.match_substring(digest.problems, text, ignore_case=True)
        )
        return np.asarray(pc.fill_null(asked, False).to_numpy(zero_copy_only=False), dtype=bool)

    def _load_groups(self, turn: int, places: Ints) -> list[Group]:
        if not len(places):
            return []
        digest = self._load_digest(turn)
        with open_parquet(self.turn_path(turn), ROWS) as file:
            questions = _read_rows_at(file, digest.rows[places], ["problem", "question"]).to_pylist()
        return [
            Group(turn, row["problem"], row["question"] or "", **{count: int(digest.counts[count][at]) for count in COUNTS})
            for at, row in zip(places, questions, strict=True)
        ]

    def _load_digest(self, turn: int) -> Digest:
        stat = self.turn_path(turn).stat()
        key = (turn, stat.st_size, stat.st_mtime_ns)
        with self.lock:
            if key in self.digests:
                self.digests.move_to_end(key)
                return self.digests[key]
        made = _make_digest(self.turn_path(turn))
        with self.lock:
            self.digests[key] = made
            held = sum(len(digest.problems) for digest in self.digests.values())
            while held > KEPT_GROUPS and len(self.digests) > 1:
                held -= len(self.digests.popitem(last=False)[1].problems)
        return made

    def load_transcript(self, turn: int, problem: str) -> Transcript | None:
        """Load all rollouts and verifications of one problem in one turn; None if it is not in the file."""
        rows = self._load_rows(turn, problem)
        if not rows:
            return None
        checks_by_target: dict[str, list[dict[str, Any]]] = {row["id"]: [] for row in rows}
        others = []
        for row in rows:
            targets = [target for target in row["targets"] or () if target in checks_by_target] if _is_check(row) else []
            for target in targets:
                checks_by_target[target].append(row)
            if not targets:  # a solution, or a verification whose target was not saved
                others.append(row)
        shown = others[:MOST_ROLLOUTS]
        rollouts = tuple(
            _build_rollout(row, _find_verifications(row, checks_by_target)[:MOST_ROLLOUTS], self.terse) for row in shown
        )
        return Transcript(turn, problem, rows[0]["question"] or "", rollouts, len(others) - len(shown))

    def find_next_problem(self, filters: Filters, turn: int, problem: str) -> Group | None:
        """Find the next problem of a list; None at its end, or if this one is not on it."""
        if turn not in self.list_turns():
            return None
        place = self._load_digest(turn).problems.index(problem).as_py()
        found = self.list_problems(filters, Cursor(turn, place + 1), limit=1).groups if place >= 0 else ()
        return found[0] if found else None

    def _load_rows(self, turn: int, problem: str) -> list[dict[str, Any]]:
        if turn not in self.list_turns():
            return []
        with open_parquet(self.turn_path(turn), ROWS) as file:
            check_columns(file.schema_arrow)
            names = _read_columns(file, ["problem"])["problem"]
            places = np.flatnonzero(pc.fill_null(pc.equal(names, problem), False).to_numpy())
            if not len(places):
                return []
            columns = [name for name in WIDE if name in file.schema_arrow.names]
            rows: list[dict[str, Any]] = _read_rows_at(file, places, columns).to_pylist()
        return [dict.fromkeys(WIDE) | row for row in rows]


def _read_columns(file: pq.ParquetFile, columns: list[str]) -> pa.Table:
    """Read some columns of all rows."""
    fields = [field for field in file.schema_arrow if field.name in columns]
    batches = read_batches(file, ROWS, [field.name for field in fields])  # they come in the order that is asked for
    return pa.Table.from_batches(list(batches), pa.schema(fields))


def _read_rows_at(file: pq.ParquetFile, places: Ints, columns: list[str]) -> pa.Table:
    """Read the rows at these indices, in order. Only the row groups that hold them are read."""
    sizes = np.array([file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)], dtype=np.int64)
    starts = np.cumsum(sizes) - sizes
    group_of = np.searchsorted(starts, places, side="right") - 1
    groups = np.unique(group_of)
    read_starts = np.zeros(len(sizes), dtype=np.int64)  # first row of each group within the table that is read
    read_starts[groups] = np.cumsum(sizes[groups]) - sizes[groups]
    table = file.read_row_groups(groups.tolist(), columns=columns)
    return table.take(pa.array(places - starts[group_of] + read_starts[group_of]))


def _make_digest(path: Path) -> Digest:
    with open_parquet(path, ROWS) as file:
        check_columns(file.schema_arrow)
        here = file.schema_arrow.names
        if any(not pa.types.is_string(file.schema_arrow.field(name).type) for name in ("id", "problem", "question", "text")):
            raise ValueError("it holds no rollouts")
        if set(NARROW) <= set(here):
            table = _read_columns(file, list(NARROW))
        else:
            table = _add_flag_columns(
                _read_columns(file, ["id", "problem", "targets", "correct", "invalid", "final_verdict", "step_verdicts"])
            )
    coded = table["problem"].combine_chunks().dictionary_encode()
    codes = coded.indices.to_numpy()
    judges = _to_bool_mask(table["verification"])

    def count(which: NDArray[np.bool_]) -> Ints:
        return np.bincount(codes[which], minlength=len(coded.dictionary))

    graded = table["correct"].is_valid().to_numpy()
    counts = {
        "rollouts": count(~judges),
        "graded": count(graded),
        "solved": count(_to_bool_mask(table["correct"])),
        "checks": count(judges),
        "fooled": count(_to_bool_mask(table["fooled"])),
        "invalid": count(table["invalid"].is_valid().to_numpy()),
        "contradiction": count(_to_bool_mask(table["contradiction"])),
    }
    return Digest(coded.dictionary, np.unique(codes, return_index=True)[1], counts)


def _to_bool_mask(column: pa.ChunkedArray) -> NDArray[np.bool_]:
    if pa.types.is_null(column.type):
        return np.zeros(len(column), dtype=bool)
    return np.asarray(pc.fill_null(column, False).to_numpy(), dtype=bool)


def _add_flag_columns(table: pa.Table) -> pa.Table:
    """Add the flag columns that older runs did not save, computed from the columns they did save."""
    rows = table.to_pylist()
    correct = {row["id"]: row["correct"] for row in rows}
    flags: dict[str, list[bool | None]] = {"verification": [], "fooled": [], "contradiction": []}
    for row in rows:
        judges, truth = _is_check(row), correct.get((row["targets"] or [None])[0])
        flags["verification"].append(judges)
        flags["fooled"].append(is_fooled(row["final_verdict"], truth) if judges else None)
        flags["contradiction"].append(is_contradiction(row["final_verdict"], row["step_verdicts"]) if judges else None)
    for name, values in flags.items():
        table = table.append_column(name, pa.array(values, pa.bool_()))
    return table


def _is_check(row: dict[str, Any]) -> bool:
    """Whether a row is a verification. Older runs did not save that: there, a row with a target and without a grade is one."""
    said = row.get("verification")
    return bool(row["targets"]) and row["correct"] is None if said is None else bool(said)


def _find_verifications(row: dict[str, Any], checks_by_target: dict[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Find the verifications of a rollout. A verification whose target was not saved is listed as a verification of itself."""
    return checks_by_target[row["id"]] or ([row] if _is_check(row) else [])


def _build_rollout(row: dict[str, Any], judges: list[dict[str, Any]], terse: bool) -> RolloutView:
    ends = _find_step_ends(row, terse)
    pieces, rest = split_at_ends(row["text"] or "", ends)
    credit, rest_credit = split_by_steps(row, replace_non_finite(row["advantages"]), len(pieces))
    places, rest_places = split_by_steps(row, _find_token_ends(row), len(pieces))
    truth = row["step_truth"] or []
    notes = [_build_notes(judge, number, row, len(pieces), terse) for number, judge in enumerate(judges)]
    begins = [0, *ends]
    steps = tuple(
        Step(
            piece,
            truth[k] if k < len(truth) else None,
            tuple(said[k] for said in notes if said),
            credit[k],
            _shift_ends(places[k], row["text"] or "", begins[k], piece),
        )
        for k, piece in enumerate(pieces)
    )
    return RolloutView(
        row["id"] or "",
        row["agent"] or "",
        _format_policy(row),
        row["answer"],
        row["correct"],
        row["invalid"] or "",
        row["finish"] or "",
        steps,
        rest,
        rest_credit,
        _shift_ends(rest_places, row["text"] or "", begins[-1] if pieces else 0, rest),
        tuple(_build_check(judge, row, terse) for judge in judges),
    )


def _build_notes(judge: dict[str, Any], number: int, solution: dict[str, Any], steps: int, terse: bool) -> list[Note]:
    """Build a note for each step that a verification judges: it may stop at its first wrong step. Empty if there are more
    verdicts than steps."""
    verdicts, scores = judge["step_verdicts"] or [], judge["step_scores"] or []
    count = len(verdicts)
    if count > steps:
        return []
    pieces, _ = split_at_ends(judge["text"] or "", _find_step_ends(judge, terse))
    if len(pieces) != count or judge["text"] == solution["text"]:  # a scorer writes nothing of its own
        pieces = [""] * count
    return [Note(number, pieces[k], verdicts[k], scores[k] if len(scores) == count else None) for k in range(count)]


def _build_check(row: dict[str, Any], solution: dict[str, Any], terse: bool) -> Check:
    text = row["text"] or ""
    return Check(
        row["id"] or "",
        row["agent"] or "",
        _format_policy(row),
        text,
        split_at_ends(text, _find_step_ends(row, terse))[1],
        row["final_verdict"],
        row["score"],
        row["invalid"] or "",
        bool(is_contradiction(row["final_verdict"], row["step_verdicts"])),
        bool(row["fooled"]) or bool(is_fooled(row["final_verdict"], solution["correct"])),
        tuple(replace_non_finite(row["advantages"])[row["trained_from"] or 0 :]),
    )


def _format_policy(row: dict[str, Any]) -> str:
    return "" if row["policy"] is None else f"{row['policy']} v{row['version']}"


def _find_step_ends(row: dict[str, Any], terse: bool) -> list[int]:
    """Character offset of each step's end. Older runs did not save it: their text is parsed again by the default roles."""
    if row["step_chars"] is not None:
        return list(row["step_chars"])
    if _is_check(row):
        return list((parse_terse if terse else parse_tagged)(row["text"] or "").ends)
    return list(StepSolver("terse" if terse else "tagged").parse(row["text"] or "").get(Solution).ends)


def split_at_ends(text: str, ends: Sequence[int]) -> tuple[list[str], str]:
    """Split a text at these ends into pieces and the rest; no pieces if the ends are not ascending or lie outside."""
    places = [0, *ends]
    if any(a > b for a, b in pairwise(places)) or places[-1] > len(text):
        return [], text
    return [text[a:b].strip("\n") for a, b in pairwise(places)], text[places[-1] :].strip("\n")


def replace_non_finite(values: Sequence[float | None] | None) -> list[float]:
    return [value if value is not None and math.isfinite(value) else 0.0 for value in values or ()]


def _find_token_ends(row: dict[str, Any]) -> list[int]:
    """Character offset of each token's end; empty unless it is known for every token that has an advantage."""
    ends, credit = row["chars"] or [], row["advantages"] or []
    return list(ends) if len(ends) == len(credit) and all(isinstance(end, int) for end in ends) else []


def _shift_ends(ends: tuple[int, ...], text: str, begin: int, piece: str) -> tuple[int, ...]:
    """Shift token ends from offsets in the whole text to offsets in `piece`, which starts at `begin` after any newlines."""
    lead = begin
    while text[lead : lead + 1] == "\n":
        lead += 1
    return tuple(min(max(0, end - lead), len(piece)) for end in ends)


def split_by_steps(row: dict[str, Any], values: list[T], steps: int) -> tuple[list[tuple[T, ...]], tuple[T, ...]]:
    """Split per-token values into one tuple per step and the rest after the last step.

    values: one per token of the row, aligned with its ids. Without usable step spans all values go into the rest.
    """
    ends = row["step_ends"] or []
    places = [row["trained_from"] or 0, *ends]
    if len(ends) != steps or any(a > b for a, b in pairwise(places)):
        return [()] * steps, tuple(values[places[0] :])
    return [tuple(values[a:b]) for a, b in pairwise(places)], tuple(values[places[-1] :])
