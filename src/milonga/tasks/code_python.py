"""Programs in real Python: where a function stands in an answer, and what it gives, through the sandbox alone."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from functools import cached_property
from typing import Any

from milonga.sandbox import Failure, Level, Limits, Outcome, Program, Sandbox
from milonga.sandbox.values import Canonical

FENCE = re.compile(r"```(?P<language>[a-zA-Z0-9]*)[ \t\r]*\n(?P<body>.*?)(?:```|\Z)", re.DOTALL)
PYTHON = ("", "python", "python3", "py")
"""What may stand behind the opening marks of a block of Python."""
Ran = tuple[Canonical | None, ...]
"""What a program gave for each call; None where it gave nothing."""
Call = tuple[str, str, tuple[tuple[Any, ...], ...]]
"""A program, the function to call, and the arguments of each call."""


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


class PythonRunner:
    """Runs programs in a sandbox that is started once, and stays."""

    def __init__(self, limits: Limits, isolation: Level, allow_weak: bool) -> None:
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

    def run_programs(self, items: Sequence[Call], twice: bool = False) -> list[Ran | None]:
        """Run programs on their calls; None if the sandbox could not tell. Equal programs run once.

        With `twice`, in two processes: one that does not do the same in both gave nothing.
        """
        wanted = dict.fromkeys((source, entry, repr(calls)) for source, entry, calls in items)
        firsts = {(source, entry, repr(calls)): Program(source, entry, calls) for source, entry, calls in items}
        run = self.sandbox.run_deterministic if twice else self.sandbox.run
        outcomes = run([firsts[key] for key in wanted])
        found: dict[tuple[str, str, str], Ran | None] = {}
        for key, outcome in zip(wanted, outcomes, strict=True):
            values = tuple(None if isinstance(result, Failure) else result for result in outcome.results)
            found[key] = None if outcome.status == "sandbox_error" else values
        return [found[source, entry, repr(calls)] for source, entry, calls in items]
