"""The bodies of `milonga solve` and `milonga verify`: read a file, write JSON lines, print a summary on stderr.

Invariant: what is written on stdout is either JSON lines, one for each item, or one object that holds them all.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any, TypeVar

from milonga.errors import ConfigError, DataError, UserError
from milonga.evals.metrics import mean, process_f1
from milonga.pair import Pair, check_agents, load_finished_run
from milonga.runfolder.console import Ticker, print_to_stderr
from milonga.runfolder.files import to_json, translate_disk_errors
from milonga.runfolder.folder import read_config
from milonga.tasks.foreign import make_foreign_problem
from milonga.types import Problem, Rollout
from milonga.using.answers import RANKS, Answer, Cuts, Rank, answer_problems, answer_to_json, verdict_to_json
from milonga.using.items import Given, ProblemItem, SolutionItem, find_problem_fields, read_items

AT_ONCE = 256
"""Batch size; the rows of a batch are written before the next batch begins."""
T = TypeVar("T")


def parse_rank(name: str | None) -> Rank | None:
    """Parse a rank; without a name it is chosen by what was trained."""
    if name is None:
        return None
    found = next((rank for rank in RANKS if rank == name), None)
    if found is None:
        raise ConfigError(f"unknown --rank '{name}': use {', '.join(RANKS)}")
    return found


def _open_pair(folder: str | Path, rank: Rank | None, **changes: Any) -> tuple[Pair, Rank]:
    """Open the pair that a rank needs: a vote needs no verifier, so none is loaded. Without a rank it is the verifier's, where
    there is one, else a vote."""
    if rank != "vote":
        try:
            return Pair.open(folder, ["generator", "verifier"], **changes), rank or "verifier"
        except ConfigError as error:
            if rank is not None or "has no verifier" not in str(error):
                hint = "; --rank vote needs none" if "has no verifier" in str(error) else ""
                raise ConfigError(f"{error}{hint}") from None
    return Pair.open(folder, ["generator"], **changes), "vote"


def solve_file(
    folder: str | Path,
    file: Path,
    *,
    best_of: int,
    rank: Rank | None,
    checks: int,
    out: Path | None,
    keep: bool = False,
    question: str | None = None,
    answer: str | None = None,
    **changes: Any,
) -> dict[str, Any]:
    """Answer all problems of a file and write the rows; return the summary. With `keep`, rows that no file is for are
    not written but returned with it."""
    task = read_config(Path(folder)).task if (Path(folder) / "config.toml").exists() else {}
    given = find_problem_fields(task, question, answer).read(file)
    rights: list[bool] = []
    left_out, cuts = 0, Cuts()
    opened, by = _open_pair(folder, rank, **changes)
    with opened as pair, _open_writer(out, keep) as target:
        pair.engine.watch = Ticker(print_to_stderr)
        limit = pair.run_context.get_max_tokens("generator")
        for some in _iterate_batches(given):
            found = answer_problems(pair, [make_problem(one) for one in some], best_of, by, checks)
            for one, chosen in zip(some, found, strict=True):
                row = _make_id_field(one) | answer_to_json(chosen)
                if one.item.answer is not None:
                    row |= {"expected": one.item.answer, "correct": _is_correct(chosen)}
                    rights += [] if row["correct"] is None else [row["correct"]]
                left_out += chosen.best is None
                cuts = cuts.add([candidate.solution for candidate in chosen.candidates])
                target.write(row)
            target.flush()
            _print_progress(some[-1].number, len(given), "problems")
    summary = target.kept | {"problems": len(given), "left_out": left_out, "rank": by, "best_of": best_of, "checks": checks}
    return summary | {"graded": len(rights), "accuracy": mean(rights), "max_tokens": limit} | asdict(cuts)


def _is_correct(answer: Answer) -> bool | None:
    """Whether an answer is correct; None if the grader could not tell. No answer counts as wrong."""
    grade = None if answer.best is None else answer.best.solution.grade
    return False if grade is None else grade.correct


def verify_file(
    folder: str | Path, file: Path, *, checks: int, out: Path | None, keep: bool = False, **changes: Any
) -> dict[str, Any]:
    """Verify all solutions of a file and write the rows; return the summary, with ProcessBench F1 if items have labels. With
    `keep`, rows that no file is for are not written but returned with it."""
    given = _read_solutions(folder, file, changes.get("trust", ()))
    predictions: list[int | None] = []
    readable = 0
    with Pair.open(folder, ["verifier"], **changes) as pair, _open_writer(out, keep) as target:
        pair.engine.watch = Ticker(print_to_stderr)
        for some in _iterate_batches(given):
            for one, verdict in zip(some, pair.verify([_make_solution(pair, g) for g in some], checks), strict=True):
                row = one.record | verdict_to_json(verdict)
                if one.item.label is not None:
                    row["match"] = verdict.first_error == one.item.label
                predictions.append(verdict.first_error)
                readable += verdict.readable > 0
                target.write(row)
            target.flush()
            _print_progress(some[-1].number, len(given), "solutions")
    labels = [one.item.label for one in given]
    labelled = [(p, label) for p, label in zip(predictions, labels, strict=True) if label is not None]
    summary = target.kept | {"solutions": len(given), "readable": readable, "checks": checks, "labelled": len(labelled)}
    return summary | process_f1([p for p, _ in labelled], [label for _, label in labelled])


def _read_solutions(folder: str | Path, file: Path, trust: Collection[str]) -> list[Given[SolutionItem]]:
    """Read the solutions of a file. Whatever is wrong with it, a run that could not verify them is said first."""
    try:
        return read_items(file, SolutionItem)
    except DataError:
        if (Path(folder) / "config.toml").exists():
            check_agents(load_finished_run(Path(folder), trust=trust).plan, ["verifier"])
        raise


def make_problem(given: Given[ProblemItem]) -> Problem:
    answer = given.item.answer
    return make_foreign_problem(f"{given.number}", given.item.question, None if answer is None else str(answer).strip())


def _make_solution(pair: Pair, given: Given[SolutionItem]) -> Rollout:
    item = given.item
    answer = None if item.answer is None else str(item.answer).strip()
    try:
        return pair.wrap_solution(make_foreign_problem(f"{given.number}", item.question), item.steps, answer)
    except UserError as error:
        raise UserError(f"{given.where}: {error}") from None


def _make_id_field(given: Given[ProblemItem]) -> dict[str, Any]:
    """Return the id field of an item: its own id, or its number."""
    return {"id": given.number if given.item.id is None else given.item.id}


def _iterate_batches(items: Sequence[T]) -> Iterator[Sequence[T]]:
    for start in range(0, len(items), AT_ONCE):
        yield items[start : start + AT_ONCE]


class Writer:
    """Where rows go: as JSON lines into a stream; without one they are kept."""

    def __init__(self, stream: IO[str] | None) -> None:
        self.stream = stream
        self.kept: dict[str, Any] = {} if stream is not None else {"rows": []}

    def write(self, row: dict[str, Any]) -> None:
        if self.stream is None:
            self.kept["rows"].append(row)
        else:
            self.stream.write(to_json(row) + "\n")

    def flush(self) -> None:
        if self.stream is not None:
            self.stream.flush()


@contextlib.contextmanager
def _open_writer(out: Path | None, keep: bool) -> Iterator[Writer]:
    """Open the output for the rows: a file, or else stdout, unless they are to be kept."""
    if out is None:
        yield Writer(None if keep else sys.stdout)
        return
    with translate_disk_errors(out):
        out.parent.mkdir(parents=True, exist_ok=True)
        with out.open("w", encoding="utf-8") as file:
            yield Writer(file)


def _print_progress(done: int, total: int, what: str) -> None:
    if total > AT_ONCE:
        sys.stderr.write(f"{done} of {total} {what}\n")


def report_solved(summary: dict[str, Any]) -> None:
    text = f"{summary['problems']} problems, best of {summary['best_of']} by {summary['rank']}"
    if summary["graded"]:
        text += f"; accuracy {summary['accuracy']:.3f} on {summary['graded']} with a known answer"
    text += f"; {summary['left_out']} too long for the model" if summary["left_out"] else ""
    cuts = Cuts(summary["solutions"], summary["truncated"], summary["cut_at"])
    if cut := cuts.describe(summary["max_tokens"]):
        text += f"; {cuts.truncated} of {cuts.solutions} solutions were {cut}"
    sys.stderr.write(text + "\n")


def report_verified(summary: dict[str, Any]) -> None:
    text = (
        f"{summary['solutions']} solutions, {summary['checks']} checks of each, {summary['readable']} with a readable verdict"
    )
    if summary["f1"] is not None:
        text += f"; F1 {summary['f1']:.3f} on {summary['labelled']} with a label"
    sys.stderr.write(text + "\n")
