"""The levels of isolation: which of them this system offers, found by trying, and how a process is started at each.

- `isolated`: bubblewrap gives the process namespaces of its own (user, mounts, processes, network, IPC, host name), a read-only
  root that holds the interpreter and the system's libraries and nothing else, scratch in memory, no privileges, and the
  filter of system calls. It loads the filter itself, after it has bounded its scratch, before it reads its program.
- `limited`: an ordinary process of this user, with limits of the system and the same filter, which it loads itself. It can read
  what the user can read, and write where the user can write, the trainer's memory included.
"""

from __future__ import annotations

import functools
import json
import os
import platform
import shutil
import stat
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
SCRATCH = "/scratch"
MB = 1 << 20


class IsolationError(UserError):
    """The level that is asked for is not to be had here, or was not allowed."""


@dataclass(frozen=True)
class Mount:
    """A host's file or folder, read-only, at a place of its own."""

    source: str
    target: str


def _find_interpreter() -> str:
    """Find the real interpreter behind any virtual environment."""
    plain = Path(sys.base_prefix) / "bin" / f"python{sys.version_info.major}.{sys.version_info.minor}"
    return os.path.realpath(plain if plain.exists() else sys.executable)


def require_architecture() -> str:
    """Return the architecture of the seccomp filter; raise without one, since no level is safe without a filter."""
    found = seccomp.detect_architecture()
    if found is None:
        raise IsolationError(f"programs run on Linux on x86-64 or ARM64 alone, not on {platform.system()} {platform.machine()}")
    return found


def find_bubblewrap() -> str:
    found = shutil.which("bwrap")
    if found is None:
        raise IsolationError("bubblewrap is not installed (apt-get install bubblewrap)")
    return found


@functools.cache
def build_filter(level: Level) -> bytes:
    """Build the seccomp filter of a program. Its process loads it last of all, when nothing of the program is there yet."""
    return seccomp.compile_filter(
        require_architecture(), seccomp.PROCESSES if level == "isolated" else seccomp.PROCESSES | seccomp.LIMITS
    )


def build_command(
    level: Level, limits: Limits, seed: int, result: int, code: int, info: int, mounts: tuple[Mount, ...] = ()
) -> list[str]:
    """Build the command of a sandbox process. It has three extra descriptors: for its result, with the filter's code, and
    for bubblewrap's information about the process that it started. `mounts` are added to what all programs have.
    """
    files = limits.scratch_files if level == "isolated" else None
    setup = json.dumps({"result": result, "limits": _convert_limits(limits), "filter": code, "files": files})
    if level == "limited":
        return [_find_interpreter(), *FLAGS, str(HARNESS / "child.py"), setup]
    tool = find_bubblewrap()
    # The first process of its namespace, or the second: so that its number differs between two seeds.
    first = [] if seed % 2 else ["--as-pid-1"]
    # To mount in its own namespace, once: the process bounds its scratch, and gives it up before it reads its program.
    mounting = ["--cap-add", "CAP_SYS_ADMIN"] if _may_keep_capabilities(tool) else []
    return [
        *build_wrapper(tool, limits.scratch_mb, (Mount(str(HARNESS), "/harness"), *mounts)),
        *first,
        *mounting,
        "--info-fd",
        str(info),
        "--",
        _get_mounted_python(),
        *FLAGS,
        "/harness/child.py",
        setup,
    ]


def _may_keep_capabilities(tool: str) -> bool:
    """Whether bubblewrap gives capabilities within the new namespace: one with a set-user-id bit does so for root alone."""
    return os.geteuid() == 0 or not os.stat(tool).st_mode & stat.S_ISUID


def build_confined_command(arguments: Sequence[str], mounts: Sequence[Mount], code: int) -> list[str]:
    """Build the command of a confined interpreter, trusted more than a program: it may fork, and read what is mounted."""
    wrapped = build_wrapper(find_bubblewrap(), Limits().scratch_mb, tuple(mounts))
    return [*wrapped, "--disable-userns", "--seccomp", str(code), "--", _get_mounted_python(), *arguments]


def build_confined_filter() -> bytes:
    """Build the filter of a confined interpreter: as for programs, but it may start processes."""
    return seccomp.compile_filter(require_architecture(), without=(), for_program=False)


def list_package_mounts() -> tuple[list[Mount], list[str]]:
    """List mounts of the installed packages, and the `sys.path` on which a confined interpreter then finds modules."""
    names = [entry for entry in sys.path if Path(entry).name in ("site-packages", "dist-packages") and Path(entry).is_dir()]
    mounts = [Mount(name, f"/packages/{number}") for number, name in enumerate(names)]
    library = [entry for entry in sys.path if Path(entry).is_relative_to(sys.base_prefix) and entry not in names]
    inside = [f"/python/{Path(entry).relative_to(sys.base_prefix)}" for entry in library]
    return mounts, [*inside, *(mount.target for mount in mounts)]


def _convert_limits(limits: Limits) -> dict[str, int]:
    """Convert limits to the names of the module `resource`; the process sets them on itself."""
    return {
        "RLIMIT_AS": limits.memory_mb * MB,
        "RLIMIT_CPU": -int(-limits.cpu_s // 1),
        "RLIMIT_CORE": 0,
        "RLIMIT_NOFILE": limits.open_files,
        "RLIMIT_FSIZE": limits.file_mb * MB,
        "RLIMIT_NPROC": 0,
    }


def _get_mounted_python() -> str:
    """Return the path at which the interpreter is mounted; it reveals nothing about this user."""
    return f"/python/bin/{Path(_find_interpreter()).name}"


def _list_python_mounts() -> list[Mount]:
    """List the mounts of the interpreter and its library."""
    folders = [name for name in ("lib", "lib64") if (Path(sys.base_prefix) / name).is_dir()]
    return [
        Mount(_find_interpreter(), _get_mounted_python()),
        *(Mount(f"{sys.base_prefix}/{name}", f"/python/{name}") for name in folders),
    ]


@functools.cache
def build_wrapper(tool: str, scratch: int, mounts: tuple[Mount, ...]) -> tuple[str, ...]:
    """Build bubblewrap's arguments, up to what differs from one process to the next."""
    apart = [f"--unshare-{name}" for name in ("user", "ipc", "pid", "net", "uts", "cgroup-try")]
    nobody = ["--uid", "65534", "--gid", "65534", "--cap-drop", "ALL", "--hostname", "sandbox", "--new-session"]
    return (tool, *apart, *nobody, "--die-with-parent", *build_mount_arguments([*_list_python_mounts(), *mounts], scratch))


def build_mount_arguments(mounts: Sequence[Mount], scratch: int) -> list[str]:
    """Build the file system arguments: libraries, mounts, /dev/null and scratch; all but scratch read-only.

    The null device is the host's, and no filesystem of ours can hold one: the filter keeps its times and locks from a program.
    """
    arguments: list[str] = []
    for library in LIBRARIES:
        if os.path.islink(library):
            arguments += ["--symlink", os.readlink(library), library]
        elif os.path.isdir(library):
            arguments += ["--ro-bind", library, library]
    arguments += ["--ro-bind-try", "/etc/ld.so.cache", "/etc/ld.so.cache", "--dev-bind", "/dev/null", "/dev/null"]
    for mount in mounts:
        arguments += ["--ro-bind", mount.source, mount.target]
    for folder in _list_hidden_folders():
        arguments += ["--tmpfs", folder, "--remount-ro", folder]
    return [*arguments, "--size", str(scratch * MB), "--tmpfs", SCRATCH, "--chdir", SCRATCH, "--remount-ro", "/"]


def _list_hidden_folders() -> list[str]:
    """List the folders of installed packages to hide: programs may not use them, and Milonga's own may be there."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    inside = [f"{name}/{version}/site-packages" for name in ("lib", "lib64")]
    return [f"/python/{path}" for path in inside if (Path(sys.base_prefix) / path).is_dir()]


def build_environment(level: Level, seed: int) -> dict[str, str]:
    """Build the whole environment; it fixes the order of sets. The process clears it once it has started."""
    return {"PYTHONHASHSEED": str(seed)} | find_own_library(level)


def find_own_library(level: Level) -> dict[str, str]:
    """Tell an interpreter with a shared library where it is: the place it was built with is not in the sandbox."""
    if not sysconfig.get_config_var("Py_ENABLE_SHARED"):
        return {}
    return {"LD_LIBRARY_PATH": "/python/lib" if level == "isolated" else f"{sys.base_prefix}/lib"}


@functools.cache
def get_bubblewrap_version() -> str:
    """Return bubblewrap's version text; empty if it has none."""
    try:
        said = subprocess.run([find_bubblewrap(), "--version"], capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.SubprocessError):
        return ""
    return said.stdout.strip()
