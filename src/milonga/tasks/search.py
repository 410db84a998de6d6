"""Questions over a corpus, to be answered with a retrieval tool.

Without a folder the corpus is a made-up knowledge graph, keyed by the seed: `tom ally foe` asks for the foe of tom's ally, one
fact a hop. Of these the truth is known exactly: all answers of any question, and what follows from any passages. With `path`
the corpus is the text files of a folder, and `questions` a JSONL file with questions about them and their answers.
"""

from __future__ import annotations

import random
import re
import string
from collections.abc import Iterable, Sequence
from copy import copy
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import Field, model_validator

from milonga.errors import DataError
from milonga.randomness import keyed_rng
from milonga.tasks.base import TASKS, Task, TaskOptions, assign_split, normalise_text
from milonga.tasks.forms import Fields
from milonga.tasks.graph import NAMES, RELATIONS, Graph, follow_path, parse_edges
from milonga.tasks.retrieval import Retrieval, read_folder, split_words
from milonga.tasks.rows import Row, RowParser
from milonga.tasks.splits import make_splits
from milonga.types import SPLITS, Grade, Problem, Split

MOST_HOPS = 8
TRIES = 10_000
FILE_OPTIONS = f'"fields":{Fields().model_dump_json()},"dev":null,"test":null'
FILE_OPTIONS_BEFORE = '"question":"question","answer":"answer","dev_share":0.1,"test_share":0.1'
"""What the options of a file were when results were published. The key of the graph's problems keeps them."""


class SearchOptions(TaskOptions):
    path: str | None = None
    """A folder whose .txt and .md files are the corpus; without it a made-up knowledge graph."""
    questions: str | None = None
    """With `path`: a file with a question and an answer in each row (.jsonl, .json, .csv or .parquet)."""
    fields: Fields = Fields()
    """The names of its fields."""
    dev: int | None = Field(None, ge=0)
    """Questions that become the dev split; by default about 5 % of them, 16 to 512, and never more than a quarter."""
    test: int | None = Field(None, ge=0)
    """Questions that become the test split; by default as many."""
    top: int = Field(3, ge=1)
    """Passages that a search returns, at most."""
    calls: int = Field(4, ge=1)
    """Searches in one conversation, at most."""
    max_tokens: int | None = Field(None, ge=1)
    """Limit of one turn; by default what suits the corpus."""
    entities: int = Field(500, ge=10, le=len(NAMES) - len(NAMES) % 2)
    """People of the graph; an even number."""
    relations: int = Field(10, ge=2, le=len(RELATIONS))
    """Kinds of relations between them."""
    extra: float = Field(0.1, ge=0, le=1)
    """Share of the people who have a second partner in a relation: questions that pass there have several answers."""
    min_hops: int = Field(1, ge=1)
    """Facts that a question of the graph needs, at least."""
    hops: int = Field(3, ge=1, le=MOST_HOPS)
    """Facts that a question of the graph needs, at most."""
    seed: int = 0
    """Keys the graph and the problems."""

    @model_validator(mode="after")
    def _fits(self) -> SearchOptions:
        if (self.path is None) != (self.questions is None):
            raise ValueError("a corpus of your own needs both: path, its folder, and questions, a file about it")
        if not self.fields.answer:
            raise ValueError("questions are graded by their answers: name their field by fields.answer")
        if self.min_hops > self.hops:
            raise ValueError(f"min_hops={self.min_hops} is larger than hops={self.hops}")
        if self.entities % 2:
            raise ValueError(f"entities={self.entities} is odd: people of the graph come in pairs")
        return self


@TASKS.register("search")
class Search(Task):
    """Questions over a corpus with a retrieval tool; the embedded corpus is a knowledge graph."""

    name = "search"
    base = "search"
    Options = SearchOptions
    options: SearchOptions
    tool: Retrieval

    def __init__(self, options: SearchOptions | None = None) -> None:
        super().__init__(options)
        o = self.options
        self.graph = Graph(o.entities, o.relations, o.extra, o.seed) if o.path is None else None
        passages = self.graph.facts if self.graph is not None else read_folder(Path(o.path or ""))
        self.tool = Retrieval(passages, o.top, o.calls)
        self.splits = (
            None
            if o.questions is None
            else make_splits(self.name, {"train": RowParser(o.fields).read_file(Path(o.questions))}, o.dev, o.test)
        )
        self.max_tokens = o.max_tokens or (512 if self.graph is None else 8 * MOST_HOPS + 8)

    def size(self, split: Split) -> int | None:
        return None if self.splits is None else len(self.splits.rows[split])

    def problem(self, split: Split, index: int) -> Problem:
        return (
            self._draw_problem(split, index)
            if self.splits is None
            else self._make_row_problem(self.splits.rows[split], split, index)
        )

    def _make_row_problem(self, rows: Sequence[Row], split: Split, index: int) -> Problem:
        if not rows:
            raise DataError(f"task '{self.name}' has no {split} problems; raise task.{split}")
        order = list(range(len(rows)))
        keyed_rng("order", self.name, self.options.seed, split).shuffle(order)
        row = rows[order[index % len(rows)]]
        return Problem(f"{self.name}/{split}/{row.number}", row.question, row.answer)

    def _draw_problem(self, split: Split, index: int) -> Problem:
        """Draw a question with exactly one answer that is not in its text. No relation follows itself: it would lead back."""
        key = self.options.model_dump_json().replace(FILE_OPTIONS, FILE_OPTIONS_BEFORE)
        rng = keyed_rng("search", key, split, index)
        for _ in range(TRIES):
            text = self.draw_question(rng, rng.randint(self.options.min_hops, self.options.hops))
            found = self.find_answers(text)
            if assign_split(text) == split and len(found) == 1 and not found <= {*text.split()}:
                return Problem(f"{self.name}/{split}/{index}", text, min(found))
        raise DataError(f"task '{self.name}': no question of the graph has one answer; lower task.extra={self.options.extra}")

    def draw_question(self, rng: random.Random, hops: int) -> str:
        """Draw any question of this many hops."""
        assert self.graph is not None
        path: list[str] = []
        while len(path) < hops:
            relation = rng.choice(self.graph.relations)
            path += [] if path and relation == path[-1] else [relation]
        return " ".join([rng.choice(self.graph.entities), *path])

    def find_split(self, question: str) -> Split:
        """Find the only split that may show this question: that of a question of the file, else train; of the graph, that of
        its text."""
        if self.splits is None:
            return assign_split(question)
        return self._held_out.get(normalise_text(question), "train")

    @cached_property
    def _held_out(self) -> dict[str, Split]:
        """The held-out questions of the file, normalised."""
        rows = {} if self.splits is None else self.splits.rows
        held: tuple[Split, ...] = ("dev", "test")
        return {normalise_text(row.question): split for split in held for row in rows.get(split, ())}

    @property
    def exact(self) -> bool:
        """Whether all answers of any question are known, and what follows from any passages."""
        return self.graph is not None

    def find_answers(self, question: str) -> frozenset[str]:
        """Find all answers in the whole corpus; empty for an invalid question. For graphs only."""
        assert self.graph is not None
        return follow_path(self.graph.edges, question)

    def derive_answers(self, question: str, passages: Iterable[str]) -> frozenset[str]:
        """Derive the answers of a perfect reader from these passages alone. For graphs only."""
        return follow_path(parse_edges(passages), question)

    def count_hops(self, question: str) -> int:
        """Count the facts that a question of the graph needs."""
        return len(question.split()) - 1

    def grade(self, problem: Problem, answer: str | None, steps: Sequence[str]) -> Grade:
        return Grade(answer is not None and normalise_answer(answer) == normalise_answer(problem.answer))

    def group_equal_answers(self, answers: Sequence[str | None]) -> list[int | None]:
        return super().group_equal_answers([None if answer is None else normalise_answer(answer) for answer in answers])

    @property
    def levels(self) -> tuple[int, ...]:
        return tuple(range(self.options.min_hops, self.options.hops + 1)) if self.exact else ()

    def at_level(self, level: int) -> Task:
        return self._with_hops(level, level)

    def _with_hops(self, least: int, most: int) -> Search:
        """Return a task with other hop counts over the same corpus."""
        other = copy(self)
        other.options = self.options.model_copy(update={"min_hops": least, "hops": most})
        return other

    def make_harder(self) -> Task | None:
        more = min(self.options.calls, 2 * self.options.hops)
        if not self.exact or more <= self.options.hops:
            return None
        return self._with_hops(self.options.hops + 1, more)

    def describe(self) -> dict[str, Any]:
        found: dict[str, Any] = {"passages": len(self.tool.passages)}
        if self.splits is not None:
            found["sizes"] = {split: len(self.splits.rows[split]) for split in SPLITS}
            found["overlaps_removed"] = dict(self.splits.overlaps)
        return found


def normalise_answer(answer: str) -> str:
    """Normalise an answer for comparison: lower case, no punctuation, no articles, single blanks (the usual exact match)."""
    bare = answer.casefold().translate(str.maketrans("", "", string.punctuation))
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", bare).split())


def mentions_answer(text: str, answer: str) -> bool:
    """Whether the words of an answer occur in a text, in sequence. By words: `art` is not in `party`."""
    inside, sought = (f" {' '.join(split_words(one))} " for one in (text, answer))
    return bool(sought.strip()) and sought in inside
