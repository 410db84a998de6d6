"""Problems from data: GSM8K, any file of problems, any data set of the hub. Answers are graded as mathematics.

Invariants:
- Train, dev and test are disjoint by normalised text; `describe` says how large they are, and how many rows that cost.
- The order is a permutation keyed by the seed; indices wrap around. The split of a row does not depend on the seed.
- Rows without reference answers have unknown grades: nothing is counted as wrong that nobody could know.
"""

from __future__ import annotations

import copy
import importlib.util
import json
import random
from abc import abstractmethod
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from fractions import Fraction
from itertools import combinations, islice
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from milonga.errors import DataError, MissingExtra
from milonga.randomness import keyed_rng
from milonga.reading import SETTINGS, read_text
from milonga.tasks import worked
from milonga.tasks.answers import extract_choice, extract_number, is_choice, is_far, is_number, normalise_answer, read_rational
from milonga.tasks.base import DEMONSTRATIONS, LABELS, PREFERENCES, TASKS, Capability, Demonstration, Task, TaskOptions
from milonga.tasks.corruption import change_digit
from milonga.tasks.forms import QUESTIONS, Fields, Form
from milonga.tasks.functions import COLUMNS
from milonga.tasks.grading import Grader, get_shared_grader, require_package
from milonga.tasks.rows import Row, RowParser
from milonga.tasks.splits import Splits, make_splits
from milonga.types import SPLITS, Grade, Problem, Split

GSM8K_HUB = ("openai/gsm8k", "main")
MOST_COMPARED = 256
"""Pairs of different answers to one problem, at most, that the grader compares: about a second."""
MOST_FORMS = 256
"""Different answers to one problem, the most frequent ones, that are looked at for such pairs."""


class SourceOptions(TaskOptions):
    """Options of every task from data."""

    dev: int | None = Field(None, ge=0)
    """Problems of train that become the dev split, where the source has none of its own; by default about 5 % of the rows,
    16 to 512 of them, and never more than a quarter."""
    unreadable: Literal["error", "skip"] = "error"
    """What to do about rows without a question or an answer that can be used: stop, or leave them out and say how many."""
    seed: int = 0
    """Keys the order of the problems."""
    max_tokens: int = Field(1024, ge=1)
    """Limit of a solution."""

    def make_parser(self) -> RowParser:
        """Make the parser of the source's rows."""
        return RowParser(unreadable=self.unreadable)


class FieldOptions(SourceOptions):
    """Where the question and the answer of a row stand, and which rows to take."""

    form: Form = "problems"
    """What a row holds: a question and an answer (problems), a prompt and its reply (sft), a prompt and two of them
    (preferences), a solution with labelled steps (steps, prm800k), or plain text (text)."""
    fields: Fields = Fields()
    """The names of the fields. Of other forms than `problems` the answer has none unless you name it."""
    answer_after: str | None = Field(None, min_length=1)
    """The final answer is what stands after the last occurrence of this text, such as "####"."""
    answer_in_box: bool = False
    """The answer's field is a worked solution, and the final answer is what stands in its last \\boxed{}."""
    passage: int = Field(2000, ge=1)
    """Of the form `text`: texts are cut into passages of so many characters at most."""
    open: bool = False
    """Questions that ask for free text: answers are neither put into a box nor graded, and rows need none."""
    levels: list[int] | None = Field(None, min_length=1)
    """Take only rows of these levels."""
    test: int | None = Field(None, ge=0)
    """Problems of train that become the test split, where the source has none of its own; by default as many as for dev."""

    @model_validator(mode="after")
    def _finds_one_answer(self) -> Self:
        if self.answer_after is not None and self.answer_in_box:
            raise ValueError("the answer stands after a mark or in a box: set answer_after or answer_in_box, not both")
        return self

    def make_parser(self) -> RowParser:
        named = self.fields.model_fields_set
        usual = {} if self.form == "problems" else {"question": QUESTIONS[self.form], "answer": ""}
        known = {key: value for key, value in usual.items() if key not in named} | ({"answer": ""} if self.open else {})
        fields = self.fields.model_copy(update=known)
        return RowParser(fields, self.answer_after, self.answer_in_box, self.unreadable, [], self.form, self.passage)


class JsonlOptions(FieldOptions):
    path: str
    """The file to train on: .jsonl (one JSON object per line), .json (those, or a list of them), .csv or .parquet. For plain
    text also .txt or .md, or a folder of such files."""
    dev_path: str | None = None
    """A file with the dev split; without it a part of `path`."""
    test_path: str | None = None
    """A file with the test split; without it a part of `path`."""


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
    """Its split for dev; without it a part of train."""
    test_split: str | None = None
    """Its split for test; without it a part of train."""


class Gsm8kOptions(SourceOptions):
    path: str | None = None
    """A folder with train.jsonl and test.jsonl; without it the data come from the hub."""

    def make_parser(self) -> RowParser:
        return RowParser(answer_after="####", unreadable=self.unreadable)


def _read_hub(name: str, config: str | None, split: str, revision: str | None, parser: RowParser) -> list[Row]:
    """Read all rows of one split of a data set on the hub, through the `datasets` package and its cache."""
    if importlib.util.find_spec("datasets") is None:
        raise MissingExtra(f"loading '{name}' from the hub", "hub")
    if Path(name).is_dir():
        _refuse_remote_files(Path(name))
    import datasets

    where = f"{name} ({config})" if config else name
    try:
        table: Iterable[Any] = datasets.load_dataset(name, config, split=split, revision=revision)
    except Exception as error:  # the package and those below it raise a dozen unrelated kinds
        why = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise DataError(f"cannot load split '{split}' of data set '{where}': {why[:300]}") from None
    records = ((number, f"{where}, split '{split}', row {number}", record) for number, record in enumerate(table, 1))
    return parser.parse_all(records, f"split '{split}' of data set '{where}'")


def _refuse_remote_files(folder: Path) -> None:
    """Refuse a data set's folder whose description names files by URL: the `datasets` package would fetch them."""
    from huggingface_hub import DatasetCard

    said: object = None
    try:
        if (folder / "README.md").is_file():
            said = DatasetCard(read_text(folder / "README.md", SETTINGS)).data.get("configs")
    except Exception as error:  # of YAML, in as many kinds as it has mistakes
        why = next(iter(str(error).splitlines()), type(error).__name__)
        raise DataError(f"'{folder / 'README.md'}' does not describe a data set: {why[:300]}") from None
    other = (folder / ".huggingface.yaml").exists()
    if other or "://" in json.dumps(said, default=str):
        file = ".huggingface.yaml" if other else "README.md"
        raise DataError(f"data set '{folder}' names its files in {file}, perhaps elsewhere: remove it, and files here are read")


class DataTask(Task):
    """Problems from rows; a subclass says where the rows come from."""

    options: SourceOptions
    families = ("digit",)

    def __init__(self, options: Any = None, grader: Grader | None = None) -> None:
        super().__init__(options)
        self.max_tokens = self.options.max_tokens
        self.parser = self.options.make_parser()
        if self.has_answers:
            require_package("math")
        self.grader = grader or get_shared_grader()
        test = self.options.test if isinstance(self.options, FieldOptions) else None
        self.splits = make_splits(self.name, self.load(), self.options.dev, test)
        if isinstance(self.options, FieldOptions) and self.options.levels is not None:
            # After the split: what is held out does not depend on the levels that are chosen.
            self.splits = replace(self.splits, rows=take_levels(self.splits.rows, self.options.levels))
        self._order = self._make_order()
        self._at_level: dict[int, Self] = {}

    @property
    def has_answers(self) -> bool:
        """Whether the rows have reference answers; without them all grades are unknown."""
        return bool(self.parser.fields.answer)

    @property
    def answer_form(self) -> dict[str, str]:
        """What all its problems say about the form of their answers."""
        return {"form": "open"} if isinstance(self.options, FieldOptions) and self.options.open else {}

    def make_ready(self) -> None:
        if self.has_answers:
            self.grader.start("math")

    @abstractmethod
    def load(self) -> dict[Split, list[Row]]:
        """Load the splits that the source has; train always."""

    def _make_order(self) -> dict[Split, list[int]]:
        """Make a permutation of the rows of each split."""
        order = {split: list(range(len(self.splits.rows[split]))) for split in SPLITS}
        for split in SPLITS:
            keyed_rng("order", self.name, self.options.seed, split).shuffle(order[split])
        return order

    def size(self, split: Split) -> int:
        return len(self._order[split])

    def problem(self, split: Split, index: int) -> Problem:
        order = self._order[split]
        if not order:
            raise DataError(f"task '{self.name}' has no {split} problems; give it some, or raise task.{split}")
        row = self.splits.rows[split][order[index % len(order)]]
        data = {"worked": row.worked, COLUMNS: row.columns, **self.answer_form}
        if row.content is not None:
            data |= {key: value for key, value in vars(row.content).items() if value and key != "question"}
        return Problem(f"{self.name}/{split}/{row.number}", row.question, row.answer, data)

    @property
    def levels(self) -> tuple[int, ...]:
        return tuple(sorted({row.level for row in self.splits.rows["train"] if row.level is not None}))

    def at_level(self, level: int) -> Self:
        if level not in self._at_level:
            task = copy.copy(self)
            task.kept = None  # its indices are those of the whole
            rows = {split: [row for row in self.splits.rows[split] if row.level == level] for split in SPLITS}
            task.splits = Splits(rows, self.splits.overlaps)
            task._order = task._make_order()
            self._at_level[level] = task
        return self._at_level[level]

    @property
    def offers(self) -> Set[Capability]:
        """It demonstrates if every row shows the way to its answer. Pairs and labels it has by the form of its rows."""
        worked = all(row.worked for split in SPLITS for row in self.splits.rows[split])
        given = {"preferences": {PREFERENCES}, "steps": {LABELS}, "prm800k": {LABELS}}.get(self.parser.form, set())
        return given | (super().offers if worked else super().offers - {DEMONSTRATIONS})

    def step_count(self, problem: Problem) -> int:
        return len(worked.split_steps(problem.data["worked"]))

    def demonstrate(self, problem: Problem, rng: random.Random, errors: Collection[int] = ()) -> Demonstration:
        if errors:
            raise TypeError(f"task '{self.name}' cannot choose which step is wrong; `flawed` takes one that can be")
        return worked.make_right_demonstration(problem.data["worked"], problem.answer)

    def demonstrate_flawed(self, problem: Problem, rng: random.Random) -> Demonstration | None:
        return worked.make_flawed_demonstration(problem.data["worked"], problem.answer, problem.text, rng)

    def corrupt_step(self, problem: Problem, steps: Sequence[str], at: int, family: str, rng: random.Random) -> str | None:
        return change_digit(steps[at], rng)

    def grade(self, problem: Problem, answer: str | None, steps: Sequence[str]) -> Grade:
        return self.grade_all([(problem, answer, steps)])[0]

    def grade_all(self, items: Sequence[tuple[Problem, str | None, Sequence[str]]]) -> list[Grade]:
        if not self.has_answers:
            return [Grade(None) for _ in items]
        results = self._compare_answers([(problem.answer, answer) for problem, answer, _ in items if answer is not None])
        # No answer is a wrong answer; only an answer that the grader could not judge is unknown.
        return [Grade(False if answer is None else next(results)) for _, answer, _ in items]

    def extract(self, text: str, problem: Problem) -> str | None:
        """Extract the last number where the answer is a number, the last letter chosen where it is one of a choice. If a reply
        is wanted and no answer is known, it is the whole text."""
        if problem.reply is not None and not self.has_answers:
            return text.strip() or None
        if is_number(problem.answer):
            return extract_number(text)
        return extract_choice(text) if is_choice(problem.answer) else None

    def _compare_answers(self, pairs: Sequence[tuple[str, str]]) -> Iterator[bool | None]:
        return iter(self.grader.compare_answers(pairs))

    def group_equal_answers(self, answers: Sequence[str | None]) -> list[int | None]:
        """Group answers by the grader's equality, so that 0.5 and 1/2 do not split a vote. Undecided pairs are unequal.

        Equal numbers and texts are found without the grader. It is asked about the rest, the most frequent answers first, for
        at most `MOST_COMPARED` pairs; what is left stays unequal.
        """
        forms = [None if answer is None else find_canonical_form(answer) for answer in answers]
        counts = Counter(form for form in forms if form is not None)
        written = {form: answer for form, answer in zip(reversed(forms), reversed(answers), strict=True) if answer is not None}
        ranked = [form for form, _ in counts.most_common()]
        known = ranked[:MOST_FORMS]
        unsure = (pair for pair in combinations(range(len(known)), 2) if may_be_equal(known[pair[0]], known[pair[1]]))
        pairs = list(islice(unsure, MOST_COMPARED))
        first = list(range(len(known)))
        asked = [(written[known[left]], written[known[right]]) for left, right in pairs]
        for (left, right), equal in zip(pairs, self._compare_answers(asked), strict=True):
            first[right] = min(first[right], first[left]) if equal else first[right]
        place = dict(zip(ranked, [*first, *range(len(known), len(ranked))], strict=True))
        number = {place: count for count, place in enumerate(dict.fromkeys(place[form] for form in forms if form is not None))}
        return [None if form is None else number[place[form]] for form in forms]

    def describe(self) -> dict[str, Any]:
        figures = {"sizes": {split: self.size(split) for split in SPLITS}, "overlaps_removed": dict(self.splits.overlaps)}
        return figures | ({"rows_left_out": len(self.parser.left_out)} if self.parser.left_out else {})


def find_canonical_form(answer: str) -> Fraction | str:
    """Find the form in which equal answers are equal without a grader: a number's value, or else the normalised text."""
    text = normalise_answer(answer)
    value = read_rational(text)
    return text if value is None else value


def may_be_equal(one: Fraction | str, other: Fraction | str) -> bool:
    """Whether two different canonical forms may be the same to the grader: not two numbers, unless one is the other rounded."""
    return isinstance(one, str) or isinstance(other, str) or not is_far(one, other)


def take_levels(own: Mapping[Split, Sequence[Row]], levels: Collection[int]) -> dict[Split, Sequence[Row]]:
    """Take the rows of some levels. A split that has none of them is an error."""
    taken: dict[Split, Sequence[Row]] = {split: [row for row in rows if row.level in levels] for split, rows in own.items()}
    for split, rows in own.items():
        if rows and not taken[split]:
            there = sorted({row.level for row in rows if row.level is not None})
            said = (
                f"there are {', '.join(map(str, there))}" if there else "no row has a level: name its field, task.fields.level"
            )
            raise DataError(f"no {split} row has one of the levels task.levels={list(levels)}; {said}")
    return taken


@TASKS.register("jsonl")
class Jsonl(DataTask):
    """Any file of problems: JSON lines, a JSON list, CSV or parquet."""

    name = "jsonl"
    Options = JsonlOptions
    options: JsonlOptions

    def load(self) -> dict[Split, list[Row]]:
        o = self.options
        paths: dict[Split, str | None] = {"train": o.path, "dev": o.dev_path, "test": o.test_path}
        return {split: self.parser.read_file(Path(path)) for split, path in paths.items() if path is not None}


@TASKS.register("hub")
class Hub(DataTask):
    """Any data set of the hub whose rows have a question and an answer."""

    name = "hub"
    Options = HubOptions
    options: HubOptions

    def load(self) -> dict[Split, list[Row]]:
        o = self.options
        names: dict[Split, str | None] = {"train": o.train_split, "dev": o.dev_split, "test": o.test_split}
        found = {split: name for split, name in names.items() if name is not None}
        return {split: _read_hub(o.dataset, o.config, name, o.revision, self.parser) for split, name in found.items()}


@TASKS.register("gsm8k")
class Gsm8k(DataTask):
    """Grade-school word problems. Its dev split is carved out of train; its test is never touched."""

    name = "gsm8k"
    Options = Gsm8kOptions
    options: Gsm8kOptions

    def load(self) -> dict[Split, list[Row]]:
        if self.options.path is None:
            dataset, config = GSM8K_HUB
            return {split: _read_hub(dataset, config, split, None, self.parser) for split in ("train", "test")}
        folder = Path(self.options.path)
        return {split: self.parser.read_file(folder / f"{split}.jsonl") for split in ("train", "test")}
