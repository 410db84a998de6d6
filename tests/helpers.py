"""Small builders that several test files share."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from hypothesis import settings

from milonga.roles import Dialect
from milonga.types import Grade, Parsed, Problem, Rollout, Rollouts, Segment, Solution

GRAMMARS: tuple[Dialect, ...] = ("tagged", "terse")
"""The dialects that demand a form. Roles that have no form in prose are tested in these."""
PROPERTY = settings(derandomize=True, deadline=None, max_examples=100)
"""Property tests are deterministic: the same examples on every machine."""


class Done(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Command = Callable[..., Done]
"""The command line in this process: see the fixture `milonga`."""


def make_rollout(
    prompt_len: int,
    completion_len: int,
    step_ends: Sequence[int] = (),
    problem: str = "p",
    correct: bool | None = None,
    logprobs: Sequence[float] | None = None,
    id: str = "t",
) -> Rollout:
    """A sampled solution in token space. `step_ends` count completion tokens, the closing one of the step included."""
    total = prompt_len + completion_len
    bounds = [prompt_len, *(prompt_len + end for end in step_ends)]
    filled = np.zeros(total)
    if logprobs is not None:
        filled[prompt_len:] = logprobs
    return Rollout(
        id=id,
        agent="generator",
        problem=Problem(problem, problem, "answer"),
        ids=np.arange(total, dtype=np.int64),
        segments=(
            Segment("prompt", 0, prompt_len),
            Segment("generator", prompt_len, total, policy="generator", version=0, trained=True),
        ),
        logprobs=filled,
        text="x" * completion_len,
        parsed=Parsed(Solution(tuple("s" for _ in step_ends), tuple(step_ends), "answer"), 1.0),
        steps=tuple(itertools.pairwise(bounds)),
        grade=Grade(correct),
    )


def make_rollouts(lengths: Sequence[int], prompt_len: int = 2) -> Rollouts:
    """One rollout without steps for each completion length."""
    return Rollouts(make_rollout(prompt_len, length, id=f"t{i}") for i, length in enumerate(lengths))


def check_growth(read: Callable[[str], object], piece: str, before: str = "") -> None:
    """Check that the time of a reader grows with the text and no faster. Ten times the text may take ten times as long; forty
    leaves room for a busy machine, a quadratic reader takes a hundred. Time of the processor, and not of the clock."""

    def measure(times: int) -> float:
        text, best = before + piece * times, float("inf")
        for _ in range(3):
            start = time.process_time()
            read(text)
            best = min(best, time.process_time() - start)
        return best

    assert measure(10_000) < 40 * max(measure(1_000), 2e-3)
