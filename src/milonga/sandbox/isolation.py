"""The levels of isolation: which of them this system offers, found by trying, and how a process is started at each.

- `isolated`: bubblewrap gives the process namespaces of its own (user, mounts, processes, network, IPC, host name), a read-only
  root that holds the interpreter and the system's libraries and nothing else, scratch in memory, no privileges, and the
  filter of system calls.
- `limited`: an ordinary process of this user, with limits of the system and the same filter, which it loads itself. It can read
  what the user can read, and write where the user can write.
"""

from __future__ import annotations

import functools
import json
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from milonga.errors import UserError
from milonga.sandbox import seccomp
from milonga.sandbox.program import Limits

Level = Literal["isolated", "limited"]
HARNESS = Path(__file__).parent
LIBRARIES = ("/lib", "/lib64", "/usr/lib", "/usr/lib64")
FLAGS = ("-P", "-s", "-S", "-B", "-X", "utf8")
"""As `-I`, but for the environment: its only variable is the hash seed, which `-I` would ignore."""
MB = 1 << 20


class IsolationError(UserError):
    """The level that is asked for is not to be had here, or was not allowed."""


@dataclass(frozen=True)
class Mount:
    """A host's file or folder, read-only, at a place of its own."""

    source: str
    target: str


def interpreter() -> str:
    """The real interpreter behind any virtual environment."""
    plain = Path(sys.base_prefix) / "bin" / f"python{sys.version_info.major}.{sys.version_info.minor}"
    return os.path.realpath(plain if plain.exists() else sys.executable)


def architecture() -> str:
    """The one that the filter is made for; without a filter no level can keep what it promises."""
    found = seccomp.machine()
    if found is None:
        raise IsolationError(f"programs run on Linux on x86-64 or ARM64 alone, not on {platform.system()} {platform.machine()}")
    return found


def bubblewrap() -> str:
    found = shutil.which("bwrap")
    if found is None:
        raise IsolationError("bubblewrap is not installed (apt-get install bubblewrap)")
    return found


@functools.cache
def filter_of(level: Level) -> bytes:
    """Bubblewrap loads it before the process limits itself; a limited process loads it last, and needs no limits afterwards."""
    return seccomp.compiled(architecture(), seccomp.PROCESSES if level == "isolated" else seccomp.PROCESSES | seccomp.LIMITS)


def command(
    level: Level, limits: Limits, seed: int, result: int, code: int, info: int, mounts: tuple[Mount, ...] = ()
) -> list[str]:
    """How a process is started. Besides the usual descriptors it has three: for its result, with the filter's code, and for
    what bubblewrap has to say about the process that it started. `mounts` are there besides what all programs have.
    """
    setup = json.dumps({"result": result, "limits": limits_of(limits), "filter": code if level == "limited" else None})
    if level == "limited":
        return [interpreter(), *FLAGS, str(HARNESS / "child.py"), setup]
    # The first process of its namespace, or the second: so that its number differs between two seeds.
    first = [] if seed % 2 else ["--as-pid-1"]
    wrapped = [*wrapping(bubblewrap(), limits.scratch_mb, (Mount(str(HARNESS), "/harness"), *mounts)), *first]
    return [*wrapped, "--seccomp", str(code), "--info-fd", str(info), "--", python(), *FLAGS, "/harness/child.py", setup]


def confined(arguments: Sequence[str], mounts: Sequence[Mount], code: int) -> list[str]:
    """How an interpreter is started that we trust with more than a program: it may fork, and reads what is mounted."""
    wrapped = wrapping(bubblewrap(), Limits().scratch_mb, tuple(mounts))
    return [*wrapped, "--disable-userns", "--seccomp", str(code), "--", python(), *arguments]


def confined_filter() -> bytes:
    """The filter for it: as for programs, but for processes."""
    return seccomp.compiled(architecture(), without=())


def packages() -> tuple[list[Mount], list[str]]:
    """The installed packages of this interpreter, to be mounted; and the path on which a confined one then finds modules."""
    names = [entry for entry in sys.path if Path(entry).name in ("site-packages", "dist-packages") and Path(entry).is_dir()]
    mounts = [Mount(name, f"/packages/{number}") for number, name in enumerate(names)]
    library = [entry for entry in sys.path if Path(entry).is_relative_to(sys.base_prefix) and entry not in names]
    inside = [f"/python/{Path(entry).relative_to(sys.base_prefix)}" for entry in library]
    return mounts, [*inside, *(mount.target for mount in mounts)]


def limits_of(limits: Limits) -> dict[str, int]:
    """The limits that the process puts on itself, by the names of the module `resource`."""
    return {
        "RLIMIT_AS": limits.memory_mb * MB,
        "RLIMIT_CPU": -int(-limits.cpu_s // 1),
        "RLIMIT_CORE": 0,
        "RLIMIT_NOFILE": limits.open_files,
        "RLIMIT_FSIZE": limits.file_mb * MB,
        "RLIMIT_NPROC": 0,
    }


def python() -> str:
    """Where the interpreter is mounted: at a place that tells nothing about this user."""
    return f"/python/bin/{Path(interpreter()).name}"


def python_mounts() -> list[Mount]:
    """The interpreter with its library."""
    folders = [name for name in ("lib", "lib64") if (Path(sys.base_prefix) / name).is_dir()]
    return [Mount(interpreter(), python()), *(Mount(f"{sys.base_prefix}/{name}", f"/python/{name}") for name in folders)]


@functools.cache
def wrapping(tool: str, scratch: int, mounts: tuple[Mount, ...]) -> tuple[str, ...]:
    """Bubblewrap's arguments up to what differs from one process to the next."""
    apart = [f"--unshare-{name}" for name in ("user", "ipc", "pid", "net", "uts", "cgroup-try")]
    nobody = ["--uid", "65534", "--gid", "65534", "--cap-drop", "ALL", "--hostname", "sandbox", "--new-session"]
    return (tool, *apart, *nobody, "--die-with-parent", *mounting([*python_mounts(), *mounts], scratch))


def mounting(mounts: Sequence[Mount], scratch: int) -> list[str]:
    """The file system: libraries, what is mounted, one device that takes everything, and scratch; all but scratch read-only."""
    arguments: list[str] = []
    for library in LIBRARIES:
        if os.path.islink(library):
            arguments += ["--symlink", os.readlink(library), library]
        elif os.path.isdir(library):
            arguments += ["--ro-bind", library, library]
    arguments += ["--ro-bind-try", "/etc/ld.so.cache", "/etc/ld.so.cache", "--dev-bind", "/dev/null", "/dev/null"]
    for mount in mounts:
        arguments += ["--ro-bind", mount.source, mount.target]
    for folder in hidden():
        arguments += ["--tmpfs", folder, "--remount-ro", folder]
    return [*arguments, "--size", str(scratch * MB), "--tmpfs", "/scratch", "--chdir", "/scratch", "--remount-ro", "/"]


def hidden() -> list[str]:
    """Installed packages: no part of what a program may use, and perhaps Milonga's own."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    inside = [f"{name}/{version}/site-packages" for name in ("lib", "lib64")]
    return [f"/python/{path}" for path in inside if (Path(sys.base_prefix) / path).is_dir()]


def environment(level: Level, seed: int) -> dict[str, str]:
    """The whole environment: the order of sets is part of what is fixed. The process empties it when it has started."""
    return {"PYTHONHASHSEED": str(seed)} | own_library(level)


def own_library(level: Level) -> dict[str, str]:
    """Where an interpreter with a shared library finds it: the place that it was built with is not in the sandbox."""
    if not sysconfig.get_config_var("Py_ENABLE_SHARED"):
        return {}
    return {"LD_LIBRARY_PATH": "/python/lib" if level == "isolated" else f"{sys.base_prefix}/lib"}


@functools.cache
def version() -> str:
    """Bubblewrap's, as it says it; empty if it says nothing."""
    try:
        said = subprocess.run([bubblewrap(), "--version"], capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.SubprocessError):
        return ""
    return said.stdout.strip()
