"""An hour of mixed load on `milonga serve`: every answer is right or a refusal, and its memory stays flat. `make soak`.

    python scripts/soak_serve.py --out docs/results/soak/serve.json
    python scripts/soak_serve.py --minutes 1      # the script itself

A pair of two turns is trained and served by the real command. Threads ask it what it can answer, and compare every answer with
the first one to the same request; others send what is no request, stop in the middle, send or read too slowly, open too many
connections, or send much. The exit code is 1 if an answer was wrong, a status unexpected, anything logged, or if memory,
descriptors or threads grew.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from server_attacks import (
    BODIES,
    CLOSE,
    HOST,
    JSON,
    MALFORMED,
    UNUSUAL,
    exchange,
    iterate_mutants,
    list_statuses,
    write_head,
    write_post,
)

GROWTH = 32.0
"""Most MiB by which the median memory may grow after the first sixth of the time. An hour has some 50,000 requests: a leak of
one kilobyte a request would be 50 MiB. What the allocator keeps and gives back moves it by some MiB either way."""
SPARE = 2
"""Most descriptors more than at the start, when all clients have gone: the event loop may hold a few of its own."""
EVERY = 10.0
"""Seconds between two looks at the server."""
BUSY = (429, 503)
"""Statuses of requests that could be answered, at another time."""
BODY, PATIENCE = 1 << 20, 10.0
"""Of the server: most bytes of a body, most seconds for a head."""


@dataclass
class Tally:
    """What was asked and what came back. Used by all threads."""

    counts: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    slowest: float = 0.0
    floods: int = 0
    """How often a flood of connections began or ended: good clients may be refused while it is odd, or has changed."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def note(self, kind: str, what: object, fine: bool, detail: object = "") -> None:
        with self._lock:
            self.counts[f"{kind}: {what}"] += 1
            if not fine:
                self.failures.append(f"{kind}: {what} {detail!r:.300}")
                print(self.failures[-1], file=sys.stderr, flush=True)

    def note_time(self, seconds: float) -> None:
        with self._lock:
            self.slowest = max(self.slowest, seconds)


@dataclass(frozen=True)
class Load:
    """A server under load: where it listens, requests with their right answers, and the tally."""

    port: int
    known: tuple[tuple[bytes, bytes], ...]
    tally: Tally


def write_requests() -> list[bytes]:
    """Requests that can be answered: every way to rank, one solution and several, one check and several, one item and many."""
    questions = [{"question": f"{n}+4*5%100", "id": n} for n in range(6)]
    solve: list[dict[str, Any]] = [{"problems": [question], "best_of": 1} for question in questions]
    solve += [{"problems": questions[:2], "best_of": 4, "rank": rank, "seed": 7} for rank in ("verifier", "vote", "both")]
    solve += [{"problems": questions, "best_of": 8}]
    steps = ["3+4=7", "7*5=36"]
    verify = [{"solutions": [{"problem": f"{n}+4*5%100", "steps": steps}] * (n + 1), "checks": n + 1} for n in range(4)]
    return [write_post(b"/solve", json.dumps(each).encode()) for each in solve] + [
        write_post(b"/verify", json.dumps(each).encode()) for each in verify
    ]


def learn_answers(port: int, requests: list[bytes]) -> tuple[tuple[bytes, bytes], ...]:
    """Ask every request once, alone."""
    found = []
    for request in requests:
        answer = exchange(port, request)
        if list_statuses(answer) != (200,):
            raise SystemExit(f"not answered: {request!r:.200} {answer!r:.200}")
        found.append((request, answer.partition(b"\r\n\r\n")[2]))
    return tuple(found)


def ask(load: Load, rng: random.Random) -> None:
    """A good request: the right answer, or none for now."""
    request, right = rng.choice(load.known)
    before, start = load.tally.floods, time.monotonic()
    answer = exchange(load.port, request)
    load.tally.note_time(time.monotonic() - start)
    flooded = bool(before % 2) or load.tally.floods != before
    statuses = list_statuses(answer)
    if statuses == (200,):
        load.tally.note("good", 200, answer.partition(b"\r\n\r\n")[2] == right, answer)
    elif len(statuses) == 1 and statuses[0] in BUSY:
        load.tally.note("good", statuses[0], statuses[0] == 503 or flooded, answer)
    else:  # a refused connection may be reset before its refusal is read
        load.tally.note("good", statuses or "reset", flooded and not statuses, answer)


def ask_together(load: Load, rng: random.Random) -> None:
    """A burst of good requests: they share batches, or fill the queue."""
    clients = [threading.Thread(target=ask, args=(load, random.Random(rng.random()))) for _ in range(rng.randint(2, 24))]
    for client in clients:
        client.start()
    for client in clients:
        client.join()


def attack(load: Load, rng: random.Random) -> None:
    """A hostile request, or a mutant of one: refused as it should be, or by any 4xx."""
    if rng.random() < 0.5:
        chosen = rng.choice((*MALFORMED, *UNUSUAL, *BODIES))
        statuses = list_statuses(exchange(load.port, chosen.data))
        load.tally.note("hostile", statuses[-1:], statuses in (chosen.statuses, (), (429,)), f"{chosen.name} {statuses}")
    else:
        data = next(iterate_mutants(rng))
        statuses = list_statuses(exchange(load.port, data, half=True))
        load.tally.note("mutant", statuses[-1:], all(200 <= status < 500 or status == 503 for status in statuses), data)


def leave(load: Load, rng: random.Random) -> None:
    """A client that closes its connection in the middle: of the request, of the wait, of the answer."""
    request, _ = rng.choice(load.known)
    with suppress(ConnectionError), socket.create_connection(("127.0.0.1", load.port), timeout=60) as raw:
        if rng.random() < 0.5:
            raw.sendall(request[: rng.randrange(len(request))])
        else:
            raw.sendall(request)
            if rng.random() < 0.5:
                time.sleep(rng.uniform(0, 0.2))
            else:
                raw.recv(rng.randint(1, 400))
    load.tally.note("left", "", True)


def stall(load: Load, rng: random.Random) -> None:
    """A client that stops sending, and waits: told so after a head or a body took too long."""
    request, _ = rng.choice(load.known)
    head = request.index(b"\r\n\r\n") + 4
    cut = rng.randrange(1, head - 1) if rng.random() < 0.7 else rng.randrange(head, len(request))
    statuses = list_statuses(exchange(load.port, request[:cut]))
    load.tally.note("stalled", statuses, statuses in ((408,), (), (429,)), cut)


def trickle(load: Load, rng: random.Random) -> None:
    """A client that sends a good request in small pieces, within its time."""
    request, right = rng.choice(load.known)
    before, back, begun, late = load.tally.floods, bytearray(), time.monotonic(), False
    with suppress(ConnectionError), socket.create_connection(("127.0.0.1", load.port), timeout=60) as raw:
        size = max(1, len(request) // 20)
        for start in range(0, len(request), size):
            raw.sendall(request[start : start + size])
            time.sleep(rng.uniform(0, 0.2))
        late = time.monotonic() - begun > PATIENCE / 2  # on a busy machine this client may be slower than it means to be
        while piece := raw.recv(7):
            back += piece
    flooded = bool(before % 2) or load.tally.floods != before
    statuses = list_statuses(bytes(back))
    fine = back.partition(b"\r\n\r\n")[2] == right if statuses == (200,) else statuses == (503,) or flooded or late
    load.tally.note("trickled", statuses, fine, bytes(back))


def send_much(load: Load, rng: random.Random) -> None:
    """A body near the limit, which is answered, one beyond it, or one without an announced length."""
    filling = "x" * rng.choice((BODY // 2, BODY - 200, BODY + 1, 4 * BODY))
    body = json.dumps({"problems": [{"question": "1+1%100", "note": filling}], "best_of": 1}).encode()
    request = write_post(b"/solve", body)
    if rng.random() < 0.5:
        pieces = [body[start : start + 50_000] for start in range(0, len(body), 50_000)]
        chunks = b"".join(b"%x\r\n" % len(piece) + piece + b"\r\n" for piece in pieces)
        head = write_head(b"POST", b"/solve", HOST, JSON, b"Transfer-Encoding: chunked\r\nConnection: close\r\n")
        request = head + chunks + b"0\r\n\r\n"
    statuses = list_statuses(exchange(load.port, request))
    allowed = (200, *BUSY) if len(body) <= BODY else (413, 429)
    load.tally.note("much", statuses, not statuses or statuses[0] in allowed, len(body))


def neglect(load: Load, rng: random.Random) -> None:
    """A client that does not read its answer, which is long: an id comes back. The server ends the connection."""
    solution = {"problem": "3+4*5%100", "steps": ["3+4=7"], "id": "x" * 900_000}
    with suppress(ConnectionError), socket.socket() as raw:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 12)
        raw.settimeout(60)
        raw.connect(("127.0.0.1", load.port))
        raw.sendall(write_post(b"/verify", json.dumps({"solutions": [solution]}).encode()))
        time.sleep(rng.uniform(30, 50))
    load.tally.note("neglected", "", True)


def flood(load: Load, rng: random.Random) -> None:
    """More connections than a client may have: some are refused, and all others are answered again when they are closed."""
    load.tally.floods += 1
    with ExitStack() as stack:
        for _ in range(300):
            with suppress(OSError):
                stack.enter_context(socket.create_connection(("127.0.0.1", load.port), timeout=60))
        time.sleep(rng.uniform(0, 2))
    while list_statuses(exchange(load.port, write_head(b"GET", b"/health", HOST, CLOSE))) != (200,):
        time.sleep(0.1)  # until the server has seen enough of them go
    time.sleep(1)
    load.tally.floods += 1
    load.tally.note("floods", "", True)


ACTORS: tuple[tuple[Callable[[Load, random.Random], None], int, float], ...] = (
    (ask, 3, 0.4),
    (ask_together, 1, 6.0),
    (attack, 2, 0.4),
    (leave, 2, 0.5),
    (stall, 4, 1.0),
    (trickle, 2, 1.0),
    (send_much, 1, 5.0),
    (neglect, 2, 1.0),
    (flood, 1, 60.0),
)
"""What threads do, how many of them, and how many seconds each pauses on average."""


def drive(load: Load, ended: threading.Event, seed: int, pace: float = 1.0) -> list[threading.Thread]:
    """Start all threads; each ends with the step that it is at. Pauses are divided by `pace`."""

    def repeat(step: Callable[[Load, random.Random], None], pause: float, rng: random.Random) -> None:
        while not ended.wait(min(rng.expovariate(1 / pause), 4 * pause) / pace):
            try:
                step(load, rng)
            except Exception as error:  # a client that broke would be missed silently
                load.tally.note(step.__name__, type(error).__name__, False, error)

    threads = [
        threading.Thread(target=repeat, args=(step, pause, random.Random(f"{seed}/{step.__name__}/{number}")), daemon=True)
        for step, count, pause in ACTORS
        for number in range(count)
    ]
    for thread in threads:
        thread.start()
    return threads


@dataclass(frozen=True)
class Sample:
    """A look at the server: seconds since the start, MiB, open descriptors, threads, seconds of processor time."""

    at: float
    memory: float
    descriptors: int
    threads: int
    processor: float


def look(pid: int, start: float) -> Sample:
    process = Path(f"/proc/{pid}")
    status = dict(line.split(":", 1) for line in (process / "status").read_text().splitlines() if ":" in line)
    ticks = [int(part) for part in (process / "stat").read_text().rpartition(")")[2].split()[11:13]]
    return Sample(
        time.monotonic() - start,
        int(status["VmRSS"].split()[0]) / 1024,
        len(os.listdir(process / "fd")),
        int(status["Threads"]),
        sum(ticks) / os.sysconf("SC_CLK_TCK"),
    )


def judge(samples: list[Sample], first: Sample, last: Sample) -> tuple[dict[str, Any], list[str]]:
    """What memory, descriptors and threads did, and what is wrong with that. `first` and `last` are without any client."""
    end = samples[-1].at
    settled = [sample.memory for sample in samples if end / 6 <= sample.at < end / 4]
    late = [sample.memory for sample in samples if sample.at >= end * 11 / 12]
    growth = statistics.median(late) - statistics.median(settled)
    spread = [sample for sample in samples if sample.at >= end / 6]
    found = {
        "memory_mib": {
            "idle_at_start": round(first.memory, 1),
            "settled": round(statistics.median(settled), 1),
            "at_end": round(statistics.median(late), 1),
            "growth": round(growth, 1),
            "growth_allowed": GROWTH,
            "most": round(max(sample.memory for sample in samples), 1),
            "over_time": [round(sample.memory, 1) for sample in samples[:: max(1, round(60 / EVERY))]],
        },
        "descriptors": {"idle_at_start": first.descriptors, "idle_at_end": last.descriptors},
        "threads": {"idle_at_start": first.threads, "idle_at_end": last.threads, "most": max(s.threads for s in spread)},
        "processor_share": round((last.processor - first.processor) / (last.at - first.at), 2),
    }
    wrong = []
    if growth > GROWTH:
        wrong.append(f"memory grew by {growth:.1f} MiB")
    if last.descriptors > first.descriptors + SPARE:
        wrong.append(f"descriptors: {first.descriptors}, then {last.descriptors}")
    if last.threads > first.threads:
        wrong.append(f"threads: {first.threads}, then {last.threads}")
    return found, wrong


def watch(pid: int, tally: Tally, seconds: float) -> list[Sample]:
    """Look at the server until the time is over, and print progress."""
    samples: list[Sample] = []
    start, every = time.monotonic(), min(EVERY, seconds / 60)
    while (left := start + seconds - time.monotonic()) > 0:
        time.sleep(min(every, left))
        samples.append(look(pid, start))
        if len(samples) % 6 == 0:
            now = samples[-1]
            print(
                f"{now.at:6.0f} s  {now.memory:7.1f} MiB  {now.descriptors} descriptors  {now.threads} threads  "
                f"{tally.counts.total()} requests  {len(tally.failures)} failures",
                file=sys.stderr,
                flush=True,
            )
    return samples


def train(folder: Path) -> Path:
    """A pair of two turns, by the real command."""
    run = folder / "tango"
    settings = ["task.ops=2", "batch.problems=4", "batch.rollouts=4", "eval.problems=4", "eval.bench=4", "threads=1"]
    flags = [part for setting in settings for part in ("--set", setting)]
    command = [sys.executable, "-m", "milonga", "run", "tango", "--turns", "2", "--no-probe", "--out", str(run), *flags]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return run


def start_server(run: Path, log: Path) -> tuple[subprocess.Popen[bytes], int]:
    """Serve the pair; return the process and its port."""
    command = [sys.executable, "-m", "milonga", "serve", str(run), "--port", "0", "--rate", "1000000", "--waiting", "32"]
    environment = {name: value for name, value in os.environ.items() if name != "MILONGA_TOKEN"}
    with log.open("wb") as sink:
        process = subprocess.Popen(command, stdout=sink, stderr=sink, env=environment)
    while b"Ctrl-C ends it" not in log.read_bytes():
        if process.poll() is not None:
            raise SystemExit(f"the server did not start: {log.read_text(errors='replace')[-500:]}")
        time.sleep(0.1)
    return process, int(log.read_text().partition("; Ctrl-C")[0].rpartition(":")[2])


def find_complaints(log: Path) -> list[str]:
    """Lines of the server's log that say that something went wrong: there must be none, whatever clients do."""
    marks = ("Traceback", "Error", "ERROR", "Exception", "WARNING")
    return [line[:300] for line in log.read_text(errors="replace").splitlines() if any(mark in line for mark in marks)]


def soak(run: Path, log: Path, seconds: float, seed: int) -> tuple[dict[str, Any], list[str]]:
    """Serve, drive and watch; return what was found, and what was wrong."""
    process, port = start_server(run, log)
    try:
        tally, start = Tally(), time.monotonic()
        load = Load(port, learn_answers(port, write_requests()), tally)
        first, ended = look(process.pid, start), threading.Event()
        threads = drive(load, ended, seed)
        samples = watch(process.pid, tally, seconds)
        ended.set()
        for thread in threads:
            thread.join(timeout=90)
        again = learn_answers(port, write_requests())
        time.sleep(15)  # until the last idle connections have been given up
        found, wrong = judge(samples, first, look(process.pid, start))
        process.send_signal(signal.SIGTERM)
        code = process.wait(timeout=60)
    finally:
        process.kill()
        process.wait()
    wrong += [] if again == load.known else ["answers at the end differ from those at the start"]
    wrong += [] if code == 0 else [f"the server ended with {code}"]
    wrong += [f"still running: {thread.name}" for thread in threads if thread.is_alive()]
    wrong += [f"logged: {line}" for line in find_complaints(log)]
    found |= {
        "requests": tally.counts.total(),
        "by_kind": dict(sorted(tally.counts.items())),
        "slowest_good_s": round(tally.slowest, 2),
    }
    return found, [*wrong, *tally.failures]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="milonga-soak-") as folder:
        run = train(Path(folder))
        found, wrong = soak(run, Path(folder) / "serve.log", asked.minutes * 60, asked.seed)
    result = {
        "seed": asked.seed,
        "minutes": asked.minutes,
        "date": datetime.now(UTC).date().isoformat(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "failures": wrong[:50],
        "failed": len(wrong),
    } | found
    text = json.dumps(result, indent=1) + "\n"
    if asked.out:
        asked.out.parent.mkdir(parents=True, exist_ok=True)
        asked.out.write_text(text)
    print(text)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
