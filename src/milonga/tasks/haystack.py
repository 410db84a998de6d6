"""Haystack: a problem whose parts are hidden in noisy documents. The question names the documents that matter, in their order.

    ba%100            the question: join what documents b and a say, modulo 100
    a:r*3tean         the documents; each weaves a part of a chain of arithmetic and some letters into one line
    b:3m7+o5n
    c:u-sa4hk         a document that the question does not name

The arithmetic of b and a is `37+5*3%100`, solved as in the task `chain`. `ba&` asks for the letters instead: `mon rtean`,
solved as in `last_letter`. Each thread is noise to the question about the other.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from itertools import pairwise
from typing import Literal

from pydantic import Field, model_validator

from milonga.randomness import keyed_rng
from milonga.tasks.base import TASKS, Demonstration, Task, TaskOptions, assign_split
from milonga.tasks.chain import OPERATIONS, Chain, ChainOptions, compute
from milonga.tasks.last_letter import LastLetter, LastLetterOptions
from milonga.types import Grade, Problem, Split

NAMES = "abcdefgh"
LETTERS = "abcdefghijklmnopqrstuvwxyz"
WORDS_MARK = "&"
"""How a question ends that asks for the letters."""


class HaystackOptions(TaskOptions):
    documents: int = Field(3, ge=1, le=len(NAMES))
    """Documents in a haystack."""
    parts: int = Field(2, ge=1, le=len(NAMES))
    """How many of them the question names."""
    ops: int = Field(2, ge=1, le=16)
    """Operations of the hidden chain; every document but the first named one has at least one of them."""
    mod: int = Field(100, ge=2, le=1000)
    """Values are taken modulo this."""
    noise: int = Field(4, ge=1, le=32)
    """The level of noise: letters in the document with the longest arithmetic, others have more. The largest one where
    `min_noise` is given."""
    min_noise: int | None = Field(None, ge=1)
    """Draw the level of each haystack from min_noise to noise."""
    kinds: Literal["chain", "letters", "both"] = "chain"
    """What is asked for: the arithmetic, the letters, or either."""
    seed: int = 0
    """Keys the problems."""

    @model_validator(mode="after")
    def _possible(self) -> HaystackOptions:
        if self.parts > self.documents:
            raise ValueError(f"parts={self.parts} is more than documents={self.documents}")
        if self.ops < self.parts - 1:
            raise ValueError(f"ops={self.ops} is too few for parts={self.parts}: each but the first needs an operation")
        if self.min_noise is not None and self.min_noise > self.noise:
            raise ValueError(f"min_noise={self.min_noise} is larger than noise={self.noise}")
        if self.kinds != "chain" and (self.min_noise or self.noise) < 2:
            raise ValueError(f"kinds={self.kinds} asks for letters, of which a document must have at least two")
        return self


def extract_question(text: str) -> str:
    """Extract the question of a problem: its first line."""
    return text.partition("\n")[0]


def parse_documents(text: str) -> dict[str, str]:
    """Parse the documents of a problem, by name."""
    lines = [line.partition(":") for line in text.split("\n")[1:]]
    return {name: body for name, colon, body in lines if colon}


def extract_names(question: str) -> str:
    """Extract the names of the documents that a question is about, in its order."""
    return question.removesuffix(WORDS_MARK) if question.endswith(WORDS_MARK) else question.partition("%")[0]


def extract_thread(document: str, letters: bool) -> str:
    """Extract one of the two threads of a document: its letters, or all else."""
    return "".join(c for c in document if c.isalpha() == letters)


def join_threads(threads: Sequence[str], question: str) -> str:
    """Join threads into the text of a problem: words, or one chain with the question's modulus."""
    return " ".join(threads) if question.endswith(WORDS_MARK) else "".join(threads) + question[len(extract_names(question)) :]


def _interleave_threads(first: str, second: str, rng: random.Random) -> str:
    """Interleave both threads in one line, each in its own order."""
    places = set(rng.sample(range(len(first) + len(second)), len(first)))
    one, other = iter(first), iter(second)
    return "".join(next(one if place in places else other) for place in range(len(first) + len(second)))


@TASKS.register("haystack")
class Haystack(Task):
    """A chain of arithmetic, or words, in parts that are hidden in noisy documents; difficulty is the noise."""

    name = "haystack"
    Options = HaystackOptions
    knows_steps = True
    options: HaystackOptions

    def __init__(self, options: HaystackOptions | None = None) -> None:
        super().__init__(options)
        o = self.options
        self.chain = Chain(ChainOptions(ops=o.ops, mod=o.mod))
        self.words = LastLetter(LastLetterOptions(min_words=1, max_words=o.parts, test_max_words=o.parts))
        self.max_tokens = max(self.chain.max_tokens, self.words.max_tokens, len(NAMES) + 2, o.documents * (o.noise + 3 * o.ops))

    @property
    def levels(self) -> tuple[int, ...]:
        least = self.options.min_noise or (1 if self.options.kinds == "chain" else 2)
        return tuple(range(least, self.options.noise + 1))

    def at_level(self, level: int) -> Task:
        return Haystack(self.options.model_copy(update={"min_noise": None, "noise": level}))

    def make_harder(self) -> Task | None:
        noise = min(32, 2 * self.options.noise)
        return self.at_level(noise) if noise > self.options.noise else None

    def problem(self, split: Split, index: int) -> Problem:
        """Draw a problem whose whole text and whose hidden problem both belong to the split."""
        rng = keyed_rng("haystack", self.options.model_dump_json(), split, index)
        while True:
            parts, inner = self._draw_parts(rng)
            if assign_split(inner.text) != split:
                continue
            text = self._render_haystack(parts, inner, rng)
            if assign_split(text) == split:
                return Problem(f"haystack/{split}/{index}", text, inner.answer, {"inner": inner})

    def _draw_parts(self, rng: random.Random) -> tuple[list[tuple[str, str]], Problem]:
        """Draw the arithmetic and the word of each relevant document, and the problem that they make."""
        o = self.options
        start, chain = rng.randrange(o.mod), [(rng.choice(OPERATIONS), rng.randint(2, 9)) for _ in range(o.ops)]
        cuts = [0, *sorted(rng.sample(range(o.ops), o.parts - 1)), o.ops]
        pieces = ["".join(f"{op}{by}" for op, by in chain[a:b]) for a, b in pairwise(cuts)]
        pieces[0] = f"{start}{pieces[0]}"
        length = max(map(len, pieces)) + rng.randint(o.min_noise or o.noise, o.noise)
        words = ["".join(rng.choices(LETTERS, k=length - len(piece))) for piece in pieces]
        parts = list(zip(pieces, words, strict=True))
        if o.kinds == "letters" or (o.kinds == "both" and rng.random() < 0.5):
            return parts, Problem("letters", " ".join(words), "".join(word[-1] for word in words), {"words": words})
        value = start
        for operation, operand in chain:
            value = compute(value, operation, operand, o.mod)
        data = {"start": start, "chain": chain, "mod": o.mod}
        return parts, Problem("chain", f"{''.join(pieces)}%{o.mod}", str(value), data)

    def _render_haystack(self, parts: list[tuple[str, str]], inner: Problem, rng: random.Random) -> str:
        """Render the question and all documents by name. All are equally long, so that length tells nothing."""
        o = self.options
        names = rng.sample(NAMES[: o.documents], o.documents)
        length = sum(map(len, parts[0]))
        others = [f"{rng.choice(OPERATIONS)}{rng.randint(2, 9)}" for _ in names[o.parts :]]
        noise = [(other, "".join(rng.choices(LETTERS, k=length - len(other)))) for other in others]
        lines = [f"{name}:{_interleave_threads(*both, rng)}" for name, both in zip(names, [*parts, *noise], strict=True)]
        tail = WORDS_MARK if inner.id == "letters" else f"%{o.mod}"
        return "\n".join([f"{''.join(names[: o.parts])}{tail}", *sorted(lines)])

    def grade(self, problem: Problem, answer: str | None, steps: Sequence[str]) -> Grade:
        return self.select_inner_task(problem).grade(problem.data["inner"], answer, steps)

    def select_inner_task(self, problem: Problem) -> Task:
        """Select the task whose problem is hidden in this one."""
        return self.words if problem.data["inner"].id == "letters" else self.chain

    def redo_steps(self, problem: Problem, steps: Sequence[str]) -> tuple[str, ...]:
        return self.select_inner_task(problem).redo_steps(problem.data["inner"], steps)

    def is_step(self, text: str) -> bool:
        return (self.words if self.options.kinds == "letters" else self.chain).is_step(text)

    def step_count(self, problem: Problem) -> int:
        return self.select_inner_task(problem).step_count(problem.data["inner"])

    def demonstrate(self, problem: Problem, rng: random.Random, errors: Collection[int] = ()) -> Demonstration:
        return self.select_inner_task(problem).demonstrate(problem.data["inner"], rng, errors)
