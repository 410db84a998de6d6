"""The traces of a run, read where they are asked for: lists of problems with filters, and the transcript of one problem.

Invariants: a list reads a few narrow columns, newest turn first, and stops when its page is full or its time is up; what
it learned of a turn (counts for each problem, not texts) is kept in a cache of bounded size; a transcript reads the row groups
that hold its problem and nothing else; a file that cannot be read is named and passed over.
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
from typing import Any, Literal, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from milonga.roles import StepSolver
from milonga.roles.verifier import parse_tagged, parse_terse
from milonga.run.traces import contradicts, fooled

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
    "id", "seat", "problem", "question", "about", "text", "advantages", "chars", "trained_from", "policy", "version",
    "step_ends", "step_chars", "finish", "invalid", "format", "answer", "verification", "final_verdict", "step_verdicts",
    "score", "step_scores", "contradiction", "fooled", "correct", "step_truth",
)  # fmt: skip
KEPT_GROUPS = 300_000
"""Problems whose counts are kept in memory, over all turns that were looked at."""
PAGE = 40
MOST_ROLLOUTS = 32
"""Traces of one kind that a transcript shows at most."""
Ints = NDArray[np.int64]
T = TypeVar("T")


@dataclass(frozen=True)
class Filters:
    """What a list is narrowed to."""

    turn: int | None = None
    flags: frozenset[Flag] = frozenset()
    text: str = ""
    """In the question or the name of the problem, in any case of letters."""


@dataclass(frozen=True)
class Cursor:
    """Where a list goes on: the turn, and how many of its problems were passed."""

    turn: int
    passed: int = 0

    def __str__(self) -> str:
        return f"{self.turn}.{self.passed}"


@dataclass(frozen=True)
class Group:
    """One problem in one turn: how its rollouts and their verifications fared."""

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
    """A page of a list."""

    groups: tuple[Group, ...]
    after: Cursor | None
    """Where the next page begins; None where there is none."""
    oldest: int | None
    """The last turn that was searched."""
    broken: tuple[str, ...]


@dataclass(frozen=True)
class Note:
    """What one verification says of one step."""

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
    """Where each of these tokens ends in the text; empty where that is not known."""

    @property
    def verdict(self) -> bool | None:
        """What most verifications say; None where none says anything, or as many say the one as the other."""
        said = [note.right for note in self.notes if note.right is not None]
        rights = sum(said)
        return None if 2 * rights == len(said) else 2 * rights > len(said)


@dataclass(frozen=True)
class Check:
    """A verification of a whole solution."""

    id: str
    seat: str
    policy: str
    text: str
    """All it wrote."""
    rest: str
    """What it wrote after the last step: the final verdict."""
    final: bool | None
    score: float | None
    invalid: str
    contradiction: bool
    fooled: bool
    advantages: tuple[float, ...]


@dataclass(frozen=True)
class Rollout:
    id: str
    seat: str
    policy: str
    answer: str | None
    correct: bool | None
    invalid: str
    finish: str
    steps: tuple[Step, ...]
    rest: str
    """What it wrote after its last step; all it wrote where it has none."""
    rest_advantages: tuple[float, ...]
    rest_ends: tuple[int, ...]
    checks: tuple[Check, ...]


@dataclass(frozen=True)
class Transcript:
    turn: int
    problem: str
    question: str
    rollouts: tuple[Rollout, ...]
    left_out: int
    """Rollouts beyond what is shown."""


@dataclass(frozen=True)
class Digest:
    """Of one turn: its problems in order of appearance, and what is counted for each."""

    problems: pa.StringArray
    rows: Ints
    """Where each is first in the file."""
    counts: dict[str, Ints]

    def chosen(self, flags: Iterable[Flag]) -> NDArray[np.bool_]:
        keep = np.ones(len(self.problems), dtype=bool)
        for flag in flags:
            if flag == "few":
                keep &= (self.counts["solved"] > 0) & (4 * self.counts["solved"] <= self.counts["graded"])
            else:
                keep &= self.counts[flag] > 0
        return keep


class Traces:
    """The traces folder of one run."""

    def __init__(self, folder: Path, terse: bool) -> None:
        self.folder, self.terse = folder, terse
        self.lock = threading.Lock()
        self.digests: OrderedDict[tuple[int, int, int], Digest] = OrderedDict()

    def turns(self) -> list[int]:
        """Turns whose traces were kept, newest first."""
        try:
            names = [path.name for path in self.folder.iterdir()]
        except OSError:
            return []
        found = (re.fullmatch(r"turn-(\d{1,12})\.parquet", name) for name in names)
        return sorted((int(match[1]) for match in found if match), reverse=True)

    def path(self, turn: int) -> Path:
        return self.folder / f"turn-{turn:06d}.parquet"

    def page(self, filters: Filters, start: Cursor | None = None, limit: int = PAGE, seconds: float = 1.0) -> Listing:
        """A page of problems, newest turn first. It looks into one turn at least, however little time there is."""
        until = time.monotonic() + seconds
        turns = [t for t in self.turns() if filters.turn in (None, t) and (start is None or t <= start.turn)]
        found: list[Group] = []
        broken: list[str] = []
        for place, turn in enumerate(turns):
            passed = start.passed if start is not None and start.turn == turn else 0
            try:
                hits = self._hits(turn, filters)
                taken = hits[hits >= passed][: limit - len(found)]
                found += self._groups(turn, taken)
            except Exception as error:  # whatever a foreign file may hold
                broken.append(f"{self.path(turn).name} cannot be read: {str(error).splitlines()[0][:200]}")
                continue
            if len(found) == limit:
                more = bool(len(hits) and hits[-1] > taken[-1])
                older = Cursor(turns[place + 1]) if place + 1 < len(turns) else None
                return Listing(tuple(found), Cursor(turn, int(taken[-1]) + 1) if more else older, turn, tuple(broken))
            if time.monotonic() > until and place + 1 < len(turns):
                return Listing(tuple(found), Cursor(turns[place + 1]), turn, tuple(broken))
        return Listing(tuple(found), None, turns[-1] if turns else None, tuple(broken))

    def _hits(self, turn: int, filters: Filters) -> Ints:
        """The places of the problems of a turn that the filters let through."""
        digest = self._digest(turn)
        keep = digest.chosen(filters.flags)
        if filters.text and keep.any():
            keep &= self._named(turn, digest, filters.text)
        return np.flatnonzero(keep)

    def _named(self, turn: int, digest: Digest, text: str) -> NDArray[np.bool_]:
        table = pq.read_table(self.path(turn), columns=["problem", "question"], partitioning=None)
        found = pc.match_substring(table["question"], text, ignore_case=True)
        problems = pc.unique(table["problem"].filter(found))
        asked = pc.or_(
            pc.is_in(digest.problems, value_set=problems), pc.match_substring(digest.problems, text, ignore_case=True)
        )
        return np.asarray(pc.fill_null(asked, False).to_numpy(zero_copy_only=False), dtype=bool)

    def _groups(self, turn: int, places: Ints) -> list[Group]:
        if not len(places):
            return []
        digest = self._digest(turn)
        with pq.ParquetFile(self.path(turn)) as file:
            questions = rows_at(file, digest.rows[places], ["problem", "question"]).to_pylist()
        return [
            Group(turn, row["problem"], row["question"] or "", **{count: int(digest.counts[count][at]) for count in COUNTS})
            for at, row in zip(places, questions, strict=True)
        ]

    def _digest(self, turn: int) -> Digest:
        stat = self.path(turn).stat()
        key = (turn, stat.st_size, stat.st_mtime_ns)
        with self.lock:
            if key in self.digests:
                self.digests.move_to_end(key)
                return self.digests[key]
        made = make_digest(self.path(turn))
        with self.lock:
            self.digests[key] = made
            held = sum(len(digest.problems) for digest in self.digests.values())
            while held > KEPT_GROUPS and len(self.digests) > 1:
                held -= len(self.digests.popitem(last=False)[1].problems)
        return made

    def transcript(self, turn: int, problem: str) -> Transcript | None:
        """All about one problem in one turn; None where it is not there."""
        rows = self._rows(turn, problem)
        if not rows:
            return None
        about: dict[str, list[dict[str, Any]]] = {row["id"]: [] for row in rows}
        others = []
        for row in rows:
            subjects = [subject for subject in row["about"] or () if subject in about] if is_check(row) else []
            for subject in subjects:
                about[subject].append(row)
            if not subjects:  # a solution, or a verification of one that was not kept
                others.append(row)
        shown = others[:MOST_ROLLOUTS]
        rollouts = tuple(read_rollout(row, judges_of(row, about)[:MOST_ROLLOUTS], self.terse) for row in shown)
        return Transcript(turn, problem, rows[0]["question"] or "", rollouts, len(others) - len(shown))

    def following(self, filters: Filters, turn: int, problem: str) -> Group | None:
        """The problem that comes next in a list; None at its end, or where this one is not on it."""
        if turn not in self.turns():
            return None
        place = self._digest(turn).problems.index(problem).as_py()
        found = self.page(filters, Cursor(turn, place + 1), limit=1).groups if place >= 0 else ()
        return found[0] if found else None

    def _rows(self, turn: int, problem: str) -> list[dict[str, Any]]:
        if turn not in self.turns():
            return []
        with pq.ParquetFile(self.path(turn)) as file:
            names = file.read(columns=["problem"])["problem"]
            places = np.flatnonzero(pc.fill_null(pc.equal(names, problem), False).to_numpy())
            if not len(places):
                return []
            columns = [name for name in WIDE if name in file.schema_arrow.names]
            rows: list[dict[str, Any]] = rows_at(file, places, columns).to_pylist()
        return [dict.fromkeys(WIDE) | row for row in rows]


def rows_at(file: pq.ParquetFile, places: Ints, columns: list[str]) -> pa.Table:
    """The rows at these places, in order, from the row groups that hold them and no others."""
    sizes = np.array([file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)], dtype=np.int64)
    starts = np.cumsum(sizes) - sizes
    group_of = np.searchsorted(starts, places, side="right") - 1
    groups = np.unique(group_of)
    read_starts = np.zeros(len(sizes), dtype=np.int64)  # where each group begins among those that are read
    read_starts[groups] = np.cumsum(sizes[groups]) - sizes[groups]
    table = file.read_row_groups(groups.tolist(), columns=columns)
    return table.take(pa.array(places - starts[group_of] + read_starts[group_of]))


def make_digest(path: Path) -> Digest:
    with pq.ParquetFile(path) as file:
        here = file.schema_arrow.names
        if any(not pa.types.is_string(file.schema_arrow.field(name).type) for name in ("id", "problem", "question", "text")):
            raise ValueError("it holds no traces")
        if set(NARROW) <= set(here):
            table = file.read(columns=list(NARROW))
        else:
            table = derived(
                file.read(columns=["id", "problem", "about", "correct", "invalid", "final_verdict", "step_verdicts"])
            )
    coded = table["problem"].combine_chunks().dictionary_encode()
    codes = coded.indices.to_numpy()
    judges = truths(table["verification"])

    def count(which: NDArray[np.bool_]) -> Ints:
        return np.bincount(codes[which], minlength=len(coded.dictionary))

    graded = table["correct"].is_valid().to_numpy()
    counts = {
        "rollouts": count(~judges),
        "graded": count(graded),
        "solved": count(truths(table["correct"])),
        "checks": count(judges),
        "fooled": count(truths(table["fooled"])),
        "invalid": count(table["invalid"].is_valid().to_numpy()),
        "contradiction": count(truths(table["contradiction"])),
    }
    return Digest(coded.dictionary, np.unique(codes, return_index=True)[1], counts)


def truths(column: pa.ChunkedArray) -> NDArray[np.bool_]:
    if pa.types.is_null(column.type):
        return np.zeros(len(column), dtype=bool)
    return np.asarray(pc.fill_null(column, False).to_numpy(), dtype=bool)


def derived(table: pa.Table) -> pa.Table:
    """The columns that runs of an earlier time did not keep, from those they did."""
    rows = table.to_pylist()
    correct = {row["id"]: row["correct"] for row in rows}
    flags: dict[str, list[bool | None]] = {"verification": [], "fooled": [], "contradiction": []}
    for row in rows:
        judges, truth = is_check(row), correct.get((row["about"] or [None])[0])
        flags["verification"].append(judges)
        flags["fooled"].append(fooled(row["final_verdict"], truth) if judges else None)
        flags["contradiction"].append(contradicts(row["final_verdict"], row["step_verdicts"]) if judges else None)
    for name, values in flags.items():
        table = table.append_column(name, pa.array(values, pa.bool_()))
    return table


def is_check(row: dict[str, Any]) -> bool:
    """Whether a trace judges others; of runs that did not keep it: who is about others and is graded for nothing."""
    said = row.get("verification")
    return bool(row["about"]) and row["correct"] is None if said is None else bool(said)


def judges_of(row: dict[str, Any], about: dict[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """The verifications of a trace; one whose solution was not kept says of its own steps what it said of the solution's."""
    return about[row["id"]] or ([row] if is_check(row) else [])


def read_rollout(row: dict[str, Any], judges: list[dict[str, Any]], terse: bool) -> Rollout:
    ends = step_chars(row, terse)
    pieces, rest = cut(row["text"] or "", ends)
    credit, rest_credit = cut_tokens(row, finite(row["advantages"]), len(pieces))
    places, rest_places = cut_tokens(row, token_ends(row), len(pieces))
    truth = row["step_truth"] or []
    notes = [read_notes(judge, number, row, len(pieces), terse) for number, judge in enumerate(judges)]
    begins = [0, *ends]
    steps = tuple(
        Step(
            piece,
            truth[k] if k < len(truth) else None,
            tuple(said[k] for said in notes if said),
            credit[k],
            within(places[k], row["text"] or "", begins[k], piece),
        )
        for k, piece in enumerate(pieces)
    )
    return Rollout(
        row["id"] or "",
        row["seat"] or "",
        policy_of(row),
        row["answer"],
        row["correct"],
        row["invalid"] or "",
        row["finish"] or "",
        steps,
        rest,
        rest_credit,
        within(rest_places, row["text"] or "", begins[-1] if pieces else 0, rest),
        tuple(read_check(judge, row, terse) for judge in judges),
    )


def read_notes(judge: dict[str, Any], number: int, solution: dict[str, Any], steps: int, terse: bool) -> list[Note]:
    """What a verification says of each step; nothing unless there is one verdict for each."""
    verdicts, scores = judge["step_verdicts"] or [], judge["step_scores"] or []
    if len(verdicts) != steps:
        return []
    pieces, _ = cut(judge["text"] or "", step_chars(judge, terse))
    if len(pieces) != steps or judge["text"] == solution["text"]:  # a scorer writes nothing of its own
        pieces = [""] * steps
    return [Note(number, pieces[k], verdicts[k], scores[k] if len(scores) == steps else None) for k in range(steps)]


def read_check(row: dict[str, Any], solution: dict[str, Any], terse: bool) -> Check:
    text = row["text"] or ""
    return Check(
        row["id"] or "",
        row["seat"] or "",
        policy_of(row),
        text,
        cut(text, step_chars(row, terse))[1],
        row["final_verdict"],
        row["score"],
        row["invalid"] or "",
        bool(contradicts(row["final_verdict"], row["step_verdicts"])),
        bool(row["fooled"]) or bool(fooled(row["final_verdict"], solution["correct"])),
        tuple(finite(row["advantages"])[row["trained_from"] or 0 :]),
    )


def policy_of(row: dict[str, Any]) -> str:
    return "" if row["policy"] is None else f"{row['policy']} v{row['version']}"


def step_chars(row: dict[str, Any], terse: bool) -> list[int]:
    """Where each step ends in the text. Runs of an earlier time did not keep it: their text is read by the usual roles."""
    if row["step_chars"] is not None:
        return list(row["step_chars"])
    if is_check(row):
        return list((parse_terse if terse else parse_tagged)(row["text"] or "").ends)
    return list(StepSolver("terse" if terse else "tagged").read(row["text"] or "").value.ends)


def cut(text: str, ends: Sequence[int]) -> tuple[list[str], str]:
    """The text up to each end, and the rest; uncut where the ends make no sense."""
    places = [0, *ends]
    if any(a > b for a, b in pairwise(places)) or places[-1] > len(text):
        return [], text
    return [text[a:b].strip("\n") for a, b in pairwise(places)], text[places[-1] :].strip("\n")


def finite(values: Sequence[float | None] | None) -> list[float]:
    return [value if value is not None and math.isfinite(value) else 0.0 for value in values or ()]


def token_ends(row: dict[str, Any]) -> list[int]:
    """Where each token ends in the text; nothing unless it is known of all that have an advantage."""
    ends, credit = row["chars"] or [], row["advantages"] or []
    return list(ends) if len(ends) == len(credit) and all(isinstance(end, int) for end in ends) else []


def within(ends: tuple[int, ...], text: str, begin: int, piece: str) -> tuple[int, ...]:
    """Ends in a text as ends in a piece of it that begins there, less the newlines before it."""
    lead = begin
    while text[lead : lead + 1] == "\n":
        lead += 1
    return tuple(min(max(0, end - lead), len(piece)) for end in ends)


def cut_tokens(row: dict[str, Any], values: list[T], steps: int) -> tuple[list[tuple[T, ...]], tuple[T, ...]]:
    """What belongs to each step's tokens, and to those after the last step; all of it there where spans are missing."""
    ends = row["step_ends"] or []
    places = [row["trained_from"] or 0, *ends]
    if len(ends) != steps or any(a > b for a, b in pairwise(places)):
        return [()] * steps, tuple(values[places[0] :])
    return [tuple(values[a:b]) for a, b in pairwise(places)], tuple(values[places[-1] :])
