"""Programs that try to get out, to hang, to lie or to leave something behind; and what may come of each.

Each is a function `attack(bait)`. It returns "escaped" if it got what it must not get; anything else that it returns is
harmless. `bait` names what is there to be had: a file with a secret, a port on which somebody listens, the parent's process,
and how secrets begin. They are run by the tests, and ten thousand times by `make soak`.
"""

from __future__ import annotations

import json
import random
import textwrap
from dataclasses import dataclass
from typing import Any

from milonga.sandbox.isolation import Level
from milonga.sandbox.program import Outcome, Program, Status
from milonga.sandbox.values import to_canonical
from sandbox_forgery import forge_line

ESCAPED = to_canonical("escaped")
STOPPED: frozenset[Status] = frozenset({"ok", "exception"})
"""The attempt was refused, and the program said so or raised."""


@dataclass(frozen=True)
class Attack:
    """A hostile program, how it may end, and the weakest level that withstands it."""

    name: str
    source: str
    accepted: frozenset[Status]
    level: Level = "limited"
    slow: bool = False
    """Whether it uses all its time."""

    def program(self, bait: dict[str, Any]) -> Program:
        return Program(self.source, "attack", ((bait,),))

    def is_contained(self, outcome: Outcome) -> bool:
        return outcome.status in self.accepted and ESCAPED not in outcome.results

    def concerns(self, level: Level) -> bool:
        """Whether a level claims to withstand it."""
        return level == "isolated" or self.level == "limited"


def attack(name: str, body: str, *accepted: Status, level: Level = "limited", slow: bool = False, before: str = "") -> Attack:
    """`body` is that of the function `attack`; `before` stands in front of it."""
    source = f"{textwrap.dedent(before)}\ndef attack(bait):\n{textwrap.indent(textwrap.dedent(body).strip(), '    ')}\n"
    return Attack(name, source, frozenset(accepted) or STOPPED, level, slow)


def call(name: str, x86: int, arm: int, *arguments: str) -> Attack:
    """A system call made directly, past everything that Python checks."""
    body = f"""
    import ctypes, os
    number = {x86} if os.uname().machine == "x86_64" else {arm}
    here = ctypes.create_string_buffer(4096)
    return "escaped" if ctypes.CDLL(None).syscall(number, {", ".join(arguments)}) >= 0 else "refused"
    """
    return attack(f"system call {name}", body)


TIME = [
    attack("endless loop", "while True: pass", "timeout", slow=True),
    attack("endless sleep", "import time\nwhile True: time.sleep(1000)", "timeout", slow=True),
    attack(
        "ignores all signals",
        """
        import signal, time
        for number in range(1, 65):
            try: signal.signal(number, signal.SIG_IGN)
            except (OSError, ValueError): pass
        while True: time.sleep(1000)
        """,
        "timeout",
        slow=True,
    ),
    attack(
        "catches everything",
        """
        while True:
            try:
                while True: pass
            except BaseException: pass
        """,
        "timeout",
        slow=True,
    ),
    attack(
        "closes its descriptors and waits", "import os, time\nos.closerange(0, 1024)\ntime.sleep(1000)", "timeout", slow=True
    ),
    attack("power without end", "return 10 ** 10 ** 8 % 7", "timeout", "memory", slow=True),
    attack("regular expression without end", "import re\nre.match('(a+)+$', 'a' * 60 + 'b')", "timeout", slow=True),
    attack(
        "raises its own limits",
        """
        import resource
        for name in ("RLIMIT_CPU", "RLIMIT_AS", "RLIMIT_NPROC", "RLIMIT_NOFILE"):
            try: resource.setrlimit(getattr(resource, name), (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
            except (OSError, ValueError): continue
            return "escaped"
        """,
    ),
    attack("lowers its own time", "import resource\nresource.setrlimit(resource.RLIMIT_CPU, (0, 0))\nreturn 'escaped'"),
    attack(
        "is awake at every tick",
        """
        import time
        tick = time.clock_getres(6)
        while True:
            now = time.clock_gettime_ns(6)
            while time.clock_gettime_ns(6) == now: pass
            time.sleep(0.75 * tick)
        """,
        "timeout",
        slow=True,
    ),
]

MEMORY = [
    attack("huge list", "return len([0] * 10 ** 10)", "memory", "timeout"),
    attack("huge string", "return len('x' * 10 ** 12)", "memory", "timeout"),
    attack("doubling", "x = b'x'\nwhile True: x = x + x", "memory", "timeout"),
    attack("growing dict", "x = {}\nwhile True: x[len(x)] = [0] * 1000", "memory", "timeout"),
    attack(
        "mapped memory", "import mmap\nx = []\nwhile True: x.append(mmap.mmap(-1, 1 << 24))", "exception", "memory", "timeout"
    ),
    attack(
        "takes all and goes on",
        """
        kept = []
        try:
            while True: kept.append(bytearray(1 << 16))
        except MemoryError:
            return "escaped" if len(kept) > 1 << 13 else len(kept)
        """,
        "ok",
        "memory",
        "bad_output",
        "timeout",
    ),
    attack("deep recursion", "return attack(bait)", "exception", "timeout"),
    attack(
        "recursion without a limit",
        "import sys\nsys.setrecursionlimit(10 ** 9)\nreturn attack(bait)",
        "memory",
        "exception",
        "timeout",
    ),
    attack(
        "deep C stack",
        """
        import sys
        sys.setrecursionlimit(10 ** 9)
        x = []
        for _ in range(10 ** 6): x = [x]
        return repr(x)[:0]
        """,
        "exception",
        "memory",
        "timeout",
    ),
    attack("deep value", "x = []\nfor _ in range(10 ** 5): x = [x]\nreturn x", "bad_output", "exception", "timeout"),
    attack("value in itself", "x = []\nx.append(x)\nreturn x", "bad_output"),
    attack("wide value", "return list(range(10 ** 6))", "bad_output", "timeout"),
    attack("long integer", "return 1 << 10 ** 6", "bad_output", "timeout"),
]

PROCESSES = [
    attack("fork bomb", "import os\nwhile True:\n    os.fork()", "exception"),
    attack(
        "patient fork bomb",
        """
        import os
        for _ in range(1000):
            try:
                os.fork()
            except OSError: continue
            return "escaped"
        """,
        "ok",
    ),
    attack(
        "thread bomb",
        "import threading, time\nwhile True: threading.Thread(target=time.sleep, args=(99,)).start()",
        "exception",
    ),
    attack("shell", "import os\nreturn 'escaped' if os.system('exit 0') == 0 else 0"),
    attack(
        "subprocess", "import subprocess, sys\nsubprocess.run([sys.executable, '-c', 'pass'], check=True)\nreturn 'escaped'"
    ),
    attack("spawn", "import os, sys\nos.posix_spawn(sys.executable, ['python', '-c', 'pass'], {})\nreturn 'escaped'"),
    attack("pool of processes", "import multiprocessing\nmultiprocessing.Pool(2)\nreturn 'escaped'"),
    attack(
        "becomes another program",
        "import os, sys\nos.execv(sys.executable, ['python', '-S', '-c', 'while True: pass'])",
        "exception",
    ),
]

OUTPUT = [
    attack("ten megabytes printed", "print('x' * 10 ** 7)", "output_too_large"),
    attack("endless output", "while True: print('x' * 1000)", "output_too_large"),
    attack("endless errors", "import sys\nwhile True: sys.stderr.write('x' * 1000)", "output_too_large"),
    attack("output past Python", "import os\nos.write(1, b'x' * 200_000)", "output_too_large"),
    attack(
        "flood of all descriptors",
        """
        import os
        for descriptor in range(3, 1024):
            try:
                while True: os.write(descriptor, b"x" * 4096)
            except OSError: pass
        """,
        "bad_output",
    ),
    attack("long exception", "raise ValueError('x' * 10 ** 7)", "exception"),
    attack("long name of an exception", "raise type('x' * 10 ** 6, (Exception,), {})", "exception"),
]

FIND_OURS = """
import sys
def ours():
    frame = sys._getframe()
    while frame is not None:
        yield frame
        frame = frame.f_back
def request():
    for frame in ours():
        if "request" in frame.f_locals: return frame.f_locals["request"], frame.f_locals.get("descriptor", 3)
def descriptor():
    for frame in ours():
        if "descriptor" in frame.f_locals: return frame.f_locals["descriptor"]
"""
LINE = '{"token": %s, "failure": null, "results": [%s], "mutates": false%s}'


def forged(name: str, *lines: str, token: str = "'00'") -> Attack:
    """Lines written to the descriptor of the result, as if by the harness."""
    body = f"""
    import json, os
    token = json.dumps({token})
    for line in {lines!r}:
        os.write(descriptor(), line.replace("%s", token).encode(errors="surrogateescape"))
    os._exit(0)
    """
    return attack(f"forged: {name}", body, "bad_output", before=FIND_OURS)


SAID: tuple[Status, ...] = ("ok", "syntax", "exception", "memory", "bad_output")
"""What a program can say of itself, in a line that it writes on its own."""
RESULTS = {
    "a number beyond floats": f'{{"float":1{"0" * 400}}}',
    "a list for a number": '{"float":[]}',
    "bytes of a number": '{"bytes":1}',
    "a member without a hash": '{"set":[[1]]}',
    "a dict of a number": f'{{"dict":1{"0" * 400}}}',
    "a long integer": "9" * 5000,
    "deep lists": "[" * 3000,
    "deep tuples": '{"tuple":[' * 500 + "]}" * 500,
}
"""Texts that are no canonical ones, each with an error of its own to whoever reads it carelessly."""


def forged_at_random(seed: int) -> Attack:
    """A line drawn at random, with the true token."""
    line = forge_line(random.Random(seed), "TOKEN")
    body = f"""
    import os
    os.write(descriptor(), {line!r}.replace(b"TOKEN", request()[0]["token"].encode()))
    os._exit(0)
    """
    return attack(f"forged at random: {seed}", body, *SAID, before=FIND_OURS)


TRUE_TOKEN = "request()[0]['token']"
FORGERY = [
    attack("prints a result", f"print({LINE % ('0', '[1]', '')!r})\nreturn 'other'", "ok"),
    forged("a line", LINE % ("%s", '["1"]', "") + "\n"),
    forged("half a line", LINE % ("%s", '["1"]', ""), token=TRUE_TOKEN),
    forged("two lines", LINE % ("%s", '["1"]', "") + "\n", LINE % ("%s", '["1"]', "") + "\n", token=TRUE_TOKEN),
    forged("another field", LINE % ("%s", '["1"]', ', "status": "ok"') + "\n", token=TRUE_TOKEN),
    forged("another count", LINE % ("%s", '["1"], ["1"]', "") + "\n", token=TRUE_TOKEN),
    forged("no canonical text", LINE % ("%s", '["{\\"set\\": [2, 1]}"]', "") + "\n", token=TRUE_TOKEN),
    forged("a status of ours", LINE % ("%s", '["sandbox_error", "", ""]', "") + "\n", token=TRUE_TOKEN),
    forged("no JSON", "[" * 5000 + "\n"),
    *(forged(name, LINE % ("%s", json.dumps([text]), "") + "\n", token=TRUE_TOKEN) for name, text in RESULTS.items()),
    forged("a deep failure", LINE.replace("null", "[" * 900 + "]" * 900) % ("%s", "", "") + "\n", token=TRUE_TOKEN),
    forged("a number for a token", LINE % ("1" + "0" * 400, '["1"]', "") + "\n"),
    forged("no encoding", "\udcff\udcfe" + LINE % ("%s", '["1"]', "") + "\n", token=TRUE_TOKEN),
    attack(
        "forged: a failure in halves of characters",
        """
        import json, os
        said = {"token": request()[0]["token"], "failure": ["exception", "\\ud800", "\\udc00"], "results": [], "mutates": False}
        os.write(descriptor(), json.dumps(said).encode() + b"\\n")
        os._exit(0)
        """,
        "exception",
        before=FIND_OURS,
    ),
    *(forged_at_random(seed) for seed in range(8)),
    attack(
        "a line, then the true one",
        f"import os\nos.write(descriptor(), b{LINE % ('0', '', '')!r} + b'\\n')",
        "bad_output",
        before=FIND_OURS,
    ),
    *(
        attack(f"exit code of a process ended by {name}", f"import os\nos._exit({code})", "exception")
        for name, code in {"SIGKILL": 137, "SIGTERM": 143, "SIGKILL, in more bits": 256 + 137, "SIGHUP": -127}.items()
    ),
    attack("early exit", "import os\nos._exit(0)", "bad_output"),
    attack("early exit with an error", "import os\nos._exit(1)", "exception"),
    attack("sys.exit", "import sys\nsys.exit(0)", "exception"),
]

ANY = "class Any:\n    def __eq__(self, other): return True\n    def __hash__(self): return 0"
OBJECTS = [
    attack("equal to everything", "return Any()", "bad_output", before=ANY),
    attack("in a list", "return [1, {2: Any()}]", "bad_output", before=ANY),
    attack(
        "subclass of int",
        "return I(3)",
        "bad_output",
        before="class I(int):\n    def __eq__(self, other): return True\n    __hash__ = int.__hash__",
    ),
    attack("subclass of str", "return S('x')", "bad_output", before="class S(str):\n    def __repr__(self): return 'y'"),
    attack("lies about its class", "return L()", "bad_output", before="class L:\n    __class__ = int"),
    attack(
        "iterates without end",
        "return D()",
        "bad_output",
        before="class D(dict):\n    def items(self):\n        while True: yield 1, 1",
    ),
    attack(
        "runs when unpickled",
        "return Bomb()",
        "bad_output",
        before="import os\nclass Bomb:\n    def __reduce__(self): return os.system, ('touch /tmp/escaped',)",
    ),
    attack(
        "patched encoder",
        """
        for frame in ours():
            if "codec" in frame.f_locals:
                frame.f_locals["codec"].encode = lambda value: '{"set":[2,1]}'
        return 1
        """,
        "bad_output",
        before=FIND_OURS,
    ),
    attack("patched json", "import json\njson.dumps = lambda *a, **k: 'null'\nreturn 1", "bad_output", "ok"),
    attack(
        "patched builtins",
        "import builtins\nbuiltins.len = builtins.type = builtins.isinstance = lambda *a: 0\nreturn object()",
        "bad_output",
        "exception",
    ),
    attack("generator", "return (x for x in ())", "bad_output"),
    attack("function", "return attack", "bad_output"),
]

ENDINGS = [
    attack("raises at exit", "import atexit\natexit.register(lambda: 1 / 0)\nreturn 1", "ok"),
    attack("hangs at exit", "import atexit, time\natexit.register(lambda: time.sleep(1000))\nreturn 1", "ok"),
    attack(
        "hangs when freed",
        "return [F()][:0]",
        "timeout",
        before="class F:\n    def __del__(self):\n        while True: pass",
        slow=True,
    ),
    attack("closes its output", "import os, sys\nsys.stdout.close()\nos.close(2)\nreturn 1", "ok"),
    attack("replaces its output", "import sys\nsys.stdout = sys.stderr = None\nreturn 1", "ok"),
    attack(
        "raises what nobody catches",
        "raise B",
        "exception",
        before="class B(BaseException):\n    def __str__(self): raise self",
    ),
    attack("interrupts itself", "raise KeyboardInterrupt", "exception"),
    attack(
        "alarm after its return",
        """
        import signal
        def late(*_): raise RuntimeError
        signal.signal(signal.SIGALRM, late)
        signal.setitimer(signal.ITIMER_REAL, 1e-5, 1e-5)
        return list(range(2000))
        """,
        "ok",
        "exception",
        "bad_output",
        "timeout",
    ),
    attack("rollouts the harness", "import sys\nsys.setprofile(lambda *a: 1 / 0)\nreturn 1", "ok", "exception", "bad_output"),
    attack("crash", "import ctypes\nctypes.string_at(0)", "exception"),
    attack("abort", "import os\nos.abort()", "exception"),
    attack("kills itself", "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\nreturn 'escaped'", "exception"),
]

SECRETS = [
    attack(
        "environment",
        "import os\nreturn 'escaped' if any(bait['begins'] in v or k == 'HOME' for k, v in os.environ.items()) else 0",
    ),
    attack(
        "arguments", "import sys\nreturn 'escaped' if bait['begins'] in str(sys.argv) or bait['home'] in str(sys.argv) else 0"
    ),
    attack(
        "frames",
        "return 'escaped' if any(bait['begins'] + '-' in repr(f.f_locals) + repr(f.f_globals) for f in ours()) else 0",
        before=FIND_OURS,
    ),
    attack(
        "collector of garbage",
        """
        import gc
        return "escaped" if any(isinstance(o, (str, bytes)) and bait["begins"] + "-" in str(o)
                                for c in gc.get_objects() for o in gc.get_referents(c)) else 0
        """,
    ),
    attack(
        "inherited descriptors",
        """
        import os
        for descriptor in range(3, 1024):
            try:
                os.lseek(descriptor, 0, 0)
                if bait["begins"].encode() in os.read(descriptor, 4096): return "escaped"
            except OSError: pass
        """,
    ),
    attack("secret file", "return 'escaped' if bait['begins'] in open(bait['file']).read() else 0", level="isolated"),
    attack("home folder", "import os\nreturn 'escaped' if os.listdir(bait['home']) else 0", level="isolated"),
    attack("accounts", "return 'escaped' if open('/etc/passwd').read() else 0", level="isolated"),
    attack(
        "environment of the parent",
        "return 'escaped' if open(f'/proc/{bait[\"parent\"]}/environ').read() else 0",
        level="isolated",
    ),
    attack("memory of the parent", "return 'escaped' if open(f'/proc/{bait[\"parent\"]}/mem', 'rb') else 0", level="isolated"),
    attack("processes of others", "import os\nreturn 'escaped' if os.listdir('/proc') else 0", level="isolated"),
    attack(
        "installed packages",
        "import sys\nsys.path.append(bait['packages'])\nimport milonga\nreturn 'escaped'",
        level="isolated",
    ),
]

WRITING = """
def written(path):
    try:
        with open(path, "w") as file: file.write("x")
    except OSError: return False
    return True
"""
FILES = [
    attack("overwrites a file", "return 'escaped' if written(bait['file']) else 0", level="isolated", before=WRITING),
    attack("removes a file", "import os\nos.unlink(bait['file'])\nreturn 'escaped'", level="isolated"),
    attack(
        "writes everywhere",
        """
        import os
        places = ["/", "/etc", "/tmp", "/dev", "/dev/shm", "/harness", "/python/bin", "/python/lib", "/usr/lib", bait["home"]]
        return "escaped" if any(written(os.path.join(place, "milonga-escaped")) for place in places) else 0
        """,
        level="isolated",
        before=WRITING,
    ),
    attack("edits the harness", "return 'escaped' if written('/harness/child.py') else 0", level="isolated", before=WRITING),
    attack(
        "large file",
        "with open('x', 'wb') as f:\n    for _ in range(64): f.write(bytes(1 << 16))\nreturn 'escaped'",
        "exception",
    ),
    attack(
        "fills the scratch folder",
        """
        count = 0
        try:
            for count in range(64):
                with open(f"x{count}", "wb") as file: file.write(bytes(1 << 20))
        except OSError: pass
        return "escaped" if count > 16 else count
        """,
        level="isolated",
    ),
    attack(
        "folders without end",
        """
        import os
        for count in range(20_000):
            try: os.mkdir(str(count))
            except OSError: return count
        return "escaped"
        """,
        level="isolated",
    ),
    attack(
        "empty files with long names, without end",
        """
        import os
        for count in range(20_000):
            try: os.close(os.open(f"{count:0250d}", os.O_CREAT | os.O_WRONLY))
            except OSError: return count
        return "escaped"
        """,
        level="isolated",
    ),
    attack("deep folders", "import os\nfor _ in range(1100):\n    os.mkdir('d')\n    os.chdir('d')", "ok"),
    attack("folder that nobody may read", "import os\nos.mkdir('d')\nos.mkdir('d/e')\nos.mkdir('d/e/f', 0)", "ok"),
    attack(
        "times of the null device",
        """
        import os
        before = os.stat("/dev/null").st_mtime_ns
        os.utime("/dev/null")
        return "escaped" if os.stat("/dev/null").st_mtime_ns != before else 0
        """,
    ),
    attack("lock of the null device", "import fcntl\nfcntl.flock(open('/dev/null'), fcntl.LOCK_EX)\nreturn 'escaped'"),
    attack("lock of a library", "import fcntl, os\nfcntl.flock(open(os.__file__), fcntl.LOCK_EX)\nreturn 'escaped'"),
    attack(
        "locks without end",
        """
        import fcntl
        file = open("/dev/null", "w")
        for start in range(1000): fcntl.lockf(file, fcntl.LOCK_EX, 1, 2 * start)
        return "escaped"
        """,
    ),
    attack("lease of a library", "import fcntl, os\nfcntl.fcntl(open(os.__file__), 1024, fcntl.F_RDLCK)\nreturn 'escaped'"),
    attack("pages of a library", "import os\nos.posix_fadvise(os.open(os.__file__, 0), 0, 0, 4)\nreturn 'escaped'"),
    attack(
        "attributes of a library",
        "import os\nos.setxattr(os.__file__, 'user.mark', b'x')\nreturn 'escaped'",
    ),
    attack("many open files", "files = [open('x', 'w') for _ in range(1000)]\nreturn 'escaped'", "exception"),
    attack("links out", "import os\nos.symlink(bait['file'], 'link')\nreturn 'escaped' if open('link').read() else 0"),
    attack("device", "import os\nos.mknod('d', 0o60666, 1)\nreturn 'escaped'"),
    attack("special permissions", "import os\nopen('x', 'w').close()\nos.chmod('x', 0o4777)\nreturn 'escaped'"),
    attack(
        "leftovers",
        """
        import builtins, os, sys, tempfile
        if hasattr(builtins, "mark") or "mark" in sys.modules or os.path.exists("mark") or os.path.exists("/scratch/mark"):
            return "escaped"
        builtins.mark = sys.modules["mark"] = builtins.sum = len
        open("mark", "w").close()
        """,
        "ok",
    ),
]

NETWORK = [
    attack("connection", "import socket\nsocket.create_connection(('127.0.0.1', bait['port']), 1)\nreturn 'escaped'"),
    attack("connection to the world", "import socket\nsocket.create_connection(('1.1.1.1', 53), 1)\nreturn 'escaped'"),
    attack("name lookup", "import socket\nsocket.getaddrinfo('localhost', 80)\nreturn 'escaped'", level="isolated"),
    attack(
        "datagram",
        "import socket\nsocket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', 53))\nreturn 'escaped'",
    ),
    attack("local socket", "import socket\nsocket.socket(socket.AF_UNIX)\nreturn 'escaped'"),
    attack("pair of sockets", "import socket\nsocket.socketpair()\nreturn 'escaped'"),
    attack("kernel socket", "import socket\nsocket.socket(socket.AF_NETLINK, socket.SOCK_RAW)\nreturn 'escaped'"),
]

SYSTEM = [
    attack("kills its parent", "import os\nos.kill(bait['parent'], 9)\nreturn 'escaped'"),
    attack("kills whom it can", "import os\nos.kill(-1, 9)\nreturn 'escaped'"),
    attack("stops its group", "import os, signal\nos.killpg(0, signal.SIGSTOP)\nreturn 'escaped'"),
    attack("becomes root", "import os\nos.setuid(0)\nreturn 'escaped'"),
    attack("new root", "import os\nos.chroot('.')\nreturn 'escaped'"),
    attack("new session", "import os\nos.setsid()\nreturn 'escaped'"),
    attack(
        "limits of its parent",
        "import resource\nresource.prlimit(bait['parent'], resource.RLIMIT_CPU, (1, 1))\nreturn 'escaped'",
    ),
    call("kill of itself", 62, 129, "os.getpid()", "9"),
    call("tkill of itself", 200, 130, "os.getpid()", "9"),
    call("tgkill of itself", 234, 131, "os.getpid()", "os.getpid()", "9"),
    call("rt_sigqueueinfo to itself", 129, 138, "os.getpid()", "9", "here"),
    call("timer_create with a signal", 222, 107, "1", "0", "here"),
    call("ptrace, to be traced", 101, 117, "0", "0", "0", "0"),
    call("ptrace of the parent", 101, 117, "16", "bait['parent']", "0", "0"),
    call("process_vm_readv", 310, 270, "bait['parent']", "here", "1", "here", "1", "0"),
    call("unshare", 272, 97, "0x10000000"),
    call("setns", 308, 268, "0", "0"),
    call("mount", 165, 40, "b'x'", "b'/scratch'", "b'tmpfs'", "0", "0"),
    call("umount", 166, 39, "b'/scratch'", "2"),
    call("pivot_root", 155, 41, "b'.'", "b'.'"),
    call("keyctl", 250, 219, "0", "-4", "1"),
    call("add_key", 248, 217, "b'user'", "b'x'", "b'y'", "1", "-4"),
    call("bpf", 321, 280, "0", "here", "72"),
    call("perf_event_open", 298, 241, "here", "0", "-1", "-1", "0"),
    call("io_uring_setup", 425, 425, "8", "here"),
    call("userfaultfd", 323, 282, "0"),
    call("memfd_create", 319, 279, "b'x'", "0"),
    call("clone3", 435, 435, "here", "88"),
    call("seccomp", 317, 277, "2", "0", "here"),
    call("prctl", 157, 167, "4", "1"),
    call("personality", 135, 92, "0x0040000"),
    call("pidfd_open", 434, 434, "bait['parent']", "0"),
    call("open_by_handle_at", 304, 265, "3", "here", "0"),
    call("shmget", 29, 194, "0", "1 << 30", "0o1600"),
    call("mlockall", 151, 230, "1"),
    call("sched_setaffinity", 203, 122, "0", "8", "here"),
    call("fcntl, to be sent signals", 72, 25, "0", "10", "9"),
    attack(
        "call of another architecture",
        """
        import ctypes, mmap, os
        if os.uname().machine != "x86_64": return 0
        page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
        page.write(bytes.fromhex("b814000000cd80c3"))  # getpid by the door of 32 bits
        function = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))
        return "escaped" if function() > 0 else 0
        """,
    ),
]

SOURCES = [
    Attack("too long", "#" * 21_000, frozenset({"forbidden"})),
    Attack("does not parse", "def attack(:", frozenset({"syntax"})),
    Attack("zero byte", "def attack(bait):\n    return 1\n\0", frozenset({"syntax"})),
    Attack("half a character", "def attack(bait):\n    return '\ud800x'\n", frozenset({"ok", "syntax"})),
    Attack("deep brackets", "(" * 9000 + ")" * 9000, frozenset({"syntax"})),
    Attack(
        "deep operators",
        "def attack(bait):\n    return " + "-" * 15_000 + "1",
        frozenset({"syntax", "ok", "exception", "memory"}),
    ),
    Attack("no such function", "def other(bait): pass", frozenset({"exception"})),
    Attack("not a function", "attack = 3", frozenset({"exception"})),
    Attack("fails while it is read", "raise SystemExit(0)", frozenset({"exception"})),
    Attack(
        "constant that explodes",
        "def attack(bait):\n    return len(((('x' * 4096) * 4096) * 4096) * 4096)",
        frozenset({"memory"}),
    ),
]

ATTACKS: tuple[Attack, ...] = (
    *TIME,
    *MEMORY,
    *PROCESSES,
    *OUTPUT,
    *FORGERY,
    *OBJECTS,
    *ENDINGS,
    *SECRETS,
    *FILES,
    *NETWORK,
    *SYSTEM,
    *SOURCES,
)
