"""Parse problems to solve and solutions to verify: one JSON object each, from a file or over HTTP.

Invariant: every error is one line that names the place, the field and what it should be.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Generic, TypeVar

from pydantic import AliasChoices, BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints, ValidationError

from milonga.config import explain
from milonga.errors import DataError
from milonga.reading import TEXT, explain_unreadable, read_bytes
from milonga.tasks import TASKS, PassRate
from milonga.tasks.data import SourceOptions
from milonga.tasks.forms import MISSING, find_value
from milonga.tasks.rows import RowParser, parse_json, propose_flag, read_records

Text = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]
Name = str | int | None
Known = Annotated[str | int | float | None, BeforeValidator(lambda value: None if str(value).strip() == "" else value)]
"""An answer; a blank one, as an empty cell of a table, is none."""
Question = Field(validation_alias=AliasChoices("question", "problem"))
TABLES = (".csv", ".parquet")
"""How the names of files end that hold no JSON."""


class Item(BaseModel):
    """An input item. Unknown fields are allowed: ProcessBench's items have more than we need."""

    model_config = ConfigDict(strict=True, frozen=True, allow_inf_nan=False)

    id: Name = None
    question: Text = Question


class ProblemItem(Item):
    """A problem: `question` (or `problem`), and `answer` if it is known."""

    answer: Known = None


class SolutionItem(Item):
    """A solution: `problem` (or `question`) and `steps`; `answer` if it is not in the last step; `label` (the first wrong step,
    -1 for none) if it is known."""

    steps: list[Text] = Field(min_length=1)
    answer: Known = None
    label: int | None = Field(None, ge=-1)


T = TypeVar("T", bound=Item)


@dataclass(frozen=True)
class Given(Generic[T]):
    """An item with its place: `number` counts lines, or items of a list, from 1; `record` is the raw JSON object."""

    number: int
    where: str
    item: T
    record: dict[str, Any]


@dataclass(frozen=True)
class ProblemFields:
    """Where the records of a file hold question and answer, if not in `question` (or `problem`) and `answer`."""

    parser: RowParser
    """How the run read its own problems; or the names that the user gave."""
    question: str | None = None
    """The question's field, if the user named it: then each record has to have it."""
    answer: str | None = None
    """The answer's field, if the user named it: then an answer stands there or nowhere, and some record has to have it."""

    def read(self, path: Path) -> list[Given[ProblemItem]]:
        """Read the problems of a file."""
        found = read_items(path, ProblemItem, self.rename)
        if self.answer is not None and all(find_value(one.record, self.answer) is MISSING for one in found):
            there = ", ".join(sorted(map(str, found[0].record)))
            raise DataError(f"data file '{path}': no record has the field '{self.answer}'; the first has {there}")
        return found

    def rename(self, record: Any, where: str) -> Any:
        """Copy what stands in these fields to where an item has it. A final answer that is not marked as it was in the run's
        own problems is taken whole."""
        if not isinstance(record, dict):
            return record
        fields, out = (
            self.parser.fields,
            {key: value for key, value in record.items() if key != "answer" or self.answer is None},
        )
        question = find_value(record, fields.question)
        if question is not MISSING:
            out |= {"question": question}
        elif self.question is not None:
            raise DataError(f"{where}: field '{fields.question}' is missing; the row has {', '.join(sorted(record))}")
        elif not {"question", "problem"} & record.keys():
            raise DataError(f"{where}: 'question' is missing; {propose_flag('question', fields.question, record)}")
        answer = find_value(record, fields.answer) if fields.answer else MISSING
        if isinstance(answer, str):
            out["answer"] = (self.parser.split_answer(answer)[1] or answer).strip()
        elif answer is not MISSING:
            out["answer"] = answer
        return out


def find_problem_fields(task: Mapping[str, Any], question: str | None, answer: str | None) -> ProblemFields:
    """Find the fields of problems to solve: those that the user names, else those of a run's own data."""
    parser = RowParser()
    options = TASKS.get(str(task["name"])).Options if task.get("name") in TASKS else None
    if options is not None and issubclass(options, SourceOptions):
        own = {key: value for key, value in task.items() if key != "name" and key not in PassRate.model_fields}
        try:
            parser = options.model_validate(own).make_parser()
        except ValidationError as error:
            raise explain(error, options, "task") from None
    given = {key: value for key, value in (("question", question), ("answer", answer)) if value is not None}
    return ProblemFields(replace(parser, fields=parser.fields.model_copy(update=given)), question, answer)


def read_items(path: Path, kind: type[T], rename: Callable[[Any, str], Any] = lambda record, where: record) -> list[Given[T]]:
    """Read the items of a file: JSON lines, or one JSON list, as ProcessBench is published; or CSV or parquet. `rename` is told
    a record and its place, and returns the fields of an item."""
    table = path.suffix.lower() in TABLES
    try:
        records = read_records(path) if table else _iterate_records(path, read_bytes(path, TEXT))
        items = [
            Given(number, where, validate_item(kind, rename(record, where), where), record) for number, where, record in records
        ]
    except FileNotFoundError:
        raise DataError(f"data file '{path}' does not exist") from None
    except OSError as error:
        raise DataError(f"data file '{path}' cannot be read: {explain_unreadable(error)}") from None
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
