"""The outcome of a program, judged from outside: by how its process ended, and by one untrusted line of output.

Invariants:
- The line is accepted only as a whole: one line, with the token of this very request, with exactly the known fields, and with
  results that are canonical texts. A program can write such a line itself; it then says no more than it could have returned.
- Whatever a process sent is data of its program: judging it raises nothing, and what cannot be read is `bad_output`.
- What a program can bring about is never `sandbox_error`: that status drops an item, and must not be a way out. Where it cannot
  be told who ended a process, the program did.
"""

from __future__ import annotations

import json
import math
import signal
from dataclasses import dataclass
from typing import Any, Literal

from milonga.sandbox.codec import TEXT, InvalidValue, decode, encode
from milonga.sandbox.isolation import Level
from milonga.sandbox.program import Failure, Limits, Outcome, Program, Status, make_failed_outcome
from milonga.sandbox.values import Canonical

Killed = Literal["", "wall", "output", "result"]
"""Why we killed a process; empty: we did not."""
SAID: tuple[Status, ...] = ("syntax", "exception", "memory", "bad_output")
"""What a process may say about itself; the rest is seen from outside."""
FIELDS = {"token", "failure", "results", "mutates"}
OUT_OF_MEMORY = 3
"""The exit code of a process that could not even say so."""
FROM_OUTSIDE = frozenset({1, 2, 3, 10, 12, 15})  # SIGHUP, SIGINT, SIGQUIT, SIGUSR1, SIGUSR2 and SIGTERM, of Linux
"""Signals that a program has no way to bring upon itself."""
SHOWN = 500
"""Characters of an exception's name and text."""


@dataclass(frozen=True)
class Ended:
    """What is known of a process that is over."""

    code: int
    """As `subprocess` counts: minus the signal, if it ended by one."""
    cpu_s: float
    killed: Killed
    gone: bool
    """Whether all of it was gone in time."""
    elapsed_s: float = 0.0
    """On the clock, since it had its program."""
    stdout: bytes = b""
    stderr: bytes = b""
    result: bytes = b""


class Forged(Exception):
    """The line is not one of ours."""


def encode_request(program: Program, token: str) -> bytes:
    """Encode what the process reads: the length of the request, the request, and the program's own standard input."""
    calls = [encode(tuple(arguments)) for arguments in program.calls]
    request = {"token": token, "source": program.source, "entry": program.entry, "calls": calls}
    body = json.dumps(request).encode()
    return b"%d\n%s%s" % (len(body), body, (program.stdin or "").encode(errors="replace"))


def max_result_bytes(program: Program) -> int:
    """The maximum length of an honest process's line; it holds texts as JSON strings, where a quote takes two bytes."""
    return 20_000 + 2 * TEXT * len(program.calls)


def judge_outcome(program: Program, level: Level, limits: Limits, token: str, started: float, ended: Ended) -> Outcome:
    """Judge a program's outcome; never raises. `started` is the processor time before the program began."""
    cpu_s = max(0.0, ended.cpu_s - started)
    output = (ended.stdout.decode(errors="replace"), ended.stderr.decode(errors="replace"), cpu_s)
    failure = _explain_failure(level, limits, started, ended)
    if failure is None:
        try:
            failure, results, mutates = read(ended.result, token, len(program.calls))
        except Forged as flaw:
            failure = Failure("bad_output", "", _clean_text(str(flaw)))
        except Exception as flaw:  # a reader that fails must not fail the run: the line is the program's, and so is the flaw
            failure = Failure("bad_output", "", f"the result cannot be read: {type(flaw).__name__}")
    if failure is not None:
        return make_failed_outcome(program, failure, *output)
    flaws = [result for result in results if isinstance(result, Failure)]
    reason = f"{flaws[0].error}: {flaws[0].message}" if flaws else ""
    return Outcome(flaws[0].status if flaws else "ok", results, *output, mutates=mutates, reason=reason)


def _explain_failure(level: Level, limits: Limits, started: float, ended: Ended) -> Failure | None:
    """Return the failure of a process without a result worth parsing; None if it may have one."""
    number = _find_signal(ended.code)
    if not ended.gone:
        return Failure("sandbox_error", "", "something of the process outlived it")
    if ended.killed == "wall":
        return Failure("timeout", "", f"after {limits.wall_s:g} s on the clock")
    if ended.killed == "output":
        return Failure("output_too_large", "", f"more than {limits.output_kb} kB")
    if ended.killed == "result":
        return Failure("bad_output", "", "a result of more than its bound")
    if _was_killed_from_outside(level, limits, started, ended):
        return Failure("sandbox_error", "", f"the process was ended by signal {number} from outside")
    if ended.cpu_s - started > limits.cpu_s or number == signal.SIGKILL:
        return Failure("timeout", "", f"after {limits.cpu_s:g} s of processor time")
    if ended.code == OUT_OF_MEMORY:
        return Failure("memory", "MemoryError", "")
    if ended.code != 0:
        known = {each.value: each.name for each in signal.Signals}
        return Failure("exception", known.get(number, ""), f"the process ended with code {ended.code}")
    return None


def _find_signal(code: int) -> int:
    """Find the signal that ended a process: bubblewrap reports it as an exit code, which the filter keeps from programs."""
    return -code if code < 0 else code - 128


def _was_killed_from_outside(level: Level, limits: Limits, started: float, ended: Ended) -> bool:
    """Whether the process was certainly killed by neither us, nor the program, nor the kernel for its processor time.

    A program cannot send signals, not even to itself. If isolated, a signal that ended bubblewrap itself was not about the
    program. The kernel kills at a whole second of processor time, counted in ticks: who is awake at each of them is charged for
    more time than it used. So a process that was killed is known to be innocent only as long as that second lasts on the clock.
    """
    number = _find_signal(ended.code)
    if (level == "isolated" and ended.code < 0) or number in FROM_OUTSIDE:
        return True
    return number == signal.SIGKILL and started + ended.elapsed_s < 0.9 * math.ceil(limits.cpu_s)


def read(said: bytes, token: str, calls: int) -> tuple[Failure | None, tuple[Canonical | Failure, ...], bool]:
    """Parse the reply: overall failure, results of the calls, and whether arguments changed; `Forged` if malformed."""
    if not said:
        raise Forged("the process ended without a result")
    if said.count(b"\n") != 1 or not said.endswith(b"\n"):
        raise Forged("the result is not one line")
    try:
        reply = json.loads(said)
    except (ValueError, RecursionError):
        raise Forged("the result is not JSON") from None
    if not isinstance(reply, dict) or reply.keys() != FIELDS or reply["token"] != token or type(reply["mutates"]) is not bool:
        raise Forged("the result has other fields than it must have")
    if reply["failure"] is not None:
        return _parse_failure(reply["failure"]), (), False
    if not isinstance(reply["results"], list) or len(reply["results"]) != calls:
        raise Forged("there are more or fewer results than calls")
    return None, tuple(_parse_result(entry) for entry in reply["results"]), reply["mutates"]


def _parse_result(entry: Any) -> Canonical | Failure:
    if isinstance(entry, list) and len(entry) == 1 and isinstance(entry[0], str):
        try:
            decode(entry[0])
        except InvalidValue as error:
            raise Forged(f"a result is {error}") from None
        return Canonical(entry[0])
    return _parse_failure(entry)


def _parse_failure(entry: Any) -> Failure:
    if (
        not isinstance(entry, list)
        or len(entry) != 3
        or not all(isinstance(part, str) for part in entry)
        or entry[0] not in SAID
    ):
        raise Forged("a failure is not one that a process may report")
    status, error, message = entry
    return Failure(status, _clean_text(error), _clean_text(message))


def _clean_text(text: str) -> str:
    """Cut a text that is shown, and replace what no file or terminal can take: halves of characters."""
    return text[:SHOWN].encode(errors="replace").decode()
