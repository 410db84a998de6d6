"""Programs in real Python: where a function stands in an answer, and what it gives, through the sandbox alone."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

from milonga.sandbox import Failure, Level, Limits, Outcome, Program, Sandbox, Status
from milonga.sandbox.values import Canonical
from milonga.types import Problem

FENCE = re.compile(r"```(?P<language>[a-zA-Z0-9]*)[ \t\r]*\n(?P<body>.*?)(?:```|\Z)", re.DOTALL)
FENCE_LINE = re.compile(r"[ \t]*```(?P<language>[a-zA-Z0-9]*)[ \t\r]*\n?")
PYTHON = ("", "python", "python3", "py")
"""What may stand behind the opening marks of a block of Python."""
Ran = tuple[Canonical | None, ...]
"""What a program gave for each call; None where it gave nothing."""
Call = tuple[str, str, tuple[tuple[Any, ...], ...]]
"""A program, the function to call, and the arguments of each call."""
LIMITS: tuple[Status, ...] = ("timeout", "memory", "output_too_large")
"""How a process ends at a limit, with all its calls, though only one of them may have gone beyond it."""


def find_blocks(text: str) -> list[str]:
    """Find the blocks of Python between code fences; the last fence may be left open. Blocks that say that they are Python are
    preferred to those that say nothing: examples of output stand in such."""
    blocks = [(found["language"].lower(), found["body"]) for found in FENCE.finditer(text)]
    named = [body for language, body in blocks if language and language in PYTHON]
    bodies = named or [body for language, body in blocks if language in PYTHON]
    return [textwrap.dedent(body).strip("\n") for body in bodies]


def extract_source(answer: str) -> str:
    """Extract the program of an answer: the text between code fences, if there are any."""
    return next(iter(find_blocks(answer)), answer.strip("\n"))


def build_source(problem: Problem, answer: str) -> str:
    """Build the source to run: the program of an answer, behind what the problem puts before it."""
    before: str = problem.data.get("before", "")
    return before + extract_source(answer)


@dataclass(frozen=True)
class Script:
    """The program in a text that need not be finished: the Python of all its fences, one after the other."""

    source: str
    is_closed: bool
    """Whether no fence is open: then nothing of the program is missing."""


def read_script(text: str) -> Script:
    """Read the program in a text. Fences of another language, and all prose, are no part of it."""
    blocks: list[list[str]] = []
    language: str | None = None
    for line in text.splitlines(keepends=True):
        fence = FENCE_LINE.fullmatch(line)
        if fence is not None:
            language = fence["language"].lower() if language is None else None
            blocks.append([])
        elif language in PYTHON:
            blocks[-1].append(line)
    return Script("".join(textwrap.dedent("".join(block)) for block in blocks), language is None)


def split_paragraphs(text: str, start: int = 0) -> list[tuple[int, int]]:
    """Split a text at blank lines, in code as in prose, and behind closing fences. Spans lie side by side and cover the text
    from `start`; a closing fence belongs to what stands before it.

    Invariant: a text that is cut where a paragraph ends has the same paragraphs up to there.
    """
    starts: list[int] = []
    position, is_open, is_new = start, False, True
    for line in text[start:].splitlines(keepends=True):
        fence = FENCE_LINE.fullmatch(line) is not None
        closes = fence and is_open
        if line.strip() and is_new and not (closes and starts):
            starts.append(position)
        is_open ^= fence
        is_new = closes or not line.strip()
        position += len(line)
    return list(pairwise([start, *starts[1:], len(text)])) if starts else []


class PythonRunner:
    """Runs programs in a sandbox that is started once, and stays."""

    def __init__(self, limits: Limits | None = None, isolation: Level = "isolated", allow_weak: bool = False) -> None:
        self.limits, self.isolation, self.allow_weak = limits, isolation, allow_weak

    def start(self) -> None:
        """Start the sandbox; fails with one line if the requested isolation is not available."""
        assert self.sandbox.level

    @cached_property
    def sandbox(self) -> Sandbox:
        return Sandbox(self.limits, self.isolation, self.allow_weak)

    def run(self, programs: Sequence[Program]) -> list[Outcome]:
        """Run programs, each in a process of its own. Equal programs run once."""
        wanted = list(dict.fromkeys(programs))
        found = dict(zip(wanted, self.sandbox.run(wanted), strict=True))
        return [found[program] for program in programs]

    def run_programs(self, items: Sequence[Call], twice: bool = False, apart: bool = False) -> list[Ran | None]:
        """Run programs on their calls; None if the sandbox could not tell. Equal programs run once.

        With `twice`, in two processes: one that does not do the same in both gave nothing. With `apart`, a call that ends its
        process takes no other with it: each is then made again in a process, and with limits, of its own.
        """
        wanted = dict.fromkeys((source, entry, repr(calls)) for source, entry, calls in items)
        firsts = {(source, entry, repr(calls)): Program(source, entry, calls) for source, entry, calls in items}
        run = self.sandbox.run_deterministic if twice else self.sandbox.run
        programs = [firsts[key] for key in wanted]
        outcomes = run(programs)
        found = dict(zip(wanted, self._run_apart(programs, outcomes) if apart else map(_list_values, outcomes), strict=True))
        return [found[source, entry, repr(calls)] for source, entry, calls in items]

    def _run_apart(self, programs: Sequence[Program], outcomes: Sequence[Outcome]) -> list[Ran | None]:
        """Run the calls of programs whose process was ended again, each in a process of its own."""
        ended = [_is_ended_at_limit(outcome) for outcome in outcomes]
        singles = [
            replace(program, calls=(call,))
            for program, again in zip(programs, ended, strict=True)
            for call in program.calls
            if again
        ]
        results = iter([_list_values(outcome) for outcome in self.sandbox.run(singles)])
        out: list[Ran | None] = []
        for program, outcome, again in zip(programs, outcomes, ended, strict=True):
            parts = [next(results) for _ in program.calls] if again else [_list_values(outcome)]
            known = [part for part in parts if part is not None]
            out.append(tuple(value for part in known for value in part) if len(known) == len(parts) else None)
        return out


def _is_ended_at_limit(outcome: Outcome) -> bool:
    """Whether a process with several calls was ended at a limit, so that none of them has a value."""
    failures = [result for result in outcome.results if isinstance(result, Failure)]
    return len(failures) == len(outcome.results) > 1 and all(failure.status in LIMITS for failure in failures)


def _list_values(outcome: Outcome) -> Ran | None:
    """List what a program gave for each call; None if the sandbox could not tell."""
    if outcome.status == "sandbox_error":
        return None
    return tuple(None if isinstance(result, Failure) else result for result in outcome.results)
