"""Any procedural data set of reasoning-gym, as `reasoning_gym:NAME`, drawn and graded by its own code in the worker.

Invariants:
- Neither generator nor grader runs in this process: several graders evaluate the answer, and several generators depend
  on the hash seed of their process, which is fixed in the worker. So a problem is the same in every run.
- A text belongs to exactly one split, by its hash; besides, each split draws with seeds of its own. What a split draws
  and another owns is left out and counted.
- A grader that evaluates answers runs in the sandbox, every answer in a process of its own. It knows the right answer all the
  same, so that it is shown only what can do no more than compute: literals, and expressions of mathematics.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, ClassVar

from pydantic import Field, field_validator

from milonga.errors import ConfigError, suggest_name
from milonga.randomness import keyed_rng
from milonga.sandbox import InvalidValue, IsolationError, parse_literal
from milonga.sandbox.executor import choose_level
from milonga.sandbox.values import ANSWER
from milonga.tasks.base import Task, TaskOptions, assign_split
from milonga.tasks.grading import Grader, WorkerError, get_shared_grader
from milonga.types import SPLITS, Grade, Problem, Split

COMPOSITE = "composite"
NONSENSE = ("no answer at all", "?")
PART = re.compile(r"\s+|0[xX][0-9a-fA-F]+|[0-9]+(?:\.[0-9]*)?|\.[0-9]+|(?P<word>[A-Za-z_]+)|[-+*/^%()\[\],|&~<>!]", re.ASCII)
FUNCTIONS = re.compile("sin|cos|tan|cot|sec|csc|asin|acos|atan|sinh|cosh|tanh|exp|log|ln|sqrt|abs|Abs|pi")
MOST_READ = 10_000
"""Characters of an answer that are shown to a grader, unless the reference is long too."""
BARREN = 2000
"""Draws that all belong to other splits before we say that the data set has too few different problems."""


class GymOptions(TaskOptions):
    size: int = Field(2000, ge=1)
    """Problems in each split; indices wrap around after it."""
    seed: int = Field(0, ge=0)
    config: dict[str, Any] = Field(default_factory=dict)
    """Options of the data set itself, as reasoning-gym documents them."""
    threshold: float = Field(1.0 - 1e-9, gt=0, le=1)
    """Scores from here on count as correct; partial credit does not."""
    allow_weak_isolation: bool = False
    """Where programs cannot be isolated, run a grader that evaluates answers in a locked process, which is no sandbox."""
    max_tokens: int = Field(512, ge=1)

    @field_validator("config")
    @classmethod
    def _plain(cls, value: dict[str, Any]) -> dict[str, Any]:
        try:
            json.dumps(value)
        except TypeError:
            raise ValueError("only texts, numbers, booleans, lists and tables can be handed to the data set") from None
        return value


class Gym(Task):
    """One data set of reasoning-gym; `gym_task` makes a subclass for each name."""

    Options = GymOptions
    options: GymOptions
    dataset: ClassVar[str]
    fields: ClassVar[Sequence[str]]
    """Keys of the data set's own config."""
    evaluates: ClassVar[Sequence[str]]
    """Where its grader evaluates text."""

    def __init__(self, options: GymOptions | None = None, grader: Grader | None = None) -> None:
        super().__init__(options)
        self.max_tokens = self.options.max_tokens
        self.grader = grader or get_shared_grader()
        self._kept: dict[Split, list[Problem]] = {split: [] for split in SPLITS}
        self._next: dict[Split, tuple[int, int]] = dict.fromkeys(SPLITS, (0, 0))
        """Block and index of the next draw of each split."""
        self._drawn: dict[Split, int] = dict.fromkeys(SPLITS, 0)
        self._confined = False
        """Whether answers are graded in the sandbox."""
        self._check_config()
        self._check_grader()

    def _check_config(self) -> None:
        for key in self.options.config:
            if key in ("seed", "size"):
                raise ConfigError(f"'task.config.{key}' is set by 'task.{key}'")
            if key not in self.fields:
                raise ConfigError(f"unknown key 'task.config.{key}': {suggest_name(key, {*self.fields} - {'seed', 'size'})}")

    def _check_grader(self) -> None:
        """Find the sandbox for a grader that evaluates text; refuse one that finds nonsense right: it would teach nothing."""
        if self.evaluates:
            try:
                self._confined = choose_level("isolated", self.options.allow_weak_isolation)[0] == "isolated"
            except IsolationError as error:
                evaluated = "; ".join(self.evaluates)
                raise IsolationError(f"task '{self.name}' has a grader that evaluates text ({evaluated}): {error}") from None
        first = self.problem("train", 0)
        if all(self.grade(first, nonsense, ()).correct for nonsense in NONSENSE):
            raise ConfigError(f"task '{self.name}' is refused: its grader accepts any answer, '{NONSENSE[0]}' too")

    def size(self, split: Split) -> int:
        return self.options.size

    def problem(self, split: Split, index: int) -> Problem:
        index %= self.options.size
        kept = self._kept[split]
        while len(kept) <= index:
            if self._drawn[split] >= BARREN and not kept:
                raise ConfigError(f"task '{self.name}' has too few different problems: none is in split '{split}'")
            self._draw_more(split)
        return kept[index]

    def _draw_more(self, split: Split) -> None:
        """Draw more problems with one request to the worker. Their number varies; the problems and their order do not."""
        block, start = self._next[split]
        seed = keyed_rng("gym", self.dataset, self.options.seed, split, block).randrange(2**31)
        try:
            drawn = self.grader.ask_gym("draw", self.dataset, self.options.config, seed, start)
        except WorkerError as error:
            raise ConfigError(f"task '{self.name}' cannot draw with config {self._format_config()}: {error}") from None
        for index, (question, answer) in enumerate(drawn, start):
            if assign_split(question) == split:
                id = f"{self.name}/{split}/{len(self._kept[split])}"
                self._kept[split].append(Problem(id, question, answer, {"seed": seed, "index": index}))
        self._drawn[split] += len(drawn)
        self._next[split] = (block, start + len(drawn)) if drawn else (block + 1, 0)

    def _format_config(self) -> str:
        return json.dumps(self.options.config)

    def grade(self, problem: Problem, answer: str | None, steps: Sequence[str]) -> Grade:
        return self.grade_all([(problem, answer, steps)])[0]

    def grade_all(self, items: Sequence[tuple[Problem, str | None, Sequence[str]]]) -> list[Grade]:
        known = [self._grade_quickly(problem, answer) for problem, answer, _ in items]
        asked = [
            (problem.data["seed"], problem.data["index"], answer or "")
            for (problem, answer, _), right in zip(items, known, strict=True)
            if right is None
        ]
        found = self.grader.score(self.dataset, self.options.config, asked, bool(self.evaluates), self._confined)
        scores = iter(found)
        return [Grade(self._is_correct(next(scores)) if right is None else right) for right in known]

    def _grade_quickly(self, problem: Problem, answer: str | None) -> bool | None:
        """Grade what needs no grader, or must not be shown to one; None: ask the grader."""
        if answer is None or len(answer) > max(MOST_READ, 4 * len(problem.answer)):
            return False
        if not self.evaluates:
            return None
        if problem.answer and answer.strip() == problem.answer.strip():
            return True
        return None if is_pure_computation(answer) else False

    def _is_correct(self, score: float | None) -> bool | None:
        return None if score is None else score >= self.options.threshold

    def describe(self) -> dict[str, Any]:
        """`left_to_other_splits` counts the overlaps that were removed, among what has been drawn so far."""
        kept = {split: len(self._kept[split]) for split in SPLITS}
        return {
            "sizes": dict.fromkeys(SPLITS, self.options.size),
            "drawn": dict(self._drawn),
            "left_to_other_splits": {split: self._drawn[split] - kept[split] for split in SPLITS},
            "grader_evaluates": list(self.evaluates),
            "isolation": ("isolated" if self._confined else "limited") if self.evaluates else None,
        }


def is_pure_computation(answer: str) -> bool:
    """Whether evaluating a text can do no more than compute: a literal, or mathematics without attributes, names or strings.

    No strings, because sympy's functions evaluate those that they are given.
    """
    try:
        parse_literal(answer)
    except InvalidValue:
        pass
    else:
        return True
    if len(answer) > ANSWER:
        return False
    end = 0
    while match := PART.match(answer, end):
        word = match["word"]
        if word is not None and len(word) > 1 and not FUNCTIONS.fullmatch(word):
            return False
        end = match.end()
    return end == len(answer)


def make_gym_task(dataset: str, grader: Grader | None = None) -> type[Task]:
    """Make the task class of a data set."""
    grader = grader or get_shared_grader()
    names = set(grader.ask_gym("names")) - {COMPOSITE}
    if dataset == COMPOSITE:
        raise ConfigError("'reasoning_gym:composite' mixes other data sets, whose graders it hides: name one of them")
    if dataset not in names:
        raise ConfigError(f"unknown reasoning-gym data set '{dataset}': {suggest_name(dataset, names)}")
    known = grader.ask_gym("inspect", dataset)
    body = {"name": f"reasoning_gym:{dataset}", "dataset": dataset, **known}
    return type(f"Gym_{dataset}", (Gym,), body)
