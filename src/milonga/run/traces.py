"""Traces as parquet: one row a trace, with ids, log-probabilities, step spans, readings, credit, and whom it is about.

Invariant: every file has all columns of `schema` with the same types, whatever its traces hold, so that many files read as
one table. Rows lie in small groups: a reader that wants a few traces reads a few groups.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from milonga.errors import RunFolderError
from milonga.run.files import disk_errors
from milonga.types import Floats, Segment, Trace, Verification

if TYPE_CHECKING:
    import pyarrow as pa

GROUP = 256
"""Rows that are read together."""


@cache
def schema() -> pa.Schema:
    import pyarrow as pa

    text, flag, number = pa.string(), pa.bool_(), pa.float32()
    return pa.schema(
        {
            "id": text,
            "seat": text,
            "problem": text,
            "question": text,
            "about": pa.list_(text),
            "text": text,
            "ids": pa.list_(pa.int32()),
            "logprobs": pa.list_(number),
            "advantages": pa.list_(number),
            "chars": pa.list_(pa.int32()),
            "trained_from": pa.int32(),
            "turns": pa.list_(pa.list_(pa.int32())),
            "policy": text,
            "version": pa.int32(),
            "versions": pa.map_(text, pa.int32()),
            "step_ends": pa.list_(pa.int32()),
            "step_chars": pa.list_(pa.int32()),
            "finish": text,
            "invalid": text,
            "format": pa.float64(),
            "answer": text,
            "verification": flag,
            "final_verdict": flag,
            "step_verdicts": pa.list_(flag),
            "score": number,
            "step_scores": pa.list_(number),
            "contradiction": flag,
            "fooled": flag,
            "correct": flag,
            "step_truth": pa.list_(flag),
        }
    )


def write_traces(path: Path, traces: Iterable[Trace], advantages: Mapping[str, Floats] | None = None) -> None:
    """`advantages` are what was learned from, by the trace's id."""
    import pyarrow as pa

    credit, rows = advantages or {}, with_earlier(traces)
    shaped = versions_of(rows)
    made = [row_of(trace, credit.get(trace.id)) | {"versions": shaped[trace.id]} for trace in rows]
    write_table(path, pa.Table.from_pylist(made, schema=schema()))


def write_table(path: Path, table: pa.Table) -> None:
    """Written beside and renamed: a reader never sees half a file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_name(path.name + ".draft")
        try:
            # Opened here: given a path, pyarrow keeps what it could not write open for as long as the error is known anywhere.
            with pa.OSFile(str(draft), "wb") as sink:
                pq.write_table(table, sink, row_group_size=GROUP)
        except BaseException:
            draft.unlink(missing_ok=True)
            raise
        draft.replace(path)


def with_earlier(traces: Iterable[Trace]) -> list[Trace]:
    """With the earlier turns of conversations, each once and before those that follow: their texts and grades are in no other
    row."""
    traces = list(traces)
    written = {trace.id for trace in traces}
    out: list[Trace] = []
    for trace in traces:
        turns = [trace]
        while (before := turns[0].earlier) is not None and before.id not in written:
            turns.insert(0, before)
            written.add(before.id)
        out += turns
    return out


def versions_of(traces: Sequence[Trace]) -> dict[str, list[tuple[str, int]]]:
    """By trace, the version of every policy that shaped it: of who wrote it, of what it is about, and of who judged it."""
    found: dict[str, dict[str, int]] = {}
    for trace in traces:
        parts = [s for each in (trace, *trace.about) for s in each.segments]
        mine = {s.policy: s.version for s in parts if s.policy is not None and s.version is not None}
        found[trace.id] = mine | found.get(trace.id, {})
        for subject in trace.about:
            found[subject.id] = mine | found.get(subject.id, {})
    return {id: sorted(versions.items()) for id, versions in found.items()}


def read_traces(path: Path, columns: Sequence[str] | None = None, most: int | None = None) -> list[dict[str, Any]]:
    """The rows of a dump, or these columns of them. Of more than `most` rows those of the last problems, whole problems."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(path, columns=None if columns is None else list(columns))
    except (pa.ArrowException, OSError) as error:
        raise RunFolderError(f"'{path}' cannot be read: {' '.join(str(error).split())}") from None
    rows: list[dict[str, Any]] = (table if most is None else last_problems(table, most)).to_pylist()
    return rows


def last_problems(table: Any, most: int) -> Any:
    """So many of a table's last problems that it has at most `most` rows; one problem at least."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if table.num_rows <= most:
        return table
    counts = {one["values"]: one["counts"] for one in pc.value_counts(table["problem"]).to_pylist()}
    kept: list[str] = []
    for problem in reversed(counts):
        if kept and sum(counts[one] for one in kept) + counts[problem] > most:
            break
        kept.append(problem)
    return table.filter(pc.is_in(table["problem"], value_set=pa.array(kept)))


def row_of(trace: Trace, advantages: Floats | None = None) -> dict[str, Any]:
    value = trace.reading.value
    said = value if isinstance(value, Verification) else None
    if advantages is not None and len(advantages) != len(trace.ids):
        advantages = None  # a lesson may be about a piece of a trace, under its name
    made = maker(trace)
    return {
        "id": trace.id,
        "seat": trace.seat,
        "problem": trace.problem.id,
        "question": trace.problem.text,
        "about": [about.id for about in trace.about],
        "text": trace.text,
        "ids": trace.ids.tolist(),
        "logprobs": trace.logprobs.astype("float32").tolist() if trace.length else None,
        "advantages": None if advantages is None else advantages.astype("float32").tolist(),
        "chars": None if trace.chars is None else trace.chars.tolist(),
        "trained_from": min((s.start for s in trace.segments if s.trained), default=len(trace.ids)),
        "turns": [list(span) for span in trace.turns],
        "policy": None if made is None else made.policy,
        "version": None if made is None else made.version,
        "step_ends": [end for _, end in trace.steps],
        "step_chars": list(getattr(value, "ends", ())),
        "finish": trace.finish,
        "invalid": trace.reading.invalid,
        "format": float(trace.reading.format),
        "answer": getattr(value, "answer", None),
        "verification": said is not None,
        "final_verdict": getattr(value, "final", None),
        "step_verdicts": listed(said.steps) if said else None,
        "score": said.score if said else None,
        "step_scores": listed(said.step_scores) if said else None,
        "contradiction": contradicts(said.final, said.steps) if said else None,
        "fooled": fooled(said.final, known(trace.about)) if said else None,
        "correct": None if trace.grade is None else trace.grade.correct,
        "step_truth": None if trace.grade is None else listed(trace.grade.steps),
    }


def maker(trace: Trace) -> Segment | None:
    """The part that a policy wrote: what it learns from, or the last where it learns from none."""
    written = [segment for segment in trace.segments if segment.policy is not None]
    return next((segment for segment in written if segment.trained), written[-1] if written else None)


def listed(values: Iterable[Any] | None) -> list[Any] | None:
    return None if values is None else list(values)


def contradicts(final: bool | None, steps: Iterable[bool] | None) -> bool | None:
    """Whether a final verdict does not follow from the step verdicts; None where one of them is missing."""
    return None if final is None or steps is None else final != all(steps)


def known(about: tuple[Trace, ...]) -> bool | None:
    """Whether the one solution that is judged is right."""
    return about[0].grade.correct if len(about) == 1 and about[0].grade is not None else None


def fooled(final: bool | None, correct: bool | None) -> bool | None:
    """Whether a judge called a wrong solution right; None where either is unknown."""
    return None if final is None or correct is None else final and not correct
