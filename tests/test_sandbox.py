"""The sandbox: nothing escapes, nothing hangs, nothing is left behind; and what is honest is run."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from milonga.cli import doctor
from milonga.errors import UserError
from milonga.sandbox import (
    Failure,
    InvalidValue,
    IsolationError,
    Level,
    Limits,
    Outcome,
    Program,
    Sandbox,
    SandboxBroken,
    executor,
    folders,
    isolation,
    seccomp,
    to_canonical,
    verdict,
)
from sandbox_attacks import ATTACKS, Attack
from sandbox_bait import children, is_alive, laid, watched
from sandbox_helpers import opened, wait_until

LEVELS: tuple[Level, ...] = ("isolated", "limited")
IDENTITY = "def f(x):\n    return x\n"


@pytest.fixture(scope="module", params=LEVELS)
def sandbox(request: pytest.FixtureRequest) -> Iterator[Sandbox]:
    with opened(request.param) as made:
        yield made


def calling(source: str, *arguments: Any, times: int = 1) -> Program:
    return Program(source, "f", (arguments,) * times)


def one(sandbox: Sandbox, source: str, *arguments: Any) -> Outcome:
    return sandbox.run([calling(source, *arguments)])[0]


# ------------------------------------------------------------------------------------------------------ honest programs


def test_values_come_back_as_they_are(sandbox: Sandbox) -> None:
    values = [None, True, 1, -(10**300), 1.5, float("nan"), "é\ud800\0", b"\xff", [1, [2]], (1,), {3, 1}, {"a": {1: (2,)}}]
    outcome = sandbox.run([Program(IDENTITY, "f", tuple((value,) for value in values))])[0]
    assert outcome.status == "ok"
    assert outcome.results == tuple(to_canonical(value) for value in values)
    assert not outcome.mutates


def test_answers_are_data_wherever_they_end_up(sandbox: Sandbox) -> None:
    texts = ["1) or (True", "x\n# y", "lambda: 1", "{0.__class__}", "'''", "\\", '"]}\n{"token": 1}']
    outcome = sandbox.run([Program(IDENTITY, "f", tuple((text,) for text in texts))])[0]
    assert outcome.results == tuple(map(to_canonical, texts))


def test_each_call_has_its_own_result(sandbox: Sandbox) -> None:
    source = "def f(x):\n    if x > 2: raise KeyError(x)\n    return object if x == 2 else x"
    outcome = sandbox.run([Program(source, "f", ((1,), (2,), (3,), (1,)))])[0]
    assert outcome.status == "bad_output"
    first, second, third, last = outcome.results
    assert first == last == to_canonical(1)
    assert isinstance(second, Failure) and second.status == "bad_output"
    assert third == Failure("exception", "KeyError", "3")


def test_a_script_reads_and_prints(sandbox: Sandbox) -> None:
    script = "import sys\nif __name__ == '__main__':\n    print(sum(map(int, sys.stdin)))\n    sys.exit()"
    much = "1\n" * 200_000
    outcomes = sandbox.run([Program(script, stdin="1\n2\n"), Program(script, stdin=much), Program(script), Program("1/0")])
    assert [(o.status, o.stdout) for o in outcomes] == [("ok", "3\n"), ("ok", "200000\n"), ("ok", "0\n"), ("exception", "")]
    unread, left = sandbox.run([Program("print('done')", stdin=much), Program("import sys\nsys.exit(3)")])
    assert (unread.status, unread.stdout, left.status) == ("ok", "done\n", "exception")


def test_what_a_program_may_use(sandbox: Sandbox) -> None:
    source = """
import collections, dataclasses, functools, heapq, itertools, math, random, re, statistics, string, typing, json, decimal

@dataclasses.dataclass
class Point:
    x: int

def f(n):
    with open("note", "w") as file:
        file.write("kept")
    print("seen")
    return [Point(n).x, math.gcd(12, 18), open("note").read(), str(decimal.Decimal("1.10")), bool(re.match("a+", "aa"))]
"""
    outcome = one(sandbox, source, 4)
    assert outcome.results == (to_canonical([4, 6, "kept", "1.10", True]),), outcome
    assert outcome.stdout == "seen\n"


def test_changed_arguments_are_reported_and_do_not_reach_the_next_call(sandbox: Sandbox) -> None:
    outcome = sandbox.run([Program("def f(x):\n    x.append(1)\n    return len(x)", "f", (([],), ([],)))])[0]
    assert outcome.mutates
    assert outcome.results == (to_canonical(1), to_canonical(1))


def test_processor_time_is_that_of_the_program(sandbox: Sandbox) -> None:
    source = "import time\ndef f():\n    while time.process_time() < 0.4: pass"
    assert 0.2 < one(sandbox, source).cpu_s < 0.6
    assert one(sandbox, IDENTITY, 1).cpu_s < 0.2


def test_outcomes_come_in_order(sandbox: Sandbox) -> None:
    source = "import time\ndef f(n):\n    time.sleep(0.05 * (n % 3))\n    return n"
    outcomes = sandbox.run([calling(source, n) for n in range(12)])
    assert [o.results for o in outcomes] == [(to_canonical(n),) for n in range(12)]


def test_what_cannot_be_sent_is_the_callers_mistake(sandbox: Sandbox) -> None:
    with pytest.raises(InvalidValue):
        calling(IDENTITY, object())
    with pytest.raises(ValueError, match="name of the function"):
        Program("pass", None, ((1,),))
    assert one(sandbox, IDENTITY, 1).status == "ok"


# -------------------------------------------------------------------------------------------------------------- attacks


@pytest.mark.parametrize("level", LEVELS)
def test_every_attack_is_contained_and_leaves_nothing(level: Level, tmp_path: Path) -> None:
    """One batch: they would also meet one another's leftovers."""
    known = [each for each in ATTACKS if each.concerns(level) and (level == "isolated" or not each.slow)]
    files = set(os.listdir("/")) | set(os.listdir("/tmp"))
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with laid(tmp_path) as bait, watched() as seen:
        with opened(level, workers=4, wall_s=2.0) as sandbox:
            outcomes = sandbox.run([each.program(bait.words()) for each in (*known, *known[-5:])])
        assert bait.is_untouched()
    contained = [each.is_contained(outcome) for each, outcome in zip(known, outcomes, strict=False)]
    assert [(a.name, o) for a, o, fine in zip(known, outcomes, contained, strict=False) if not fine] == []
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory < 50_000
    assert len(seen) > len(known) / 2  # the watch worked
    assert wait_until(lambda: not any(map(is_alive, seen)))
    assert not {"milonga-escaped", "escaped"} & (set(os.listdir("/")) | set(os.listdir("/tmp"))) - files


SUCCEED = [
    "lock of the null device",
    "lock of a library",
    "locks without end",
    "pages of a library",
    "environment",
    "inherited descriptors",
    "secret file",
    "home folder",
    "accounts",
    "environment of the parent",
    "shell",
    "subprocess",
    "patient fork bomb",
    "connection",
    "local socket",
    "pair of sockets",
    "overwrites a file",
    "removes a file",
    "links out",
    "large file",
    "many open files",
    "system call ptrace, to be traced",
    "system call memfd_create",
    "system call prctl",
    "system call shmget",
    "system call fcntl, to be sent signals",
    "fills the scratch folder",
]


@pytest.mark.parametrize("name", SUCCEED)
def test_attacks_succeed_where_nothing_holds_them(name: str, tmp_path: Path) -> None:
    """In an ordinary process: what the sandbox withstands is not withstood by accident."""
    (attack,) = [each for each in ATTACKS if each.name == name]
    with laid(tmp_path) as bait:
        opened = [int(fd) for fd in os.listdir("/proc/self/fd")]  # of which tests before this one may have left many
        inherited = tuple(fd for fd in opened if fd > 2 and os.path.exists(f"/proc/self/fd/{fd}") and os.get_inheritable(fd))
        script = (
            f"{attack.source}\nimport os, sys\nsaid = attack({bait.words()!r})\nos.write(1, str(said).encode())\nos._exit(0)"
        )
        done = subprocess.run(
            [sys.executable, "-c", script], cwd=tmp_path, stdout=subprocess.PIPE, pass_fds=inherited, timeout=60, check=False
        )
    assert b"escaped" in done.stdout


def test_what_hangs_is_gone_in_time(sandbox: Sandbox) -> None:
    names = ("ignores all signals", "closes its descriptors and waits")
    sandbox.run([calling(IDENTITY, 1)] * 2)  # processes wait already
    waiting = children(os.getpid())
    start = time.monotonic()
    outcomes = sandbox.run([each.program({}) for each in ATTACKS if each.name in names])
    took = time.monotonic() - start
    assert [o.status for o in outcomes] == ["timeout", "timeout"]
    assert took < sandbox.limits.wall_s + 1
    assert not any(map(is_alive, waiting - children(os.getpid())))


def test_much_output_is_refused_at_once(sandbox: Sandbox) -> None:
    one(sandbox, IDENTITY, 1)
    start = time.monotonic()
    assert one(sandbox, "def f(): print('x' * 10 ** 7)").status == "output_too_large"
    assert one(sandbox, "import os\ndef f(): os.write(2, b'x' * 200_000)").status == "output_too_large"
    assert time.monotonic() - start < 3
    outcome = one(sandbox, "def f(): print('x' * 60_000)")
    assert (outcome.status, len(outcome.stdout)) == ("ok", 60_001)


def test_programs_share_nothing(sandbox: Sandbox) -> None:
    patch = "import builtins, sys\nbuiltins.sum = lambda x: 7\nsys.modules['math'] = None\ndef f(): return sum([])"
    plain = "import math\ndef f(): return sum([]) + math.floor(0.5)"
    patched, after = sandbox.run([calling(patch), calling(plain)])
    assert (patched.results, after.results) == ((to_canonical(7),), (to_canonical(0),))


MARKS = {
    "time": "os.utime('/dev/null')\n    return os.stat('/dev/null').st_mtime_ns",
    "lock": "fcntl.flock(FILE, fcntl.LOCK_EX | fcntl.LOCK_NB)\n    return 'mine alone'",
}


@pytest.mark.parametrize("name", MARKS)
def test_no_mark_on_what_all_programs_see_reaches_another(sandbox: Sandbox, name: str) -> None:
    """Not even one that is made meanwhile: here a lock by us on the library, which all of them read."""
    program = calling(f"import fcntl, os\nFILE = open(os.__file__)\ndef f():\n    {MARKS[name]}\n")
    with open(os.__file__) as library:
        before = sandbox.run([program] * 2)
        fcntl.flock(library, fcntl.LOCK_SH)
        after = [*sandbox.run([program] * 2), *sandbox.run_deterministic([program])]
    assert len({(each.status, each.results) for each in [*before, *after]}) == 1


SPELLINGS = [
    "import socket\ndef f(): return socket.socket() and 'escaped'",
    "import socket as s\ndef f(): return s.socket() and 'escaped'",
    "from socket import socket\ndef f(): return socket() and 'escaped'",
    "import importlib\ndef f(): return importlib.import_module('socket').socket() and 'escaped'",
    "def f(): return __import__('so' + 'cket').socket() and 'escaped'",
    "import ssl\ndef f(): return ssl._socket.socket() and 'escaped'",
    "def f():\n    exec('import socket')\n    return eval('socket.socket()', {'socket': __import__('socket')}) and 'escaped'",
]


def test_how_it_is_spelt_does_not_matter(sandbox: Sandbox) -> None:
    outcomes = sandbox.run([calling(source) for source in SPELLINGS])
    assert {(o.status, o.results[0]) for o in outcomes} == {
        ("exception", Failure("exception", "PermissionError", "[Errno 1] Operation not permitted"))
    }


# ---------------------------------------------------------------------------------------------------------- determinism

NONDETERMINISTIC = {
    "order of a set": "def f(): return list({'a', 'b', 'c', 'd', 'e', 'f'})",
    "hash": "def f(): return hash('a')",
    "id": "def f(): return id(f)",
    "repr": "def f(): return repr(object())",
    "time": "import time\ndef f(): return time.time()",
    "random": "import random\ndef f(): return random.random()",
    "pid": "import os\ndef f(): return os.getpid()",
    "counter": "n = 0\ndef f():\n    global n\n    n += 1\n    return n",
}
DETERMINISTIC = {
    "sorted set": "def f(): return sorted({'a', 'b', 'c', 'd'})",
    "a set itself": "def f(): return {'a', 'b', 'c', 'd'}",
    "own generator": "import random\ndef f(): return random.Random(3).random()",
    "recursion": "def f(n=9): return n if n < 2 else f(n - 1) + f(n - 2)",
    "local counter": "def f():\n    n = 0\n    for _ in range(5): n += 1\n    return n",
    "hash of an integer": "def f(): return hash(12)",
    "cache": "import functools\n@functools.cache\ndef f(): return 7",
    "time not shown": "import time\ndef f(): return time.time() > 0",
}


def test_what_differs_between_runs_is_found(sandbox: Sandbox) -> None:
    outcomes = sandbox.run_deterministic([calling(source) for source in NONDETERMINISTIC.values()])
    assert dict(zip(NONDETERMINISTIC, (o.status for o in outcomes), strict=True)) == dict.fromkeys(
        NONDETERMINISTIC, "nondeterministic"
    )


def test_what_looks_alike_is_admitted(sandbox: Sandbox) -> None:
    outcomes = sandbox.run_deterministic([calling(source) for source in DETERMINISTIC.values()])
    assert {name: o for name, o in zip(DETERMINISTIC, outcomes, strict=True) if o.status != "ok" or len(o.results) != 1} == {}


def test_failures_are_compared_by_kind(sandbox: Sandbox) -> None:
    sources = [
        "def f(): raise ValueError(object())",
        "import random\ndef f(): raise random.choice([type(str(n), (Exception,), {}) for n in range(1000)])",
    ]
    same, other, loud = sandbox.run_deterministic([*map(calling, sources), calling("def f(): print('x' * 10 ** 6)")])
    assert (same.status, other.status, loud.status) == ("exception", "nondeterministic", "output_too_large")
    printed, drawn = sandbox.run_deterministic([Program("print(1)"), Program("import random\nprint(random.random())")])
    assert (printed.status, drawn.status) == ("ok", "nondeterministic")


def test_the_order_of_sets_is_the_same_every_time(sandbox: Sandbox) -> None:
    program = calling("def f(): return [hash('a'), list({'a', 'b', 'c'})]")
    assert len({o.results for o in sandbox.run([program] * 4)}) == 1
    assert sandbox.run([program], seed=5)[0].results != sandbox.run([program])[0].results


# ------------------------------------------------------------------------------------------------ when something is wrong


@pytest.mark.parametrize(
    ("level", "number", "place"),
    [
        ("isolated", signal.SIGKILL, "outermost"),
        ("isolated", signal.SIGKILL, "innermost"),
        ("isolated", signal.SIGTERM, "innermost"),
        ("limited", signal.SIGKILL, "outermost"),
        ("limited", signal.SIGTERM, "outermost"),
    ],
)
def test_a_process_that_somebody_kills_is_our_fault_and_not_the_programs(level: Level, number: int, place: str) -> None:
    """On a seed by which the innermost process is no init, which would ignore a signal that can be ignored."""
    program = calling("import time\ndef f(): time.sleep(50)")
    done: list[Outcome] = []
    with opened(level, cpu_s=60, wall_s=60) as sandbox:
        thread = threading.Thread(target=lambda: done.extend(sandbox.run([program] * 2, seed=1)))
        thread.start()
        time.sleep(0.5)
        while thread.is_alive():  # also what waits to be used, and what is started in its place
            for pid in children(os.getpid()):
                if is_outermost(pid):
                    last = next(each for each in (pid, *children(pid)) if place == "outermost" or not children(each))
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(last, number)
            time.sleep(0.1)
        thread.join()
        assert [o.status for o in done] == ["sandbox_error", "sandbox_error"]
        assert one(sandbox, IDENTITY, 2).status == "ok"


def test_an_isolated_program_has_no_capability_and_a_filter() -> None:
    """Seen from outside, while it works: its process had one until it had bounded its scratch."""
    before = children(os.getpid())
    with opened("isolated", workers=1, wall_s=60, cpu_s=60) as sandbox:
        endless = calling("def f():\n    while True: pass")
        thread = threading.Thread(target=lambda: sandbox.run([endless]))
        thread.start()
        assert wait_until(lambda: any(map(is_working, children(os.getpid()) - before)), 30)
        for pid in filter(is_working, children(os.getpid()) - before):
            known = read_status(pid)
            held = {known[name] for name in ("CapInh", "CapPrm", "CapEff", "CapAmb")}
            assert (held, known["NoNewPrivs"], known["Seccomp"]) == ({"0" * 16}, "1", "2")
        for pid in filter(is_outermost, children(os.getpid())):
            os.kill(pid, signal.SIGKILL)
        thread.join()


def read_status(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def is_working(pid: int) -> bool:
    """Whether a process has used more processor time than starting takes."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return False
    return int(fields[11]) + int(fields[12]) > 0.4 * os.sysconf("SC_CLK_TCK")


def is_outermost(pid: int) -> bool:
    """Whether a process is the first of a program's."""
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
        parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return False
    return parent == os.getpid() and b"child.py" in command


LEFT = """
from milonga.sandbox import Limits, Program, Sandbox
with Sandbox(Limits(wall_s=60), "limited", allow_weak=True, workers=1) as sandbox:
    print("started", flush=True)
    sandbox.run([Program("open('mine', 'w').close()\\nimport time\\ntime.sleep(60)")])
"""


def test_folders_of_who_was_killed_are_removed_at_the_next_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened("limited").close()
    environment = {**os.environ, "PYTHONPATH": str(Path(executor.__file__).parents[2]), "TMPDIR": str(tmp_path)}
    (tmp_path / f"{folders.PREFIX}of-nobody").touch()
    (tmp_path / "milonga-runs").mkdir()
    monkeypatch.setattr(folders.tempfile, "tempdir", str(tmp_path))
    with subprocess.Popen([sys.executable, "-c", LEFT], stdout=subprocess.PIPE, env=environment) as process:
        assert wait_until(lambda: bool(list(tmp_path.glob("*/mine"))), 60)
        (left,) = [path.parent for path in tmp_path.glob("*/mine")]
        folders.remove_abandoned_folders()
        assert left.is_dir()  # its owner lives
        process.kill()
    assert left.is_dir()
    with opened("limited") as sandbox:
        assert one(sandbox, IDENTITY, 1).status == "ok"
    assert not left.exists()
    assert {f"{folders.PREFIX}of-nobody", "milonga-runs"} <= set(os.listdir(tmp_path))  # what is no folder of ours stays


def test_what_a_program_leaves_in_its_folder_can_be_removed(tmp_path: Path) -> None:
    root = tmp_path / "root"
    inner = root
    for name in "abc":
        inner /= name
        inner.mkdir(parents=True)
        (inner / "file").touch()
        (inner / "out").symlink_to(tmp_path)
    here = os.getcwd()
    try:
        os.chdir(inner)
        for _ in range(30):  # deeper than a path can go
            os.mkdir("d" * 200)
            os.chdir("d" * 200)
        os.mkdir("closed", 0)
    finally:
        os.chdir(here)
    (tmp_path / "kept").touch()
    folders.remove_tree(str(root))
    assert os.listdir(tmp_path) == ["kept"]


@pytest.mark.parametrize("level", LEVELS)
def test_programs_die_with_who_started_them(level: Level) -> None:
    opened(level).close()
    script = (
        "from milonga.sandbox import Limits, Program, Sandbox\n"
        f"with Sandbox(Limits(wall_s=60), {level!r}, allow_weak=True, workers=1) as sandbox:\n"
        "    print('started', flush=True)\n"
        "    sandbox.run([Program('import time\\ntime.sleep(60)')])\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(executor.__file__).parents[2])}
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, env=environment) as process:
        assert process.stdout and process.stdout.readline() == b"started\n"
        assert wait_until(lambda: len(children(process.pid)) >= 2)
        time.sleep(0.3)
        found = children(process.pid)
        process.kill()
    assert wait_until(lambda: not any(map(is_alive, found)))


def test_too_many_failures_of_ours_stop_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    with opened("isolated") as sandbox:
        monkeypatch.setattr(isolation, "FLAGS", ("--no-such-option",))
        assert {o.status for o in sandbox.run([calling(IDENTITY, 1)] * 4)} == {"sandbox_error"}
        with pytest.raises(SandboxBroken, match=r"8 of 8 programs could not be run.*did not start"):
            sandbox.run([calling(IDENTITY, 1)] * 4)


def test_a_closed_sandbox_runs_nothing_and_has_left_nothing() -> None:
    descriptors = len(os.listdir("/proc/self/fd"))
    before = children(os.getpid())
    with opened("limited", workers=3) as sandbox:
        sandbox.run([calling(IDENTITY, 1)] * 9)
        assert children(os.getpid()) - before
    assert children(os.getpid()) <= before
    assert len(os.listdir("/proc/self/fd")) == descriptors
    sandbox.close()
    with pytest.raises(RuntimeError, match="closed"):
        sandbox.run([])


def test_verdicts_are_the_same_on_a_busy_machine(sandbox: Sandbox) -> None:
    sources = [
        IDENTITY,
        "def f(x): return sum(range(10 ** 6))",
        "def f(x): raise ValueError",
        "def f(x):\n    print('x' * 10 ** 6)",
        "def f(x): return [0] * 10 ** 9",
        "def f(x): return f",
    ]
    programs = [calling(source, n) for n in range(5) for source in sources]
    idle = sandbox.run(programs)
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2 * (os.cpu_count() or 1))]
    try:
        loaded = sandbox.run(programs)
    finally:
        for process in busy:
            process.kill()
            process.wait()
    assert [(o.status, o.results) for o in idle] == [(o.status, o.results) for o in loaded]


# --------------------------------------------------------------------------------------------------------------- levels


def test_the_weak_level_must_be_allowed() -> None:
    with pytest.raises(IsolationError, match=r"'limited' lets programs read and write.*allow_weak_isolation = true") as caught:
        Sandbox(isolation="limited")
    assert isinstance(caught.value, UserError) and "\n" not in str(caught.value)


def test_a_missing_tool_is_named_and_a_weaker_level_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    opened("limited").close()
    monkeypatch.setattr(isolation.shutil, "which", lambda _: None)
    with pytest.raises(IsolationError, match=r"'isolated' is not to be had here: bubblewrap is not installed \(apt-get"):
        Sandbox()
    with Sandbox(allow_weak=True) as sandbox:
        assert sandbox.level == "limited"
        assert "bubblewrap is not installed" in sandbox.weaker_because
    with opened("limited") as sandbox:
        assert sandbox.weaker_because == ""


def test_isolation_is_measured_and_not_assumed(monkeypatch: pytest.MonkeyPatch) -> None:
    opened("isolated").close()
    honest = isolation.build_mount_arguments
    monkeypatch.setattr(isolation, "build_mount_arguments", lambda *a: [*honest(*a), "--ro-bind", "/etc", "/etc"])
    isolation.build_wrapper.cache_clear()
    try:
        with pytest.raises(IsolationError, match=r"can reach beyond it: \[\"accounts\"\]"):
            Sandbox()
    finally:
        isolation.build_wrapper.cache_clear()


def test_where_files_cannot_be_counted_programs_run_and_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    opened("isolated").close()
    assert executor.is_file_count_bounded() and "not bounded" not in doctor._describe_sandbox()
    monkeypatch.setattr(isolation, "_may_keep_capabilities", lambda _: False)  # as bubblewrap with a set-user-id bit
    with opened("isolated") as sandbox:
        assert one(sandbox, IDENTITY, 1).status == "ok"
    assert "number of a program's files is not bounded" in doctor._describe_sandbox()


def test_other_systems_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seccomp.platform, "machine", lambda: "riscv64")
    with pytest.raises(IsolationError, match="x86-64 or ARM64 alone"):
        Sandbox(allow_weak=True)


def test_numbers_of_calls_are_those_of_the_kernel() -> None:
    machine = seccomp.detect_architecture()
    headers = {"x86_64": ["/usr/include/x86_64-linux-gnu/asm/unistd_64.h", "/usr/include/asm/unistd_64.h"]}.get(
        machine or "", []
    )
    found = [path for path in map(Path, headers) if path.exists()]
    if not found:
        pytest.skip("no header of the kernel with numbers of calls (apt-get install linux-libc-dev)")
    known = dict(re.findall(r"#define __NR_(\w+) (\d+)", found[0].read_text()))
    assert {name: str(number) for name, number in seccomp.NUMBERS["x86_64"].items()}.items() <= known.items()
    assert len(set(seccomp.NUMBERS["aarch64"].values())) == len(seccomp.NUMBERS["aarch64"])


# ------------------------------------------------------------------------------------------------------------- verdicts

LINE = '{"token": "t", "failure": null, "results": [["1"]], "mutates": false}\n'
FORGED = [
    "",
    "\n",
    LINE[:-1],
    LINE + LINE,
    LINE + "\n",
    LINE[:20] + "\n",
    "[" * 9000 + "\n",
    "null\n",
    "[]\n",
    '"ok"\n',
    "NaN\n",
    LINE.replace('"t"', '"u"'),
    LINE.replace('"t"', "null"),
    LINE.replace('"mutates": false', '"mutates": 0'),
    LINE.replace("}", ', "status": "ok"}'),
    LINE.replace('"token": "t", ', ""),
    LINE.replace('[["1"]]', '[["1"], ["1"]]'),
    LINE.replace('[["1"]]', "[]"),
    LINE.replace('[["1"]]', '{"0": ["1"]}'),
    LINE.replace('["1"]', "[1]"),
    LINE.replace('["1"]', '["1 "]'),
    LINE.replace('["1"]', '["1.5"]'),
    LINE.replace('["1"]', '["ok", "", ""]'),
    LINE.replace('["1"]', '["timeout", "", ""]'),
    LINE.replace('["1"]', '["sandbox_error", "", ""]'),
    LINE.replace('["1"]', '["exception", "", 3]'),
    LINE.replace('["1"]', "null"),
    LINE.replace("null", '"ok"'),
    LINE.replace("null", '["ok", "", ""]'),
    LINE.replace("null", '["sandbox_error", "", ""]'),
]


@pytest.mark.parametrize("line", FORGED)
def test_a_line_that_is_not_exactly_ours_is_no_result(line: str) -> None:
    with pytest.raises(verdict.Forged):
        verdict.read(line.encode(), "t", 1)
    ended = verdict.Ended(0, 0.0, "", True, result=line.encode())
    outcome = verdict.judge_outcome(calling(IDENTITY, 1), "isolated", Limits(), "t", 0.0, ended)
    assert outcome.status == "bad_output"
    assert len(outcome.results) == 1


@pytest.mark.parametrize(
    ("level", "ended", "status"),
    [
        ("isolated", {"code": 0}, "ok"),
        ("isolated", {"code": 0, "cpu_s": 1.1}, "timeout"),
        ("isolated", {"code": 137, "cpu_s": 0.1}, "sandbox_error"),
        ("isolated", {"code": 137, "cpu_s": 1.0, "elapsed_s": 1.0}, "timeout"),
        ("isolated", {"code": 137, "cpu_s": 0.1, "elapsed_s": 1.0}, "timeout"),
        ("isolated", {"code": 137, "killed": "wall"}, "timeout"),
        ("isolated", {"code": 143, "elapsed_s": 3.0}, "sandbox_error"),
        ("isolated", {"code": 152}, "exception"),
        ("isolated", {"code": 139}, "exception"),
        ("isolated", {"code": 3}, "memory"),
        ("isolated", {"code": 1}, "exception"),
        ("isolated", {"code": -9}, "sandbox_error"),
        ("isolated", {"code": -9, "killed": "wall"}, "timeout"),
        ("isolated", {"code": -9, "killed": "output"}, "output_too_large"),
        ("isolated", {"code": -9, "killed": "result"}, "bad_output"),
        ("isolated", {"code": 0, "gone": False}, "sandbox_error"),
        ("limited", {"code": -9, "cpu_s": 1.0, "elapsed_s": 1.0}, "timeout"),
        ("limited", {"code": -9, "cpu_s": 0.1}, "sandbox_error"),
        ("limited", {"code": -9, "cpu_s": 0.1, "elapsed_s": 1.0}, "timeout"),
        ("limited", {"code": -15, "elapsed_s": 3.0}, "sandbox_error"),
        ("limited", {"code": -11}, "exception"),
    ],
)
def test_how_a_process_ended_says_what_came_of_it(level: Level, ended: dict[str, Any], status: str) -> None:
    known = verdict.Ended(**{"cpu_s": 0.0, "killed": "", "gone": True, "result": LINE.encode(), **ended})
    outcome = verdict.judge_outcome(calling(IDENTITY, 1), level, Limits(), "t", 0.0, known)
    assert outcome.status == status


def test_names_of_attacks_are_unique() -> None:
    assert len({each.name for each in ATTACKS}) == len(ATTACKS)
    assert all(isinstance(each, Attack) and each.accepted for each in ATTACKS)
