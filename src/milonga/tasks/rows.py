"""Rows of problems: files of JSON lines, a JSON list, CSV or parquet, and the fields that hold question and answer.

Invariants:
- A malformed row is an error that names its file, its line or row, and the field. Where the user asks for it, such rows are
  left out and counted; never in silence.
- No field is guessed: where one is missing, the error proposes another and says how to name it.
"""

from __future__ import annotations

import csv
import difflib
import io
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from milonga import reading
from milonga.errors import DataError
from milonga.tasks.answers import find_last_box
from milonga.tasks.forms import (
    MISSING,
    TEXTS,
    Content,
    Fields,
    Form,
    cut_documents,
    find_value,
    parse_content,
    read_texts,
)

OBVIOUS = {
    "question": ("question", "problem", "prompt", "text", "instruction", "prompt.0.content", "messages.0.content"),
    "answer": ("answer", "final_answer", "target", "gold", "ground_truth", "reward_model.ground_truth", "solution"),
}
"""Names that a missing field often has; proposed, never taken."""
Record = tuple[int, str, Any]
"""A record with its number, counted from 1, and its place for messages."""


@dataclass(frozen=True)
class Row:
    """One problem of a source, with the number of its line or row, counted from 1."""

    number: int
    question: str
    answer: str
    worked: str = ""
    """The way to the answer, where the source has one."""
    level: int | None = None
    columns: Mapping[str, Any] = field(default_factory=dict)
    """All fields of the record, as they came."""
    content: Content | None = None
    """What the record holds in place of a question with an answer: replies, or labelled steps."""


@dataclass(frozen=True)
class RowParser:
    """Parses records into rows: by which fields, and where in its field the answer stands."""

    fields: Fields = field(default_factory=Fields)
    answer_after: str | None = None
    answer_in_box: bool = False
    unreadable: Literal["error", "skip"] | None = None
    """What to do about rows that cannot be parsed. None: stop, and the user has no choice."""
    left_out: list[str] = field(default_factory=list)
    """Why rows were left out, one reason for each."""
    form: Form = "problems"
    """What a record holds."""
    passage: int = 0
    """Most characters of a passage of plain text."""

    def read_file(self, path: Path) -> list[Row]:
        """Read all rows of a file, or of a folder of texts; one without any is an error."""
        return self.parse_all(read_records(path, self.form == "text"), f"data file '{path}'")

    def parse_all(self, records: Iterable[Record], source: str) -> list[Row]:
        """Parse all records of a source; one without any is an error."""
        rows: list[Row] = []
        before = len(self.left_out)
        for record in cut_documents(records, self.fields.question, self.passage) if self.form == "text" else records:
            try:
                rows.append(self._parse(*record))
            except DataError as error:
                self._leave_out(error)
        if not rows:
            raise DataError(next(iter(self.left_out[before:]), f"{source} is empty"))
        return rows

    def _leave_out(self, error: DataError) -> None:
        if self.unreadable != "skip":
            raise DataError(f"{error}; task.unreadable=skip leaves such rows out") if self.unreadable else error
        self.left_out.append(str(error))

    def _parse(self, number: int, where: str, record: Any) -> Row:
        require_object(record, where)
        if self.form != "problems":
            return self._parse_form(number, where, record)
        question = self._get_value(record, "question", self.fields.question, where)
        if not isinstance(question, str) or not question.strip():
            raise DataError(f"{where}: field '{self.fields.question}' is not a text with something in it")
        worked, answer = self._parse_answer(record, where) if self.fields.answer else ("", "")
        if self.fields.solution is not None:
            worked = self._parse_solution(record, self.fields.solution, where)
        level = parse_level(find_value(record, self.fields.level))
        return Row(number, question.strip(), answer, worked, level, record)

    def _parse_form(self, number: int, where: str, record: Mapping[Any, Any]) -> Row:
        """Parse a record of another form. Its reply, if it has one, is the way to the answer; an answer there is only where the
        user names its field."""
        content = parse_content(self.form, record, self.fields, where)
        answer = self._parse_answer(record, where)[1] if self.fields.answer else ""
        level = parse_level(find_value(record, self.fields.level))
        return Row(number, content.question, answer, content.reply or "", level, record, content)

    def _get_value(self, record: Mapping[Any, Any], kind: Literal["question", "answer"], name: str, where: str) -> Any:
        value = find_value(record, name)
        if value is MISSING:
            raise DataError(f"{where}: field '{name}' is missing; {_propose_field(kind, name, record)}")
        return value

    def _parse_answer(self, record: Mapping[Any, Any], where: str) -> tuple[str, str]:
        """Parse the answer's field into the way to the answer, where it has one, and the answer as text."""
        name = self.fields.answer
        value = self._get_value(record, "answer", name, where)
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise DataError(f"{where}: field '{name}' is neither a text nor a number")
        if isinstance(value, float) and not math.isfinite(value):
            raise DataError(f"{where}: field '{name}' is {value}, not a finite number")
        way, text = self.split_answer(str(value))
        if text is None and self.answer_after is not None:
            raise DataError(f"{where}: field '{name}' has no '{self.answer_after}' before its final answer")
        if text is None:
            raise DataError(f"{where}: field '{name}' has no \\boxed{{}} with its final answer")
        if not text.strip():
            raise DataError(f"{where}: field '{name}' is empty")
        return way.strip(), text.strip()

    def split_answer(self, text: str) -> tuple[str, str | None]:
        """Split the text of the answer's field into the way to the answer and the answer; None where it is not marked as it
        should be."""
        if self.answer_after is not None:
            way, marker, answer = text.rpartition(self.answer_after)
            return way, answer if marker else None
        return (text, find_last_box(text)) if self.answer_in_box else ("", text)

    def _parse_solution(self, record: Mapping[Any, Any], name: str, where: str) -> str:
        value = find_value(record, name)
        if not isinstance(value, str):
            what = "is missing" if value is MISSING else "is not a text"
            raise DataError(f"{where}: field '{name}' {what}; name that of the worked solution by task.fields.solution")
        return value.strip()


def require_object(record: Any, where: str) -> None:
    """Raise if a record is not an object with fields."""
    if not isinstance(record, Mapping):
        raise DataError(f"{where}: not a JSON object but {type(record).__name__}")


def parse_level(value: Any) -> int | None:
    """Parse a level: an integer, or the first one in a text such as "Level 5"; anything else is none."""
    if isinstance(value, str):
        found = re.search(r"[0-9]{1,9}", value)
        return int(found[0]) if found else None
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _propose_field(kind: Literal["question", "answer"], name: str, record: Mapping[Any, Any]) -> str:
    """Propose a field for a missing one, with the settings that name it: one that is often used for it, or the nearest."""
    known = _find_likely_field(kind, name, record)
    value = MISSING if known is None else find_value(record, known)
    box = kind == "answer" and isinstance(value, str) and find_last_box(value) is not None
    return (
        f"{propose_flag(kind, name, record)}, or --set task.fields.{kind}={known or 'NAME'}"
        + (" --set task.answer_in_box=true" if box else "")
        + ("" if known or kind == "question" else "; --set task.fields.answer= where there are no reference answers")
    )


def propose_flag(kind: Literal["question", "answer"], name: str, record: Mapping[Any, Any]) -> str:
    """Propose a field for a missing one, with the flag that names it."""
    known = _find_likely_field(kind, name, record)
    if known is None:
        return f"the row has {', '.join(sorted(map(str, record)))}: name it by --{kind} NAME"
    return f"did you mean '{known}'? Name it by --{kind} {known}"


def _find_likely_field(kind: Literal["question", "answer"], name: str, record: Mapping[Any, Any]) -> str | None:
    """Find a field that is often used for a missing one, or the nearest; None if there is none."""
    known = [path for path in OBVIOUS[kind] if isinstance(find_value(record, path), str | int | float)]
    known += difflib.get_close_matches(name, map(str, record), n=1, cutoff=0.5)
    return known[0] if known else None


# ------------------------------------------------------------------------------------------------------------------ files


def read_records(path: Path, texts: bool = False) -> Iterator[Record]:
    """Read the records of a file, in the format that its name ends in; where `texts` are wanted, also of text files."""
    read = READERS.get(path.suffix.lower())
    try:
        if texts and (path.is_dir() or path.suffix in TEXTS):
            read = read_texts
        if read is None:
            path.stat()  # a file that is not there is the first thing to say
            raise DataError(f"data file '{path}' ends in none of {', '.join(READERS)}")
        yield from read(path)
    except FileNotFoundError:
        raise DataError(f"data file '{path}' does not exist") from None
    except reading.UNREADABLE as error:
        raise DataError(f"data file '{path}' cannot be read: {reading.explain_unreadable(error)}") from None


def _read_json(path: Path) -> Iterator[Record]:
    """Read JSON lines, or a list. Blank lines are allowed, and count as lines."""
    if path.suffix.lower() == ".json":
        content = reading.read_bytes(path, reading.TEXT)
        if content.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] == b"[":
            for number, record in enumerate(parse_json(content, str(path)), 1):
                yield number, f"{path}, row {number}", record
            return
    for number, line in enumerate(reading.read_lines(path, reading.DATA), 1):
        if line.strip():
            where = f"{path}, line {number}"
            yield number, where, parse_json(line, where)


def _read_csv(path: Path) -> Iterator[Record]:
    """Read CSV whose first row names the fields; the one below it is row 1."""
    number = 0
    with io.TextIOWrapper(reading.open_regular(path, reading.TEXT), encoding="utf-8-sig", newline="") as file:
        try:
            rows = csv.DictReader(file, strict=True)
            names = list(rows.fieldnames or ())
            if twice := next((name for name in names if names.count(name) > 1), None):
                raise DataError(f"{path}: its first row names the field '{twice}' twice")
            for number, record in enumerate(rows, 1):
                where = f"{path}, row {number}"
                if None in record or None in record.values():
                    raise DataError(f"{where}: has {'more' if None in record else 'fewer'} cells than the first row has names")
                yield number, where, record
        except (csv.Error, UnicodeDecodeError) as error:
            raise DataError(f"{path}, row {number + 1}: not CSV in UTF-8 ({error})") from None


def _read_parquet(path: Path) -> Iterator[Record]:
    number = 0
    try:
        with reading.open_parquet(path, reading.DATA) as table:
            for batch in reading.read_batches(table, reading.DATA):
                for record in batch.to_pylist():
                    number += 1
                    reading.check_values(record, finite=False)  # columns that nobody asks for may hold NaN
                    yield number, f"{path}, row {number}", record
    except ValueError as error:
        raise DataError(f"{path}, row {number + 1}: {reading.explain_unreadable(error)}") from None


READERS: Mapping[str, Callable[[Path], Iterator[Record]]] = {
    ".jsonl": _read_json,
    ".json": _read_json,
    ".csv": _read_csv,
    ".parquet": _read_parquet,
}
"""By the end of a file's name."""


def parse_json(text: bytes, where: str) -> Any:
    """Parse strict JSON, or raise an error that names its place."""
    try:
        return reading.parse_json(text)
    except ValueError as error:
        raise DataError(f"{where}: not JSON ({error})") from None
