"""Last-letter concatenation: the last letters of the words, joined. One step per word: the letters so far.

`apple river moon` is solved as `e`, `er`, `ern`, answer `ern`. A step is right if it adds the right letter to what the step
before it wrote.
"""

from __future__ import annotations

import random
import re
from collections.abc import Collection, Sequence

from pydantic import Field, model_validator

from milonga.randomness import keyed_rng
from milonga.tasks.base import (
    RELATED_TRIES,
    TASKS,
    Demonstration,
    Task,
    TaskOptions,
    assign_split,
    avoids_held_out,
)
from milonga.types import Grade, Problem, Split

MOST_WORDS = 64
CONSONANTS, VOWELS = "bcdfghjklmnprstvwz", "aeiou"


class LastLetterOptions(TaskOptions):
    min_words: int = Field(2, ge=1)
    """Words in a problem, at least."""
    max_words: int = Field(10, ge=1, le=MOST_WORDS)
    """Words in a train problem, at most."""
    test_max_words: int = Field(12, ge=1, le=MOST_WORDS)
    """Dev and test go further than train, as in the small study of the Tango paper."""
    seed: int = 0
    """Keys the problems."""

    @model_validator(mode="after")
    def _ordered(self) -> LastLetterOptions:
        if self.min_words > min(self.max_words, self.test_max_words):
            raise ValueError(f"min_words={self.min_words} is larger than max_words or test_max_words")
        return self


def _draw_word(rng: random.Random) -> str:
    """Draw a word of three to six letters, consonants and vowels in turn, so that any letter may be the last."""
    offset = rng.randrange(2)
    return "".join(rng.choice((CONSONANTS, VOWELS)[(i + offset) % 2]) for i in range(rng.randint(3, 6)))


def _draw_other_word(text: str, rng: random.Random) -> str:
    """Draw another word, with another last letter."""
    while (made := _draw_word(rng))[-1] == text[-1]:
        pass
    return made


def make_problem(id: str, words: Sequence[str]) -> Problem:
    """Make the problem of these words, with its answer."""
    return Problem(id, " ".join(words), "".join(w[-1] for w in words), {"words": list(words)})


@TASKS.register("last_letter")
class LastLetter(Task):
    """Last-letter concatenation over made-up words; dev and test have more words than train."""

    name = "last_letter"
    Options = LastLetterOptions
    knows_steps = True
    options: LastLetterOptions

    def __init__(self, options: LastLetterOptions | None = None) -> None:
        super().__init__(options)
        most = max(self.options.max_words, self.options.test_max_words)
        self.max_tokens = most * (most + 3) // 2 + most + 16

    def make_harder(self) -> Task | None:
        """Longer than anything in training, up to twice as long as in dev and test."""
        low, high = self.options.test_max_words, min(MOST_WORDS, 2 * self.options.test_max_words)
        if high <= low:
            return None
        words = {"min_words": low + 1, "max_words": high, "test_max_words": high}
        return LastLetter(self.options.model_copy(update=words))

    @property
    def levels(self) -> tuple[int, ...]:
        return tuple(range(self.options.min_words, self.options.max_words + 1))

    def at_level(self, level: int) -> Task:
        return LastLetter(self.options.model_copy(update=dict.fromkeys(("min_words", "max_words", "test_max_words"), level)))

    def problem(self, split: Split, index: int) -> Problem:
        rng = keyed_rng("last_letter", self.options.model_dump_json(), split, index)
        most = self.options.max_words if split == "train" else self.options.test_max_words
        while True:
            words = [_draw_word(rng) for _ in range(rng.randint(self.options.min_words, most))]
            made = make_problem(f"last_letter/{split}/{index}", words)
            if assign_split(made.text) == split:
                return made

    def make_related_problem(self, problem: Problem, rng: random.Random, changes: int = 1) -> Problem | None:
        """Put other words, with other last letters, in some places."""
        words = problem.data["words"]
        for _ in range(RELATED_TRIES):
            places = set(rng.sample(range(len(words)), min(changes, len(words))))
            made = make_problem(
                f"{problem.id}/related", [_draw_other_word(w, rng) if k in places else w for k, w in enumerate(words)]
            )
            if avoids_held_out(problem, made):
                return made
        return None

    def find_facts(self, problem: Problem) -> list[tuple[int, int]]:
        """The words."""
        return [found.span() for found in re.finditer(r"[a-z]+", problem.text)]

    def grade(self, problem: Problem, answer: str | None, steps: Sequence[str]) -> Grade:
        """Extra steps are wrong; a solution that leaves words out is wrong in its last step, where it stops."""
        words = problem.data["words"]
        truth: list[bool] = []
        so_far = ""
        for k, text in enumerate(steps):
            truth.append(k < len(words) and text == so_far + words[k][-1])
            so_far = text
        if truth and len(steps) < len(words):
            truth[-1] = False
        return Grade(answer is not None and answer == problem.answer, tuple(truth))

    def redo_steps(self, problem: Problem, steps: Sequence[str]) -> tuple[str, ...]:
        words = problem.data["words"]
        return tuple(words[k][-1] if k < len(words) else "" for k in range(len(steps)))

    def step_count(self, problem: Problem) -> int:
        return len(problem.data["words"])

    def demonstrate(self, problem: Problem, rng: random.Random, errors: Collection[int] = ()) -> Demonstration:
        so_far = ""
        steps, checks = [], []
        words = problem.data["words"]
        for k, text in enumerate(words):
            right = so_far + text[-1]
            # What a check writes down is the letter alone: short, and enough to compare.
            checks.append(text[-1])
            so_far = _misread_letter(so_far, text, rng) if k in errors else right
            steps.append(so_far)
        truth = tuple(k not in errors for k in range(len(words)))
        return Demonstration(tuple(steps), truth, tuple(checks), so_far, so_far == problem.answer)


def _misread_letter(so_far: str, text: str, rng: random.Random) -> str:
    """Write one wrong step: the first or the second-last letter, a letter doubled or lost, or any other letter."""
    while True:
        kind = rng.choice(("first", "before_last", "doubled", "skipped", "other"))
        letter = {"first": text[0], "before_last": text[-2], "doubled": text[-1] * 2, "skipped": ""}.get(kind)
        if letter is None:
            letter = rng.choice(CONSONANTS + VOWELS)
        if letter != text[-1] and so_far + letter:
            return so_far + letter
