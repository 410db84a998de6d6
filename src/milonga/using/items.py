"""Parse problems to solve and solutions to verify: one JSON object each, from a file or over HTTP.

Invariant: every error is one line that names the place, the field and what it should be.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Generic, TypeVar

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from milonga.config import explain
from milonga.errors import DataError
from milonga.reading import TEXT, explain_unreadable, read_bytes
from milonga.tasks.rows import parse_json

Text = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]
Name = str | int | None
Question = Field(validation_alias=AliasChoices("question", "problem"))


class Item(BaseModel):
    """An input item. Unknown fields are allowed: ProcessBench's items have more than we need."""

    model_config = ConfigDict(strict=True, frozen=True, allow_inf_nan=False)

    id: Name = None
    question: Text = Question


class ProblemItem(Item):
    """A problem: `question` (or `problem`), and `answer` if it is known."""

    answer: str | int | float | None = None


class SolutionItem(Item):
    """A solution: `problem` (or `question`) and `steps`; `answer` if it is not in the last step; `label` (the first wrong step,
    -1 for none) if it is known."""

    steps: list[Text] = Field(min_length=1)
    answer: str | int | float | None = None
    label: int | None = Field(None, ge=-1)


T = TypeVar("T", bound=Item)


@dataclass(frozen=True)
class Given(Generic[T]):
    """An item with its place: `number` counts lines, or items of a list, from 1; `record` is the raw JSON object."""

    number: int
    where: str
    item: T
    record: dict[str, Any]


def read_items(path: Path, kind: type[T]) -> list[Given[T]]:
    """Read the items of a file: JSON lines, or one JSON list, as ProcessBench is published."""
    try:
        data = read_bytes(path, TEXT)
    except FileNotFoundError:
        raise DataError(f"data file '{path}' does not exist") from None
    except OSError as error:
        raise DataError(f"data file '{path}' cannot be read: {explain_unreadable(error)}") from None
    items = [
        Given(number, where, validate_item(kind, record, where), record)
        for number, where, record in _iterate_records(path, data)
    ]
    if not items:
        raise DataError(f"data file '{path}' is empty")
    return items


def _iterate_records(path: Path, data: bytes) -> Iterator[tuple[int, str, Any]]:
    """Yield (number, place, record) of each line, or of each element of a list. Blank lines are skipped, but counted."""
    if data.removeprefix(codecs.BOM_UTF8).lstrip().startswith(b"["):
        for number, record in enumerate(parse_json(data, str(path)), 1):
            yield number, f"{path}, item {number}", record
        return
    for number, line in enumerate(data.split(b"\n"), 1):
        if line.strip():
            where = f"{path}, line {number}"
            yield number, where, parse_json(line, where)


def validate_item(kind: type[T], record: Any, where: str) -> T:
    """Validate a record as an item, or raise a one-line error."""
    if not isinstance(record, dict):
        raise DataError(f"{where}: not a JSON object but {type(record).__name__}")
    try:
        item = kind.model_validate(record)
    except ValidationError as error:
        raise DataError(f"{where}: {_summarise_error(error, kind)}") from None
    if isinstance(item, SolutionItem) and item.label is not None and item.label >= len(item.steps):
        raise DataError(f"{where}: label {item.label} is not a step of {len(item.steps)}")
    return item


def _summarise_error(error: ValidationError, kind: type[BaseModel]) -> str:
    """Summarise the first validation error, cut to 300 characters: the input may be long."""
    text = str(explain(error, kind))
    return text if len(text) <= 300 else f"{text[:300]}…"
