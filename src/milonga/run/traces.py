"""Traces as parquet: one row a trace, with ids, log-probabilities, step spans, readings, and whom it is about."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from milonga.errors import RunFolderError
from milonga.run.files import disk_errors
from milonga.types import Trace, Verification


def write_traces(path: Path, traces: Iterable[Trace]) -> None:
    """Written beside and renamed: a reader never sees half a file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_name(path.name + ".draft")
        pq.write_table(pa.Table.from_pylist([row_of(trace) for trace in traces]), draft)
        draft.replace(path)


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


def row_of(trace: Trace) -> dict[str, Any]:
    value = trace.reading.value
    verdicts = value.steps if isinstance(value, Verification) else None
    return {
        "id": trace.id,
        "seat": trace.seat,
        "problem": trace.problem.id,
        "question": trace.problem.text,
        "about": [about.id for about in trace.about],
        "text": trace.text,
        "ids": trace.ids.tolist(),
        "logprobs": trace.logprobs.astype("float32").tolist(),
        "trained_from": min((s.start for s in trace.segments if s.trained), default=len(trace.ids)),
        "policy": next((s.policy for s in trace.segments if s.trained), None),
        "version": next((s.version for s in trace.segments if s.trained), None),
        "step_ends": [end for _, end in trace.steps],
        "finish": trace.finish,
        "invalid": trace.reading.invalid,
        "format": float(trace.reading.format),
        "answer": getattr(value, "answer", None),
        "final_verdict": getattr(value, "final", None),
        "step_verdicts": list(verdicts) if verdicts is not None else None,
        "correct": None if trace.grade is None else trace.grade.correct,
        "step_truth": None if trace.grade is None or trace.grade.steps is None else list(trace.grade.steps),
    }
