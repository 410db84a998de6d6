"""Programs in real Python: where a function stands in an answer, and what it gives, through the sandbox alone."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cached_property
from typing import Any

from milonga.sandbox import Failure, Level, Limits, Program, Sandbox
from milonga.sandbox.values import Canonical

FENCE = re.compile(r"```[a-zA-Z0-9]*\n(?P<body>.*?)(?:```|\Z)", re.DOTALL)
Ran = tuple[Canonical | None, ...]
"""What a program gave for each call; None where it gave nothing."""
Call = tuple[str, str, tuple[tuple[Any, ...], ...]]
"""A program, the function to call, and the arguments of each call."""


def source_in(answer: str) -> str:
    """The program of an answer: what stands between fences, where a model wrote some."""
    found = FENCE.search(answer)
    return (found["body"] if found else answer).strip("\n")


class PythonRunner:
    """Runs programs in a sandbox that is started once, and stays."""

    def __init__(self, limits: Limits, isolation: Level, allow_weak: bool) -> None:
        self.limits, self.isolation, self.allow_weak = limits, isolation, allow_weak

    def start(self) -> None:
        """Fails with one line where the isolation that is asked for is not to be had."""
        assert self.sandbox.level

    @cached_property
    def sandbox(self) -> Sandbox:
        return Sandbox(self.limits, self.isolation, self.allow_weak)

    def ran(self, items: Sequence[Call], twice: bool = False) -> list[Ran | None]:
        """What programs gave for their calls; None where the sandbox could not tell. The same program runs once.

        With `twice`, in two processes: one that does not do the same in both gave nothing.
        """
        wanted = dict.fromkeys((source, entry, repr(calls)) for source, entry, calls in items)
        firsts = {(source, entry, repr(calls)): Program(source, entry, calls) for source, entry, calls in items}
        run = self.sandbox.deterministic if twice else self.sandbox.run
        outcomes = run([firsts[key] for key in wanted])
        found: dict[tuple[str, str, str], Ran | None] = {}
        for key, outcome in zip(wanted, outcomes, strict=True):
            values = tuple(None if isinstance(result, Failure) else result for result in outcome.results)
            found[key] = None if outcome.status == "sandbox_error" else values
        return [found[source, entry, repr(calls)] for source, entry, calls in items]
