"""Programs as data, and what came of them.

Invariants:
- A program holds inputs, never an expected output: what runs it can betray nothing.
- How it ended is one of a closed set of statuses, never a text. Only `sandbox_error` is our fault: whoever grades drops such an
  item and never counts it as wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from milonga.sandbox.values import Canonical, Value, to_canonical

Status = Literal[
    "ok",
    "syntax",
    "forbidden",
    "exception",
    "timeout",
    "memory",
    "output_too_large",
    "bad_output",
    "nondeterministic",
    "sandbox_error",
]


class Limits(BaseModel):
    """What one program may use. The verdict rests on processor time; wall time is a backstop, generous on a busy machine."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    cpu_s: float = Field(1.0, gt=0, le=600)
    """For the whole program with all its calls. The kernel ends it at the next whole second."""
    wall_s: float = Field(5.0, gt=0, le=3600)
    memory_mb: int = Field(256, ge=32)
    """Of address space."""
    open_files: int = Field(16, ge=8)
    file_mb: int = Field(1, ge=1)
    scratch_mb: int = Field(8, ge=1)
    """All files together; binds where the scratch folder lies in memory (`isolated`)."""
    output_kb: int = Field(64, ge=1)
    """Of standard output, and as much of standard error."""
    source_kb: int = Field(20, ge=1)

    @property
    def scratch_files(self) -> int:
        """Files and folders in scratch, one for every 2 kB: each takes memory of the kernel's, even if it is empty."""
        return self.scratch_mb << 9


@dataclass(frozen=True)
class Program:
    """Source, the function to call, and the arguments of each call.

    Without `entry` the source is a script: it reads `stdin`, and what it prints is its result.
    """

    source: str
    entry: str | None = None
    calls: Sequence[tuple[Value, ...]] = ()
    stdin: str | None = None

    def __post_init__(self) -> None:
        if self.calls and self.entry is None:
            raise ValueError("a program with calls needs the name of the function to call")
        for arguments in self.calls:
            to_canonical(tuple(arguments))  # InvalidValue now, and not when it is sent


@dataclass(frozen=True)
class Failure:
    """Why there is no value: the status, the name of the exception, and its text. Names and texts are for display alone."""

    status: Status
    error: str = ""
    message: str = ""


@dataclass(frozen=True)
class Outcome:
    """The outcome of a program. `results` has an entry for each call, whatever happened."""

    status: Status
    """`ok` if all calls returned plain values; else that of the first failure."""
    results: tuple[Canonical | Failure, ...] = ()
    stdout: str = ""
    stderr: str = ""
    cpu_s: float = 0.0
    mutates: bool = False
    """Whether a call changed one of its arguments."""
    reason: str = ""
    """What went wrong, for display."""


def make_failed_outcome(program: Program, failure: Failure, stdout: str = "", stderr: str = "", cpu_s: float = 0.0) -> Outcome:
    """Make the outcome of a program none of whose calls has a value."""
    reason = ": ".join(part for part in (failure.error, failure.message) if part)
    return Outcome(failure.status, (failure,) * len(program.calls), stdout, stderr, cpu_s, reason=reason)
