"""Problems from data: GSM8K, any JSONL file, any data set of the hub. Answers are graded as mathematics.

Invariants:
- Train, dev and test are disjoint by normalised text. What occurs in a held-out split too is removed from train: the
  held-out splits stay whole (dev only loses what the test has), and `describe` counts what was removed.
- A malformed row is an error that names its file, line and field. Rows are never skipped in silence.
- The order is a permutation keyed by the seed; indices wrap around. The split of a row does not depend on the seed.
"""

from __future__ import annotations

import importlib.util
import json
import random
from abc import abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

from pydantic import Field, model_validator

from milonga.errors import DataError, MissingExtra, suggest_name
from milonga.randomness import keyed_rng
from milonga.tasks import worked
from milonga.tasks.base import DEMONSTRATIONS, TASKS, Capability, Demonstration, Task, TaskOptions, normalise_text
from milonga.tasks.grading import Grader, get_shared_grader, require_package
from milonga.types import SPLITS, Grade, Problem, Split

GSM8K_HUB = ("openai/gsm8k", "main")


class SourceOptions(TaskOptions):
    """Options of every task from data."""

    dev_share: float = Field(0.05, ge=0, lt=1)
    """Share of the train rows that becomes the dev split, where the source has none of its own."""
    seed: int = 0
    """Keys the order of the problems."""
    max_tokens: int = Field(1024, ge=1)
    """Limit of a solution."""


class FieldOptions(SourceOptions):
    """The fields of a row that hold its question and its answer."""

    question: str = "question"
    """The field that holds the question."""
    answer: str = "answer"
    """The field that holds the answer."""
    answer_after: str | None = Field(None, min_length=1)
    """The final answer is what stands after the last occurrence of this text, such as "####"."""
    test_share: float = Field(0.05, ge=0, lt=1)
    """Share of the train rows that becomes the test split, where the source has none of its own."""

    @model_validator(mode="after")
    def _leaves_train(self) -> FieldOptions:
        if self.dev_share + self.test_share >= 1:
            raise ValueError(f"dev_share={self.dev_share} and test_share={self.test_share} leave nothing to train on")
        return self


class JsonlOptions(FieldOptions):
    path: str
    """The file to train on, one JSON object per line."""
    dev_path: str | None = None
    """A file with the dev split; without it a share of `path`."""
    test_path: str | None = None
    """A file with the test split; without it a share of `path`."""


class HubOptions(FieldOptions):
    dataset: str
    """Name on the hub, or a local folder that the `datasets` package can read."""
    config: str | None = None
    """The configuration of the data set, where it has several."""
    revision: str | None = None
    """A branch, tag or commit of the data set."""
    train_split: str = "train"
    """Its split to train on."""
    dev_split: str | None = None
    """Its split for dev; without it a share of train."""
    test_split: str | None = None
    """Its split for test; without it a share of train."""


class Gsm8kOptions(SourceOptions):
    path: str | None = None
    """A folder with train.jsonl and test.jsonl; without it the data come from the hub."""


@dataclass(frozen=True)
class Row:
    """One problem of a source, with the number of its line, counted from 1."""

    number: int
    question: str
    answer: str
    worked: str = ""
    """The way to the answer, where the source has one: what stands before the marker of the final answer."""


@dataclass(frozen=True)
class Fields:
    """The field names by which a row is parsed."""

    question: str = "question"
    answer: str = "answer"
    answer_after: str | None = None

    def read(self, record: Any, where: str, number: int) -> Row:
        if not isinstance(record, Mapping):
            raise DataError(f"{where}: not a JSON object but {type(record).__name__}")
        question = self._get_value(record, self.question, where)
        if not isinstance(question, str) or not question.strip():
            raise DataError(f"{where}: field '{self.question}' is not a text with something in it")
        worked, answer = self._split_answer(self._get_value(record, self.answer, where), where)
        return Row(number, question.strip(), answer, worked)

    def _get_value(self, record: Mapping[Any, Any], field: str, where: str) -> Any:
        if field not in record:
            raise DataError(f"{where}: field '{field}' is missing; {suggest_name(field, map(str, record))}")
        return record[field]

    def _split_answer(self, answer: Any, where: str) -> tuple[str, str]:
        """Split a field into the worked solution, before the marker, and the answer as text: numbers are converted."""
        if isinstance(answer, bool) or not isinstance(answer, str | int | float):
            raise DataError(f"{where}: field '{self.answer}' is neither a text nor a number")
        way, text = "", str(answer)
        if self.answer_after is not None:
            way, marker, text = text.rpartition(self.answer_after)
            if not marker:
                raise DataError(f"{where}: field '{self.answer}' has no '{self.answer_after}' before its final answer")
        if not text.strip():
            raise DataError(f"{where}: field '{self.answer}' is empty")
        return way.strip(), text.strip()


def read_jsonl(path: Path, fields: Fields) -> list[Row]:
    """Read all rows of a file. Blank lines are allowed, and count as lines."""
    try:
        with path.open("rb") as file:
            rows = [_parse_line(line, path, n, fields) for n, line in enumerate(file, 1) if line.strip()]
    except FileNotFoundError:
        raise DataError(f"data file '{path}' does not exist") from None
    except OSError as error:
        raise DataError(f"data file '{path}' cannot be read: {error.strerror}") from None
    if not rows:
        raise DataError(f"data file '{path}' is empty")
    return rows


def _parse_line(line: bytes, path: Path, number: int, fields: Fields) -> Row:
    where = f"{path}, line {number}"
    return fields.read(parse_json(line, where), where, number)


def parse_json(text: bytes, where: str) -> Any:
    """Parse strict JSON, or raise an error that names its place."""
    try:
        found = json.loads(text.decode("utf-8-sig"), parse_constant=_reject_constant)
        if b"\\u" in text:  # half of a character, which only an escape can name, is no text that a model could read
            json.dumps(found, ensure_ascii=False).encode()
        return found
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: not JSON ({error})") from None


def _reject_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a value of JSON")


def _read_hub(name: str, config: str | None, split: str, revision: str | None, fields: Fields) -> list[Row]:
    """Read all rows of one split of a data set on the hub, through the `datasets` package and its cache."""
    if importlib.util.find_spec("datasets") is None:
        raise MissingExtra(f"loading '{name}' from the hub", "hub")
    import datasets

    where = f"{name} ({config})" if config else name
    try:
        table: Iterable[Any] = datasets.load_dataset(name, config, split=split, revision=revision)
    except Exception as error:  # the package and those below it raise a dozen unrelated kinds
        why = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise DataError(f"cannot load split '{split}' of data set '{where}': {why[:300]}") from None
    rows = [fields.read(record, f"{where}, split '{split}', row {n}", n) for n, record in enumerate(table, 1)]
    if not rows:
        raise DataError(f"split '{split}' of data set '{where}' is empty")
    return rows


@dataclass(frozen=True)
class Splits:
    """Disjoint splits, and how many rows had to go to make them so."""

    rows: Mapping[Split, Sequence[Row]]
    overlaps: Mapping[str, int]


def split_rows(rows: Sequence[Row], dev_share: float, test_share: float) -> dict[Split, list[Row]]:
    """Split rows by a hash of their normalised text, so that repetitions of a question stay together."""
    out: dict[Split, list[Row]] = {split: [] for split in SPLITS}
    for row in rows:
        at = keyed_rng("split", normalise_text(row.question)).random()
        out["test" if at < test_share else "dev" if at < test_share + dev_share else "train"].append(row)
    return out


def remove_overlaps(rows: Mapping[Split, Sequence[Row]]) -> Splits:
    """Make the splits disjoint: test stays whole, dev loses what is in test, train loses what is in either."""
    texts = {split: [normalise_text(row.question) for row in rows[split]] for split in SPLITS}
    dev, test = set(texts["dev"]), set(texts["test"])
    overlaps = {
        "train_dev": sum(text in dev for text in texts["train"]),
        "train_test": sum(text in test for text in texts["train"]),
        "dev_test": sum(text in test for text in texts["dev"]),
    }
    kept: dict[Split, Sequence[Row]] = {
        "train": [row for row, text in zip(rows["train"], texts["train"], strict=True) if text not in dev | test],
        "dev": [row for row, text in zip(rows["dev"], texts["dev"], strict=True) if text not in test],
        "test": rows["test"],
    }
    return Splits(kept, overlaps)


class DataTask(Task):
    """Problems from rows; a subclass says where the rows come from."""

    options: SourceOptions

    def __init__(self, options: Any = None, grader: Grader | None = None) -> None:
        super().__init__(options)
        self.max_tokens = self.options.max_tokens
        require_package("math")
        self.grader = grader or get_shared_grader()
        own = self.load()
        dev_share = 0.0 if "dev" in own else self.options.dev_share
        test_share = 0.0 if "test" in own else getattr(self.options, "test_share", 0.0)
        self.splits = remove_overlaps({**split_rows(own.pop("train"), dev_share, test_share), **own})
        if not self.splits.rows["train"]:
            raise DataError(f"task '{self.name}': nothing is left to train on; every row is in dev or test")
        self._order = {split: self._make_permutation(split) for split in SPLITS}

    def make_ready(self) -> None:
        self.grader.start("math")

    @abstractmethod
    def load(self) -> dict[Split, list[Row]]:
        """Load the splits that the source has; train always."""

    def _make_permutation(self, split: Split) -> list[int]:
        order = list(range(len(self.splits.rows[split])))
        keyed_rng("order", self.name, self.options.seed, split).shuffle(order)
        return order

    def size(self, split: Split) -> int:
        return len(self._order[split])

    def problem(self, split: Split, index: int) -> Problem:
        order = self._order[split]
        if not order:
            raise DataError(f"task '{self.name}' has no {split} problems: name their source, or raise {split}_share")
        row = self.splits.rows[split][order[index % len(order)]]
        return Problem(f"{self.name}/{split}/{row.number}", row.question, row.answer, {"worked": row.worked})

    @property
    def offers(self) -> Set[Capability]:
        """It demonstrates if every row shows the way to its answer."""
        worked = all(row.worked for split in SPLITS for row in self.splits.rows[split])
        return super().offers if worked else super().offers - {DEMONSTRATIONS}

    def step_count(self, problem: Problem) -> int:
        return len(worked.split_steps(problem.data["worked"]))

    def demonstrate(self, problem: Problem, rng: random.Random, errors: Collection[int] = ()) -> Demonstration:
        if errors:
            raise TypeError(f"task '{self.name}' cannot choose which step is wrong; `flawed` takes one that can be")
        return worked.make_right_demonstration(problem.data["worked"], problem.answer)

    def demonstrate_flawed(self, problem: Problem, rng: random.Random) -> Demonstration | None:
        return worked.make_flawed_demonstration(problem.data["worked"], problem.answer, problem.text, rng)

    def grade(self, problem: Problem, answer: str | None, steps: Sequence[str]) -> Grade:
        return self.grade_all([(problem, answer, steps)])[0]

    def grade_all(self, items: Sequence[tuple[Problem, str | None, Sequence[str]]]) -> list[Grade]:
        results = self._compare_answers([(problem.answer, answer) for problem, answer, _ in items if answer is not None])
        # No answer is a wrong answer; only an answer that the grader could not judge is unknown.
        return [Grade(False if answer is None else next(results)) for _, answer, _ in items]

    def _compare_answers(self, pairs: Sequence[tuple[str, str]]) -> Iterator[bool | None]:
        return iter(self.grader.compare_answers(pairs))

    def group_equal_answers(self, answers: Sequence[str | None]) -> list[int | None]:
        """Group answers by the grader's equality, so that 0.5 and 1/2 do not split a vote. Undecided pairs are unequal."""
        texts = list(dict.fromkeys(answer for answer in answers if answer is not None))
        pairs = list(combinations(range(len(texts)), 2))
        first = list(range(len(texts)))
        for (left, right), equal in zip(pairs, self._compare_answers([(texts[a], texts[b]) for a, b in pairs]), strict=True):
            first[right] = min(first[right], first[left]) if equal else first[right]
        number = {place: count for count, place in enumerate(dict.fromkeys(first))}
        found = {text: number[place] for text, place in zip(texts, first, strict=True)}
        return [None if answer is None else found[answer] for answer in answers]

    def describe(self) -> dict[str, Any]:
        return {"sizes": {split: self.size(split) for split in SPLITS}, "overlaps_removed": dict(self.splits.overlaps)}


@TASKS.register("jsonl")
class Jsonl(DataTask):
    """Any file with one problem per line."""

    name = "jsonl"
    Options = JsonlOptions
    options: JsonlOptions

    def load(self) -> dict[Split, list[Row]]:
        fields = Fields(self.options.question, self.options.answer, self.options.answer_after)
        paths: dict[Split, str | None] = {
            "train": self.options.path,
            "dev": self.options.dev_path,
            "test": self.options.test_path,
        }
        return {split: read_jsonl(Path(path), fields) for split, path in paths.items() if path is not None}


@TASKS.register("hub")
class Hub(DataTask):
    """Any data set of the hub whose rows have a question and an answer."""

    name = "hub"
    Options = HubOptions
    options: HubOptions

    def load(self) -> dict[Split, list[Row]]:
        o = self.options
        fields = Fields(o.question, o.answer, o.answer_after)
        names: dict[Split, str | None] = {"train": o.train_split, "dev": o.dev_split, "test": o.test_split}
        return {
            split: _read_hub(o.dataset, o.config, name, o.revision, fields) for split, name in names.items() if name is not None
        }


@TASKS.register("gsm8k")
class Gsm8k(DataTask):
    """Grade-school word problems. Its dev split is carved out of train; its test is never touched."""

    name = "gsm8k"
    Options = Gsm8kOptions
    options: Gsm8kOptions

    def load(self) -> dict[Split, list[Row]]:
        fields = Fields(answer_after="####")
        if self.options.path is None:
            dataset, config = GSM8K_HUB
            return {split: _read_hub(dataset, config, split, None, fields) for split in ("train", "test")}
        folder = Path(self.options.path)
        return {split: read_jsonl(folder / f"{split}.jsonl", fields) for split in ("train", "test")}
