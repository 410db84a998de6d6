"""Grading in another process: model output is hostile, and third-party graders parse it, evaluate it, and hang on it.

Invariants:
- Nothing a model wrote is parsed by a third party in this process: here answers are only compared as strings and as
  decimals.
- The worker gets a scrubbed environment and an empty folder of its own; what passes between us is JSON, line by line.
- Graders that evaluate answers are confined besides: isolated as programs are, but for what is installed, which they need.
- An answer that is over-long, takes more than its processor time or makes its grader fail is wrong, and cheap. None ("could
  not tell") is for faults that are no answer's doing: a worker that is late by the clock or dies is killed with all its
  children and started anew, and the rest of the batch goes on.
- Results are cached, but for None.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections import Counter, OrderedDict
from collections.abc import Mapping, Sequence
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal, NamedTuple

from milonga.errors import MissingExtra, UserError
from milonga.sandbox import isolation
from milonga.sandbox.folders import make_folder, remove_abandoned_folders
from milonga.sandbox.process import open_filled_pipe
from milonga.tasks.answers import (
    Value,
    is_far,
    is_name,
    is_other_kind,
    is_refused,
    list_sides,
    normalise_answer,
    read_value,
    respell_layout,
    strip_dress,
    strip_frames,
    strip_note,
)

Kind = Literal["math", "gym"]
NEEDS: Mapping[Kind, tuple[str, str]] = {
    "math": ("math_verify", "math-verify"),
    "gym": ("reasoning_gym", "reasoning-gym"),
}
"""What a worker of each kind imports, and what the user knows it as; the extra has the name of the kind."""
START_LIMIT = 120.0
"""Seconds for a worker to import its graders, on a slow disk."""
WORK_LIMIT = 300.0
"""Seconds for what is slow without being hostile, such as generating a problem."""
REPLY_BYTES, GRADE_BYTES = 1 << 26, 1 << 16
"""Of a reply, and of one about an answer: that one is short, whoever writes it."""
PRODUCT = re.compile(r"[a-df-hj-np-z]{2}")
"""Two letters that are variables rather than a word: short words have an e, an i or an o."""
GRADES = ("equal", "score")
"""Operations on an answer."""
KEPT_VARIABLES = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "SYSTEMROOT", "PYTHONHOME")
"""What an interpreter may need in order to start, and nothing that a user keeps secret."""


class WorkerLostError(Exception):
    """The worker was late or died. Its message is the reason: `timeout` or `crash`."""


class WorkerError(Exception):
    """The worker is well, and what it was asked to do raised an exception."""


class Worker:
    """One process with the graders of one kind. After `WorkerLostError` it is dead, and another one has to be made."""

    def __init__(self, kind: Kind, memory: int, confined: bool = False, start_limit: float = START_LIMIT) -> None:
        require_package(kind)
        product = NEEDS[kind][1]
        remove_abandoned_folders()
        self._made = contextlib.ExitStack()
        self._folder = self._made.enter_context(make_folder())
        self._expired = False
        self._asked = 0
        self._open = True
        with open_filled_pipe(isolation.build_confined_filter()) if confined else contextlib.nullcontext() as code:
            self.process = subprocess.Popen(
                _build_worker_command(kind, memory, code),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                pass_fds=() if code is None else (code,),
                env=make_environment("/scratch") | isolation.find_own_library("isolated")
                if confined
                else make_environment(self._folder),
                cwd=self._folder,
                start_new_session=True,  # the whole group can be killed, and Ctrl-C reaches only us
            )
        try:
            self.ask("ready", [], start_limit)
        except WorkerLostError as lost:
            raise UserError(f"the grader for {product} did not start: {lost}; try again, or install {product} anew") from None
        except WorkerError as error:
            self.close()
            raise UserError(f"the grader for {product} did not start: {error}; install {product} anew") from None

    def ask(self, operation: str, arguments: Sequence[Any], limit: float) -> Any:
        """Return the operation's value; `WorkerError` if it raised, `WorkerLostError` if the worker is gone for good."""
        self._asked += 1
        request = {"id": self._asked, "do": operation, "with": arguments, "limit": limit}
        # A timer that kills also unblocks a write or a read that the worker no longer serves.
        watchdog = threading.Timer(limit, self._expire)
        watchdog.daemon = True
        watchdog.start()
        try:
            line = self._exchange(json.dumps(request).encode() + b"\n", GRADE_BYTES if operation in GRADES else REPLY_BYTES)
        except BaseException:
            self.close()  # interrupted: a reply that nobody waits for must not meet the next request
            raise
        finally:
            watchdog.cancel()
            watchdog.join()
        reply = decode_reply(line)
        if reply is None or reply["id"] != self._asked:
            self.close()
            raise WorkerLostError("timeout" if self._expired else "crash")
        if self._expired or reply.get("leaving"):
            self.close()
        if "error" in reply:
            raise WorkerError(reply["error"])
        return reply.get("value")

    def _exchange(self, request: bytes, most: int) -> bytes:
        assert self.process.stdin is not None and self.process.stdout is not None
        try:
            self.process.stdin.write(request)
            self.process.stdin.flush()
            return self.process.stdout.readline(most)
        except (OSError, ValueError):
            return b""

    def _expire(self) -> None:
        self._expired = True
        self._kill()

    def _kill(self) -> None:
        if self.process.returncode is not None:
            return  # reaped: its number may belong to somebody else by now
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if hasattr(os, "killpg"):
                os.killpg(self.process.pid, signal.SIGKILL)
            else:
                self.process.kill()

    @property
    def usable(self) -> bool:
        return self._open and self.process.poll() is None

    def close(self) -> None:
        if not self._open:
            return
        self._open = False
        self._kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            with contextlib.suppress(OSError):
                if pipe is not None:
                    pipe.close()
        self._made.close()


def _build_worker_command(kind: Kind, memory: int, code: int | None) -> list[str]:
    """Build the command of a worker; confined, if `code` is a descriptor with its seccomp filter."""
    script = str(Path(__file__).with_name("worker.py"))
    flags = ["-P", "-s", "-B"]
    if code is None:
        settings = {"kind": kind, "memory": memory, "path": [entry or os.getcwd() for entry in sys.path]}
        return [sys.executable, *flags, script, json.dumps(settings)]
    mounts, path = isolation.list_package_mounts()
    settings = {"kind": kind, "memory": memory, "path": path}
    mounts = [*mounts, isolation.Mount(script, "/worker.py")]
    return isolation.build_confined_command([*flags, "/worker.py", json.dumps(settings)], mounts, code)


def require_package(kind: Kind) -> None:
    """Raise if a package is missing: before models are loaded, and not at the first answer that needs it."""
    module, product = NEEDS[kind]
    if importlib.util.find_spec(module) is None:
        raise MissingExtra(product, kind)


def make_environment(folder: str) -> dict[str, str]:
    """Make the worker's whole environment. A fixed hash seed, because some generators iterate over sets of strings."""
    fixed = {"PATH": os.defpath, "LANG": "C.UTF-8", "PYTHONHASHSEED": "0", "HOME": folder, "TMPDIR": folder}
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    kept = {name: os.environ[name] for name in KEPT_VARIABLES if name in os.environ}
    return {**fixed, **threads, "MPLCONFIGDIR": folder, **kept}


def decode_reply(line: bytes) -> dict[str, Any] | None:
    """Decode a reply, or None for anything else; never raises: the line may have been written by a hostile answer."""
    try:
        reply = json.loads(line)
        is_reply = type(reply["id"]) is int and type(reply.get("error", "")) is str
    except Exception:  # whatever a line brings about, it is only no reply
        return None
    return reply if is_reply else None


class Cache:
    """The most recently used results, at most `size` of them."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._items: OrderedDict[Any, Any] = OrderedDict()

    def __contains__(self, key: object) -> bool:
        return key in self._items

    def __len__(self) -> int:
        return len(self._items)

    def get(self, key: Any) -> Any:
        self._items.move_to_end(key)
        return self._items[key]

    def put(self, key: Any, value: Any) -> None:
        self._items[key] = value
        if len(self._items) > self.size:
            self._items.popitem(last=False)


class Grader:
    """Grades batches in workers of its own, one per kind, started when first needed and closed at exit."""

    def __init__(self, limit: float = 30.0, memory: int = 4 << 30, cache: int = 100_000) -> None:
        self.limit = limit
        """Seconds on the clock to wait for one item. An answer has far less of processor time."""
        self.memory = memory
        """Bytes of address space of a worker."""
        self.counts: Counter[str] = Counter()
        """How items were decided: quick, cached, asked; and why not: timeout, crash, error."""
        self._cache = Cache(cache)
        self._workers: dict[tuple[Kind, bool], Worker] = {}
        """By kind, and whether they are confined."""
        self._prepared: tuple[Worker, list[Any]] | None = None
        """The problem that a worker has made ready; answers to one problem mostly come together."""
        self._lock = threading.RLock()
        self._owner = os.getpid()
        atexit.register(self.close)

    def compare_answers(self, pairs: Sequence[tuple[str, str]]) -> list[bool | None]:
        """Compare each (gold, answer) as mathematics; None if the grader could not tell."""
        return [self._compare_answer(normalise_answer(gold), normalise_answer(answer)) for gold, answer in pairs]

    def _compare_answer(self, gold: str, answer: str) -> bool | None:
        plan = plan_comparison(gold, answer)
        if isinstance(plan, bool):
            self.counts["quick"] += 1
            return plan
        found = [self._ask_cached("math", "equal", list(pair)) for pair in plan]
        return False if False in found else None if None in found else True

    def score(
        self,
        dataset: str,
        config: Mapping[str, Any],
        items: Sequence[tuple[int, int, str]],
        alone: bool = False,
        confined: bool = False,
    ) -> list[float | None]:
        """Reasoning-gym's own score of each (seed, index, answer) to problem `index` of the data set so seeded.

        `alone` gives every answer a process of its own, for graders that evaluate it: what it changes dies with it. `confined`
        puts all of them into the sandbox.
        """
        return [self._score([dataset, dict(config), seed, index, answer, alone], confined) for seed, index, answer in items]

    def _score(self, arguments: list[Any], confined: bool) -> float | None:
        value = self._ask_cached("gym", "score", arguments, confined)
        usable = isinstance(value, int | float) and -sys.float_info.max <= value <= sys.float_info.max
        return float(value) if usable else None

    def ask_gym(self, operation: str, *arguments: Any) -> Any:
        """Ask reasoning-gym: `names`, `inspect`, `draw`. No model output is involved: a failure is an error."""
        with self._lock:
            try:
                return self._get_worker("gym").ask(operation, arguments, WORK_LIMIT)
            except WorkerLostError as lost:
                raise WorkerError(str(lost)) from None

    def _ask_cached(self, kind: Kind, operation: str, arguments: list[Any], confined: bool = False) -> Any:
        key = (kind, confined, json.dumps(arguments, sort_keys=True))
        with self._lock:
            if key in self._cache:
                self.counts["cached"] += 1
                return self._cache.get(key)
            value = self._ask(kind, operation, arguments, confined)
            if value is not None:
                self._cache.put(key, value)
            return value

    def _ask(self, kind: Kind, operation: str, arguments: list[Any], confined: bool) -> Any:
        """Ask for one item's value; None with the reason counted."""
        worker = self._get_worker(kind, confined)
        self.counts["asked"] += 1
        try:
            if operation == "score" and self._prepared != (worker, arguments[:4]):
                worker.ask("prepare", arguments[:4], WORK_LIMIT)  # may be slow: it is not on the answer's time
                self._prepared = (worker, arguments[:4])
            return worker.ask(operation, arguments, self.limit)
        except WorkerLostError as lost:
            self.counts[str(lost)] += 1
        except WorkerError:
            self.counts["error"] += 1
        return None

    def _get_worker(self, kind: Kind, confined: bool = False) -> Worker:
        if self._owner != os.getpid():
            # A fork of our process must not speak through, or kill, the workers of its parent.
            self._workers, self._owner = {}, os.getpid()
        worker = self._workers.get((kind, confined))
        if worker is None or not worker.usable:
            if worker is not None:
                worker.close()
            worker = self._workers[kind, confined] = Worker(kind, self.memory, confined)
        return worker

    def start(self, kind: Kind) -> None:
        """Start the worker of a kind now, and not when it is first asked."""
        with self._lock:
            self._get_worker(kind)

    def close(self) -> None:
        with self._lock:
            if self._owner == os.getpid():
                for worker in self._workers.values():
                    worker.close()
            self._workers = {}

    def __enter__(self) -> Grader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
        atexit.unregister(self.close)


_shared: Grader | None = None


def get_shared_grader() -> Grader:
    """Return the grader that all tasks of this process share. It starts no process before it is asked."""
    global _shared
    if _shared is None:
        _shared = Grader()
    return _shared


def compare_quickly(gold: str, answer: str) -> bool | None:
    """Compare without a worker: equal strings, two numbers, and words; None if mathematics is needed."""
    found = plan_comparison(gold, answer)
    return found if isinstance(found, bool) else None


class Pair(NamedTuple):
    """Two expressions that must be equal; `units` says whether units behind them are left out."""

    gold: str
    answer: str
    units: bool = False


def plan_comparison(gold: str, answer: str) -> bool | list[Pair]:
    """Compare a normalised answer with the reference as far as that needs no worker. Return whether it is right, or the pairs
    of expressions that must all be equal for it to be right."""
    if gold == answer:
        return True
    gold, answer = _strip_name(respell_layout(gold)), respell_layout(strip_frames(answer))
    if not answer or is_refused(gold, answer):
        return False
    found = [_compare_side(gold, side) for side in list_sides(gold, answer)]
    if not found or False in found:
        return False
    return [pair for pair in found if not isinstance(pair, bool)] or True


def _strip_name(gold: str) -> str:
    """Strip the name from a reference such as `x = 4`; others stay as they are."""
    name, _, value = gold.partition("=")
    return value.strip() if is_name(name.strip()) and read_value(value.strip()) is not None else gold


def _compare_side(gold: str, answer: str) -> bool | Pair:
    value = read_value(gold)
    if value is not None:
        given = read_value(answer, value)
        if given is None:
            return False
        found = _compare_values(value, given)
        other = value.unit and given.unit and value.unit != given.unit
        return Pair(gold, answer, units=True) if found and other and "%" not in (value.unit, given.unit) else found
    if gold == answer:
        return True
    if _is_words(words := strip_dress(gold)):
        return words.casefold().split() == strip_dress(answer).casefold().split()
    return False if is_other_kind(gold, answer) else Pair(*strip_note(gold, answer))


def _compare_values(gold: Value, given: Value) -> bool | Pair:
    """Compare two numbers. A unit may be left out, and percent is a unit: `25%` is 25, and `500%` is not 5. A reference in
    percent may also be given as the number that it stands for."""
    if gold.unit and given.unit and (gold.unit == "%") != (given.unit == "%"):
        return False
    if gold.number is None or given.number is None:
        return gold.expression == given.expression or Pair(gold.expression, given.expression)
    if gold.number == given.number:
        return True
    if gold.unit == "%" and not given.unit and Fraction(gold.number) == 100 * Fraction(given.number):
        return True
    if isinstance(gold.number, Decimal) and isinstance(given.number, Decimal):
        return False
    return False if is_far(gold.number, given.number) else Pair(gold.expression, given.expression)


def _is_words(text: str) -> bool:
    """Whether a text is words and nothing else. As mathematics a word is the product of its letters, as is any anagram; two
    letters may well be one, and single ones with a sign between them a difference."""
    if not all(c.isalpha() or c in " '-" for c in text):
        return False
    return any(len(word) > 2 or (len(word) == 2 and not PRODUCT.fullmatch(word)) for word in re.split(r"[ '-]", text))
