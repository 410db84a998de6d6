"""The grader's process: third-party graders on hostile text. It runs as a script and imports nothing of Milonga.

Invariants:
- Only the main thread works, and nothing that a grader prints can reach the pipe on which replies go.
- Once the graders are imported the process is locked: programs, sockets, signals, files to write and native libraries
  are closed to it. That is a second line of defence; the first is that it holds no secrets and can be killed.
- Graders that evaluate an answer, or compute with it, do so in a child of their own, forked for that answer and locked harder
  still. No answer has more than `BUDGET` of processor time: who needs more, or raises an exception, is wrong, and nothing else
  is lost by it.
- It ends when its parent does: by the end of the input, or by an alarm while it works.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import functools
import gc
import inspect
import json
import logging
import os
import re
import signal
import sys
import textwrap
import time
from collections import OrderedDict
from collections.abc import Callable
from types import FunctionType, ModuleType
from typing import Any, BinaryIO

Operations = dict[str, Callable[..., Any]]
BLOCK = 1000
"""Problems of a reasoning-gym data set before the next seed; some of them fix their size when they are made."""
DRAW_SECONDS = 0.5
BUDGET = 0.5
"""Seconds of processor time for one answer, ten times what a long one takes. A busy machine does not change a verdict."""
CHILD_SECONDS = 2
"""Whole seconds after which the kernel ends a child that has called off its own alarm."""
KEPT_DATASETS, KEPT_ENTRIES = 16, 4096


def main() -> None:
    settings = json.loads(sys.argv[1])
    sys.path[:] = settings["path"]
    requests, replies = _open_private_pipes()
    load = {"math": _load_math_operations, "gym": _load_gym_operations}[settings["kind"]]
    operations: Operations = {}
    failure = ""
    try:
        operations = load()
    except BaseException as error:
        failure = f"{type(error).__name__}: {error}"
    gc.freeze()  # what is loaded stays: children share it instead of copying it
    set_limits(RLIMIT_AS=settings["memory"], RLIMIT_CORE=0, RLIMIT_FSIZE=0)
    _lock_process(for_good=False)
    for line in requests:
        request = json.loads(line)
        _set_alarm(2 * request["limit"] + 1)
        reply = {"id": request["id"], **({"error": failure} if failure else perform_request(operations, request))}
        _set_alarm(0)
        replies.write(json.dumps(reply).encode() + b"\n")
        replies.flush()
        if "leaving" in reply:
            return


def _open_private_pipes() -> tuple[BinaryIO, BinaryIO]:
    """Open the pipes to the parent on separate descriptors. What graders read or print goes to /dev/null."""
    requests, replies = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nowhere, descriptor)
    logging.disable(logging.CRITICAL)
    return requests, replies


def perform_request(operations: Operations, request: dict[str, Any]) -> dict[str, Any]:
    """Perform an operation; return its value, or the error it raised. Out of memory, the process is not to be trusted."""
    try:
        if request["do"] == "ready":
            return {"value": True}
        return {"value": operations[request["do"]](*request["with"])}
    except MemoryError:
        return {"error": "MemoryError", "leaving": True}
    except BaseException as error:
        return {"error": f"{type(error).__name__}: {error!s:.500}"}


# ------------------------------------------------------------------------------------------------------------ isolation


def set_limits(**limits: int) -> None:
    """Set resource limits, if the system has them."""
    try:
        import resource
    except ImportError:
        return
    for name, value in limits.items():
        with contextlib.suppress(ValueError, OSError, AttributeError):
            resource.setrlimit(getattr(resource, name), (value, value))


def _lock_process(for_good: bool) -> None:
    """Refuse, for the rest of this process, whatever reaches beyond it. An audit hook cannot be taken away again.

    Not for good means that it may still fork children and limit them.
    """
    writing = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        # Constants and no global names, which evaluated text could replace.
        if event == "open":
            refused = (arguments[2] or 0) & writing
        elif event == "object.__setattr__":
            refused = arguments[1] == "__code__"
        elif event in ("os.listdir", "os.scandir", "os.walk", "os.fwalk"):
            refused = False
        elif event in ("os.fork", "resource.setrlimit"):
            refused = for_good
        else:
            refused = event.startswith(
                ("os.", "subprocess.", "socket.", "ctypes.", "shutil.", "tempfile.", "pty.", "fcntl.", "resource.")
            ) or event.startswith(("signal.", "gc.", "sqlite3.", "webbrowser.", "winreg.", "sys.set", "sys.addaudit"))
        if refused:
            raise PermissionError(f"a grader may not do this: {event}")

    sys.addaudithook(hook)


def _set_alarm(seconds: float) -> None:
    """Die of SIGALRM after so long: the last resort of a worker whose parent is gone. 0 calls it off."""
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_REAL, seconds)


class OutOfTimeError(BaseException):
    """An answer has used up its time. No grader catches it."""


def _run_in_time(function: Callable[[], Any]) -> Any:
    """Run a grader that only reads an answer, and return its value; None if the answer ends it, by its time or an exception."""
    if not hasattr(signal, "setitimer"):
        return function()

    def stop(*_: object) -> None:
        raise OutOfTimeError

    signal.signal(signal.SIGPROF, stop)
    try:
        signal.setitimer(signal.ITIMER_PROF, BUDGET, BUDGET / 10)  # again and again: a grader may catch what it should not
        return function()
    except (Exception, OutOfTimeError):
        return None
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def _run_in_child(function: Callable[[], Any]) -> Any:
    """Run a grader in a forked child and return its value; None if the answer ends it, by its time, its memory or an exception.
    A child that somebody else killed is an error. The parent kills the whole group if it waits too long."""
    if not hasattr(os, "fork"):
        return function()
    source, sink = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.closerange(3, sink)
            os.closerange(sink + 1, 1024)
            signal.setitimer(signal.ITIMER_PROF, BUDGET)  # its default ends the process, whatever it computes
            set_limits(RLIMIT_CPU=CHILD_SECONDS, RLIMIT_NPROC=0)
            _lock_process(for_good=True)
            os.write(sink, json.dumps(function()).encode())
        finally:
            os._exit(0)
    os.close(sink)
    with os.fdopen(source, "rb") as pipe:
        written = pipe.read(1 << 16)
    _, status, used = os.wait4(child, 0)
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL and used.ru_utime + used.ru_stime < BUDGET:
        raise ChildProcessError("the child was killed")
    try:
        return json.loads(written)
    except (ValueError, RecursionError):
        return None


# ---------------------------------------------------------------------------------------------------------- mathematics


WARM_UP = (
    ("x^2+2x+1", "(x+1)^2"),
    ("\\frac{\\sqrt{8}}{2}", "\\sqrt{2}"),
    ("(1,2]\\cup[3,\\infty)", "[3,\\infty)\\cup(1,2]"),
    ("\\{1,2\\}", "2,1"),
    ("\\begin{pmatrix} 1 & 2 \\end{pmatrix}", "\\begin{pmatrix} 1 & 2 \\end{pmatrix}"),
    ("\\sin x", "\\cos(\\frac{\\pi}{2}-x)"),
)

MIXED_NUMBER = re.compile(r"(?<![0-9.,^_}])([0-9]{1,9})\s*(\\frac\{[0-9]{1,9}\}\{[0-9]{1,9}\})")
PRODUCT = re.compile(
    r"(?<=[0-9)])(?<!_[0-9])\s*(?=\()|(?<=\))\s*(?=[0-9]|\\frac)|(?P<frac>\\frac\{[^{}]*\}\{[^{}]*\})\s*(?=[0-9({]|\\frac)"
)
"""The parser takes every two numbers side by side for a mixed one, and `2(3)` for 5."""


def _mark_operations(latex: str) -> str:
    """Write out the sum in `2\\frac{1}{2}` and the product in `2(3)`."""
    latex = MIXED_NUMBER.sub(r"(\1+\2)", latex)
    return PRODUCT.sub(lambda found: f"{found['frac'] or ''}\\cdot ", latex)


def _load_math_operations() -> Operations:
    from latex2sympy2_extended.latex2sympy2 import NormalizationConfig, latex2sympy, normalize_latex
    from math_verify import verify
    from math_verify.grader import should_treat_as_complex

    def read(text: str, units: bool) -> list[Any]:
        # The whole text is one expression or none. Who searches it for something to read finds a 5 in `6) 5`.
        layout = NormalizationConfig(basic_latex=True, units=units, malformed_operators=True, nits=True, boxed="none")
        latex = _mark_operations(normalize_latex(text, layout))
        try:
            return [latex2sympy(latex, is_real=not should_treat_as_complex(latex), normalization_config=None), latex]
        except Exception:
            return [latex]  # a text that is no mathematics still equals itself

    def is_equal(gold: str, answer: str, units: bool = False) -> bool:
        return bool(verify(read(gold, units), read(answer, units), timeout_seconds=None))

    def equal(gold: str, answer: str, units: bool = False) -> bool:
        return _run_in_child(lambda: is_equal(gold, answer, units)) is True

    # The first expressions build tables and import the rest of sympy: not on the time of somebody's answer.
    for gold, answer in WARM_UP:
        is_equal(gold, answer)
    return {"equal": equal}


# -------------------------------------------------------------------------------------------------------- reasoning-gym


def _load_gym_operations() -> Operations:
    from reasoning_gym.factory import DATASETS, create_dataset

    datasets: OrderedDict[str, Any] = OrderedDict()
    entries: OrderedDict[tuple[str, int], Any] = OrderedDict()

    def names() -> list[str]:
        return sorted(DATASETS)

    def inspect_dataset(name: str) -> dict[str, Any]:
        dataset, config = DATASETS[name]
        return {"fields": list(inspect.signature(config).parameters), "evaluates": _find_evaluators(dataset)}

    def dataset_of(name: str, config: dict[str, Any], seed: int) -> tuple[str, Any]:
        key = json.dumps([name, config, seed], sort_keys=True)
        if key not in datasets:
            remember(datasets, key, create_dataset(name, **config, seed=seed, size=BLOCK), KEPT_DATASETS)
        return key, datasets[key]

    def entry_of(name: str, config: dict[str, Any], seed: int, index: int) -> tuple[Any, Any]:
        key, dataset = dataset_of(name, config, seed)
        if (key, index) not in entries:
            remember(entries, (key, index), dataset[index], KEPT_ENTRIES)
        return dataset, entries[key, index]

    def prepare(name: str, config: dict[str, Any], seed: int, index: int) -> bool:
        entry_of(name, config, seed, index)
        return True

    def draw(name: str, config: dict[str, Any], seed: int, start: int) -> list[list[str]]:
        """Questions and answers from `start` on: as many as a moment allows, and at least one."""
        end = time.monotonic() + DRAW_SECONDS
        drawn: list[list[str]] = []
        while start + len(drawn) < BLOCK and (not drawn or time.monotonic() < end):
            entry = entry_of(name, config, seed, start + len(drawn))[1]
            drawn.append([str(entry["question"]), "" if entry["answer"] is None else str(entry["answer"])])
        return drawn

    def score(name: str, config: dict[str, Any], seed: int, index: int, answer: str, alone: bool) -> float:
        dataset, entry = entry_of(name, config, seed, index)
        grade = functools.partial(dataset.score_answer, answer, entry)
        return float((_run_in_child if alone else _run_in_time)(lambda: float(grade())) or 0.0)

    return {"names": names, "inspect": inspect_dataset, "prepare": prepare, "draw": draw, "score": score}


def remember(store: OrderedDict[Any, Any], key: Any, value: Any, most: int) -> None:
    store[key] = value
    if len(store) > most:
        store.popitem(last=False)


EVALUATORS = (builtins.eval, builtins.exec, builtins.compile, builtins.__import__)


def _find_evaluators(dataset: type) -> list[str]:
    """Find what evaluates text and is reachable from a data set's grader within its package: `eval`, `exec`, sympy."""
    found: set[str] = set()
    seen: set[Any] = set()
    waiting: list[Any] = [dataset.score_answer]  # type: ignore[attr-defined]
    while waiting:
        function = waiting.pop()
        if function in seen:
            continue
        seen.add(function)
        for name, target in _find_references(function, dataset):
            module = str(getattr(target, "__module__", ""))
            if any(target is known for known in EVALUATORS) or module.startswith("sympy"):
                found.add(f"{name} in {function.__qualname__}")
            elif module.startswith("reasoning_gym"):
                members = vars(target).values() if inspect.isclass(target) else [target]
                waiting += [f for m in members if isinstance(f := getattr(m, "__func__", m), FunctionType)]
    return sorted(found)


def _find_references(function: FunctionType, owner: type) -> list[tuple[str, Any]]:
    """Find the functions and classes that a function's source refers to by a global name, through `self`, or in a module."""
    if "reasoning_gym" not in function.__code__.co_filename:
        return []  # written by `dataclass`, which evaluates nothing of what it is given
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    scope = {**vars(builtins), **function.__globals__, "self": owner, "cls": owner}
    out: list[tuple[str, Any]] = []
    for node in ast.walk(tree):
        target: Any = None
        if isinstance(node, ast.Name):
            target = scope.get(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            place = scope.get(node.value.id)
            target = getattr(place, node.attr, None) if isinstance(place, type | ModuleType) else None
        if callable(target) and target is not owner:
            out.append((ast.unparse(node), target))
    return out


if __name__ == "__main__":
    main()
