"""Save and load rollouts as parquet: one row per rollout, with ids, log-probabilities, step spans, advantages, parsed verdicts,
grades, and its targets.

Invariant: every file has all columns of `schema` with the same types, whatever its rollouts hold, so that many files read as
one table. Row groups are small: a reader that wants a few rollouts reads a few groups.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from milonga.errors import RunFolderError
from milonga.reading import ROWS, UNREADABLE, explain_unreadable, open_parquet, read_batches
from milonga.runfolder.files import translate_disk_errors
from milonga.types import Floats, Rollout, Segment, Verification

if TYPE_CHECKING:
    import pyarrow as pa

GROUP = 256
"""Rows per parquet row group."""
NEEDED = ("id", "agent", "problem", "question", "text")
"""Columns that every row of every version has."""


@cache
def make_schema() -> pa.Schema:
    import pyarrow as pa

    text, flag, number = pa.string(), pa.bool_(), pa.float32()
    return pa.schema(
        {
            "id": text,
            "agent": text,
            "problem": text,
            "question": text,
            "targets": pa.list_(text),
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
            "reward": pa.float64(),
            "step_truth": pa.list_(flag),
        }
    )


def write_rollouts(path: Path, rollouts: Iterable[Rollout], advantages: Mapping[str, Floats] | None = None) -> None:
    """Write rollouts to a parquet file.

    advantages: by rollout id, one float array per rollout, aligned with its ids; rollouts without any are written with null.
    """
    import pyarrow as pa

    credit, rows = advantages or {}, _add_earlier_turns(rollouts)
    shaped = collect_versions(rows)
    made = [to_row(rollout, credit.get(rollout.id)) | {"versions": shaped[rollout.id]} for rollout in rows]
    write_table(path, pa.Table.from_pylist(made, schema=make_schema()))


def write_table(path: Path, table: pa.Table) -> None:
    """Write a table to a draft and rename it, so that a reader never sees half a file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    with translate_disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_name(path.name + ".draft")
        draft.unlink(missing_ok=True)
        try:
            # Opened here: given a path, pyarrow keeps what it could not write open for as long as the error is known anywhere.
            with pa.OSFile(str(draft), "wb") as sink:
                pq.write_table(table, sink, row_group_size=GROUP)
        except BaseException:
            draft.unlink(missing_ok=True)
            raise
        draft.replace(path)


def _add_earlier_turns(rollouts: Iterable[Rollout]) -> list[Rollout]:
    """Add the earlier turns of conversations, each once and before the turns that follow. Their texts and grades are in no
    other row."""
    rollouts = list(rollouts)
    written = {rollout.id for rollout in rollouts}
    out: list[Rollout] = []
    for rollout in rollouts:
        turns = [rollout]
        while (before := turns[0].earlier_conversation) is not None and before.id not in written:
            turns.insert(0, before)
            written.add(before.id)
        out += turns
    return out


def collect_versions(rollouts: Sequence[Rollout]) -> dict[str, list[tuple[str, int]]]:
    """Collect, by rollout id, the version of every policy that shaped a rollout: its author, its targets' and its judges'."""
    found: dict[str, dict[str, int]] = {}
    for rollout in rollouts:
        parts = [s for each in (rollout, *rollout.targets) for s in each.segments]
        mine = {s.policy: s.version for s in parts if s.policy is not None and s.version is not None}
        found[rollout.id] = mine | found.get(rollout.id, {})
        for target in rollout.targets:
            found[target.id] = mine | found.get(target.id, {})
    return {id: sorted(versions.items()) for id, versions in found.items()}


def read_rollouts(path: Path, columns: Sequence[str] | None = None, most: int | None = None) -> list[dict[str, Any]]:
    """Read the rows of a file, or some of their columns, null where the file lacks one. If there are more than `most` rows,
    only the last whole problems."""
    import pyarrow as pa

    wanted = tuple(columns or make_schema().names)
    try:
        with open_parquet(path, ROWS) as file:
            check_columns(file.schema_arrow, [name for name in NEEDED if name in wanted])
            fields = [field for field in file.schema_arrow if field.name in wanted]
            batches = read_batches(file, ROWS, [field.name for field in fields])
            table = pa.Table.from_batches(list(batches), pa.schema(fields))
            rows = (table if most is None else _select_last_problems(table, most)).to_pylist()
    except UNREADABLE as error:
        raise RunFolderError(f"'{path}' cannot be read: {explain_unreadable(error)}") from None
    for name in NEEDED:
        if name in wanted and any(row[name] is None for row in rows):
            raise RunFolderError(f"'{path}' cannot be read: a row has no {name}")
    return [dict.fromkeys(wanted) | row for row in rows]


def check_columns(found: pa.Schema, needed: Iterable[str] = NEEDED) -> None:
    """Raise a `ValueError` where a file of somebody else has not our columns: the needed ones, and no other types in any."""
    ours = make_schema()
    if missing := [name for name in needed if name not in found.names]:
        raise ValueError(f"it holds no rollouts: there is no column '{missing[0]}'")
    for field in found:
        if found.names.count(field.name) > 1:
            raise ValueError(f"it holds no rollouts: the column '{field.name}' occurs twice")
        if field.name in ours.names and not _is_like(field.type, ours.field(field.name).type):
            raise ValueError(f"it holds no rollouts: the column '{field.name}' is of {field.type}")


def _is_like(found: pa.DataType, ours: pa.DataType) -> bool:
    """Whether values of a type can be read as those of ours: of whatever width, or none at all."""
    from pyarrow import types

    if types.is_null(found):
        return True
    if types.is_map(ours):
        return (
            bool(types.is_map(found)) and _is_like(found.key_type, ours.key_type) and _is_like(found.item_type, ours.item_type)
        )
    if types.is_list(ours):
        return bool(types.is_list(found)) and _is_like(found.value_type, ours.value_type)
    kinds = (types.is_string, types.is_boolean, types.is_integer, types.is_floating)
    return any(fits(found) and fits(ours) for fits in kinds)


def _select_last_problems(table: Any, most: int) -> Any:
    """Select the last problems of a table so that at most `most` rows are left, but at least one problem."""
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


def to_row(rollout: Rollout, advantages: Floats | None = None) -> dict[str, Any]:
    value = rollout.parsed.value
    said = value if isinstance(value, Verification) else None
    if advantages is not None and len(advantages) != len(rollout.ids):
        advantages = None  # a train batch may hold a slice of a rollout under the same id
    made = _find_author_segment(rollout)
    return {
        "id": rollout.id,
        "agent": rollout.agent,
        "problem": rollout.problem.id,
        "question": rollout.problem.text,
        "targets": [target.id for target in rollout.targets],
        "text": rollout.text,
        "ids": rollout.ids.tolist(),
        "logprobs": rollout.logprobs.astype("float32").tolist() if rollout.length else None,
        "advantages": None if advantages is None else advantages.astype("float32").tolist(),
        "chars": None if rollout.chars is None else rollout.chars.tolist(),
        "trained_from": min((s.start for s in rollout.segments if s.trained), default=len(rollout.ids)),
        "turns": [list(span) for span in rollout.turn_spans],
        "policy": None if made is None else made.policy,
        "version": None if made is None else made.version,
        "step_ends": [end for _, end in rollout.steps],
        "step_chars": list(getattr(value, "ends", ())),
        "finish": rollout.finish,
        "invalid": rollout.parsed.invalid,
        "format": float(rollout.parsed.format),
        "answer": getattr(value, "answer", None),
        "verification": said is not None,
        "final_verdict": getattr(value, "final", None),
        "step_verdicts": _list_or_none(said.steps) if said else None,
        "score": said.score if said else None,
        "step_scores": _list_or_none(said.step_scores) if said else None,
        "contradiction": is_contradiction(said.final, said.steps) if said else None,
        "fooled": is_fooled(said.final, _get_target_correct(rollout.targets)) if said else None,
        "correct": None if rollout.grade is None else rollout.grade.correct,
        "reward": None if math.isnan(rollout.reward) else rollout.reward,
        "step_truth": None if rollout.grade is None else _list_or_none(rollout.grade.steps),
    }


def _find_author_segment(rollout: Rollout) -> Segment | None:
    """Find the segment that a policy wrote: the first trained one, or the last one if none is trained."""
    written = [segment for segment in rollout.segments if segment.policy is not None]
    return next((segment for segment in written if segment.trained), written[-1] if written else None)


def _list_or_none(values: Iterable[Any] | None) -> list[Any] | None:
    return None if values is None else list(values)


def is_contradiction(final: bool | None, steps: Iterable[bool] | None) -> bool | None:
    """Whether a final verdict contradicts the step verdicts; None if either is missing."""
    return None if final is None or steps is None else final != all(steps)


def _get_target_correct(target: tuple[Rollout, ...]) -> bool | None:
    """Whether the single target is correct; None if there are several targets or it has no grade."""
    return target[0].grade.correct if len(target) == 1 and target[0].grade is not None else None


def is_fooled(final: bool | None, correct: bool | None) -> bool | None:
    """Whether a verdict calls a wrong solution right; None if the verdict or the truth is unknown."""
    return None if final is None or correct is None else final and not correct
