"""Answers that people graded, from a file: what a judge can learn grading from.

Invariant: a row that cannot be used is an error that names its place and its field.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from milonga.errors import DataError
from milonga.tasks.forms import MISSING, find_value
from milonga.tasks.rows import read_records, require_object


@dataclass(frozen=True)
class Graded:
    """An answer that people graded: the seed of the judge."""

    question: str
    response: str
    score: float
    grading: str


def read_graded(path: str, most: float) -> list[Graded]:
    """Read a file of graded answers: `question`, `response`, `score` from 0 to `most` and, where there is one, the text
    `grading`."""
    found = []
    for _, where, record in read_records(Path(path)):
        require_object(record, where)
        question, response = (_get_text(record, name, where) for name in ("question", "response"))
        score = find_value(record, "score")
        if isinstance(score, bool) or not isinstance(score, int | float) or not 0 <= score <= most:
            raise DataError(f"{where}: field 'score' is no number from 0 to {most:g}")
        grading = "" if find_value(record, "grading") is MISSING else _get_text(record, "grading", where)
        found.append(Graded(question, response, float(score), grading))
    if not found:
        raise DataError(f"data file '{path}' is empty")
    return found


def _get_text(record: Any, name: str, where: str) -> str:
    value = find_value(record, name)
    if not isinstance(value, str) or not value.strip():
        raise DataError(f"{where}: field '{name}' is not a text with something in it")
    return value.strip()
