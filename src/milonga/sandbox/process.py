"""One process for one program: started beforehand, used once, and gone when `run` or `discard` returns.

Invariants:
- The program's time begins when its process has said that it is ready. A process that never gets there is our fault.
- Output is read while the program runs and is bounded; when a bound is passed, everything is killed, by a signal that
  nothing can catch.
- Afterwards no process is left, no descriptor and no file.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import selectors
import signal
import subprocess
import time
from collections.abc import Iterator

from milonga.sandbox.folders import make_folder
from milonga.sandbox.isolation import Level, Mount, build_command, build_environment, build_filter
from milonga.sandbox.program import Limits, Outcome, Program
from milonga.sandbox.verdict import Ended, Killed, encode_request, judge_outcome, max_result_bytes

START_S = 60.0
"""For an interpreter to start, on a machine that is busy with other things."""
GONE_S = 10.0
"""For what was killed to be gone."""
CHUNK = 1 << 16


class NotStarted(Exception):
    """The process ended, or was late, before it had a program."""


class SingleUse:
    """An interpreter that waits for its program."""

    def __init__(
        self, level: Level, limits: Limits, seed: int, mounts: tuple[Mount, ...] = (), wires: tuple[int, ...] = ()
    ) -> None:
        """`wires` are descriptors that the process has too, under the same numbers."""
        self.level, self.limits, self.seed = level, limits, seed
        with contextlib.ExitStack() as made:
            folder = "/"
            if level == "limited":
                folder = made.enter_context(make_folder())
            ends = [os.pipe() for _ in range(2)]
            self._result, self._info = (made.enter_context(open(source, "rb", buffering=0)) for source, _ in ends)
            sinks = [sink for _, sink in ends]
            with open_filled_pipe(build_filter(level)) as code:
                try:
                    self.process = subprocess.Popen(
                        build_command(level, limits, seed, sinks[0], code, sinks[1], mounts),
                        stdin=subprocess.PIPE,
                        stdout=subprocess.PIPE,
                        stderr=subprocess.PIPE,
                        bufsize=0,
                        pass_fds=(*sinks, code, *wires),
                        env=build_environment(level, seed),
                        cwd=folder,
                        start_new_session=True,  # a group of its own, to be killed as one; and no terminal
                    )
                finally:
                    for sink in sinks:
                        os.close(sink)
            assert self.process.stdin and self.process.stdout and self.process.stderr
            for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
                made.enter_context(pipe)
            self._made = made.pop_all()
        self._streams = {
            "stdout": self.process.stdout.fileno(),
            "stderr": self.process.stderr.fileno(),
            "result": self._result.fileno(),
        }
        self._kept = {name: bytearray() for name in self._streams}
        self._cpu_s = self._begun = 0.0
        self._inner: int | None = None
        """A handle on the process that bubblewrap started. With it goes everything in its namespace."""

    def run(self, program: Program) -> Outcome:
        """Run the program and return its outcome. The process is gone afterwards, and cannot be used again."""
        token = secrets.token_hex(16)
        try:
            started = self._wait_ready()
            if started is None:
                code = self._terminate("wall").code
                said = self._kept["stderr"].decode(errors="replace")[-500:].strip()
                raise NotStarted(f"the process did not start (exit code {code}): {said}")
            self._begun = time.monotonic()
            deadline = self._begun + self.limits.wall_s
            killed = self._converse(encode_request(program, token), deadline, max_result_bytes(program))
            return judge_outcome(program, self.level, self.limits, token, started, self._terminate(killed))
        finally:
            self.discard()

    def _wait_ready(self) -> float | None:
        """Wait until the process is ready; return the CPU seconds that starting took, None if it ended or is late."""
        deadline = time.monotonic() + START_S
        said = self._kept["result"]
        with selectors.DefaultSelector() as selector:
            for name in ("result", "stderr"):
                selector.register(self._streams[name], selectors.EVENT_READ, name)
            while not said.endswith(b"\n"):
                for key, _ in selector.select(max(0.0, deadline - time.monotonic())):
                    data = os.read(key.fd, CHUNK)
                    self._kept[key.data] += data
                    if not data:
                        return None
                if time.monotonic() > deadline:
                    return None
        word, _, seconds = bytes(said).decode().strip().partition(" ")
        said.clear()
        if self.level == "isolated":
            try:
                self._inner = os.pidfd_open(json.loads(self._info.read(CHUNK) or b"")["child-pid"])
            except (OSError, ValueError, KeyError):
                return None  # it ended meanwhile
        return float(seconds) if word == "ready" else None

    def _converse(self, request: bytes, deadline: float, most: int) -> Killed:
        """Send the request and read until the process has ended or must be killed; return why it was killed."""
        bounds = {"stdout": self.limits.output_kb << 10, "stderr": self.limits.output_kb << 10, "result": most}
        assert self.process.stdin
        stdin, left = self.process.stdin.fileno(), memoryview(request)
        os.set_blocking(stdin, False)
        with selectors.DefaultSelector() as selector:
            selector.register(stdin, selectors.EVENT_WRITE)
            for name, descriptor in self._streams.items():
                selector.register(descriptor, selectors.EVENT_READ, name)
            while len(selector.get_map()) > (stdin in selector.get_map()):
                if (rest := deadline - time.monotonic()) <= 0:
                    return "wall"
                for key, _ in selector.select(rest):
                    if key.fd == stdin:
                        left = self._feed(stdin, left)
                        if not left:
                            selector.unregister(stdin)
                            self.process.stdin.close()
                        continue
                    data = os.read(key.fd, CHUNK)
                    self._kept[key.data] += data
                    if not data:
                        selector.unregister(key.fd)
                    elif len(self._kept[key.data]) > bounds[key.data]:
                        return "result" if key.data == "result" else "output"
        while not self.has_ended():  # it may have closed its descriptors and live on
            if time.monotonic() > deadline:
                return "wall"
            time.sleep(0.001)
        return ""

    def _feed(self, stdin: int, left: memoryview) -> memoryview:
        """Write some of the input; return what remains, empty if nobody reads it."""
        try:
            return left[os.write(stdin, left[:CHUNK]) :]
        except BlockingIOError:
            return left
        except OSError:
            return left[:0]

    def has_ended(self) -> bool:
        """Whether the process is over. It is not reaped here: its number stays its own until its group is killed."""
        return os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def _terminate(self, killed: Killed) -> Ended:
        """Kill what is left, wait until it is gone, and return what is known of it."""
        if self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            if self._inner is not None:
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(self._inner, signal.SIGKILL)
            _, status, usage = os.wait4(self.process.pid, 0)
            self.process.returncode = os.waitstatus_to_exitcode(status)
            self._cpu_s = usage.ru_utime + usage.ru_stime
        elapsed = time.monotonic() - self._begun
        output = {name: bytes(kept) for name, kept in self._kept.items()}
        return Ended(self.process.returncode, self._cpu_s, killed, self._is_gone(), elapsed, **output)

    def _is_gone(self) -> bool:
        """Whether what ran behind bubblewrap is gone too. It dies when bubblewrap does, but a moment later."""
        if self._inner is None:
            return True
        with selectors.DefaultSelector() as selector:
            selector.register(self._inner, selectors.EVENT_READ)
            return bool(selector.select(GONE_S))

    def discard(self) -> None:
        """End the process, whatever it does, and forget it."""
        if self.process.returncode is None:
            if self.level == "isolated" and self._inner is None:
                self._wait_ready()  # so that there is a handle on all of it
            self._terminate("wall")
        if self._inner is not None:
            os.close(self._inner)
            self._inner = None
        self._made.close()


@contextlib.contextmanager
def open_filled_pipe(data: bytes) -> Iterator[int]:
    """Open a pipe filled with the data; yield its read descriptor. The data are far less than a pipe holds."""
    source, sink = os.pipe()
    try:
        os.write(sink, data)
        os.close(sink)
        yield source
    finally:
        os.close(source)
