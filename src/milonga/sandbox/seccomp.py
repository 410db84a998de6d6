"""The seccomp filter of system calls: an allow-list, as a program of the kernel's classic BPF.

What an interpreter needs for computing, for its own files and for waiting is named here; everything else is refused with EPERM:
processes and threads, sockets, signals, ptrace, mounts, namespaces, keyrings, locks, and whatever a later kernel brings.
"""

from __future__ import annotations

import platform
import struct
import sys
from collections.abc import Collection, Sequence

# Numbers of the calls: by architecture, because they differ. A call without a number does not exist there.
NUMBERS: dict[str, dict[str, int]] = {
    "x86_64": {
        "read": 0, "write": 1, "open": 2, "close": 3, "stat": 4, "fstat": 5, "lstat": 6, "poll": 7, "lseek": 8, "mmap": 9,
        "mprotect": 10, "munmap": 11, "brk": 12, "rt_sigaction": 13, "rt_sigprocmask": 14, "rt_sigreturn": 15, "ioctl": 16,
        "pread64": 17, "pwrite64": 18, "readv": 19, "writev": 20, "access": 21, "pipe": 22, "select": 23, "sched_yield": 24,
        "mremap": 25, "madvise": 28, "dup": 32, "dup2": 33, "pause": 34, "nanosleep": 35, "getitimer": 36, "alarm": 37,
        "setitimer": 38, "getpid": 39, "sendfile": 40, "execve": 59, "exit": 60, "wait4": 61, "uname": 63, "fcntl": 72,
        "fsync": 74, "fdatasync": 75, "truncate": 76, "ftruncate": 77, "getcwd": 79, "chdir": 80, "fchdir": 81,
        "rename": 82, "mkdir": 83, "rmdir": 84, "unlink": 87, "readlink": 89, "umask": 95, "gettimeofday": 96, "getrlimit": 97,
        "getrusage": 98, "sysinfo": 99, "times": 100, "getuid": 102, "getgid": 104, "geteuid": 107, "getegid": 108,
        "getppid": 110, "getpgrp": 111, "getgroups": 115, "getresuid": 118, "getresgid": 120, "getpgid": 121, "getsid": 124,
        "rt_sigpending": 127, "rt_sigtimedwait": 128, "rt_sigsuspend": 130, "sigaltstack": 131, "statfs": 137, "fstatfs": 138,
        "arch_prctl": 158, "gettid": 186, "time": 201, "futex": 202, "sched_getaffinity": 204,
        "getdents64": 217, "set_tid_address": 218, "restart_syscall": 219, "clock_gettime": 228,
        "clock_getres": 229, "clock_nanosleep": 230, "exit_group": 231, "epoll_wait": 232, "epoll_ctl": 233, "waitid": 247,
        "openat": 257, "mkdirat": 258, "newfstatat": 262, "unlinkat": 263, "renameat": 264, "readlinkat": 267,
        "faccessat": 269, "pselect6": 270, "ppoll": 271, "set_robust_list": 273, "utimensat": 280, "epoll_pwait": 281,
        "eventfd2": 290, "epoll_create1": 291, "dup3": 292, "pipe2": 293, "preadv": 295, "pwritev": 296, "prlimit64": 302,
        "getcpu": 309, "renameat2": 316, "getrandom": 318, "membarrier": 324, "copy_file_range": 326, "statx": 332,
        "rseq": 334, "close_range": 436, "faccessat2": 439, "fork": 57, "vfork": 58, "clone": 56,
    },
    "aarch64": {
        "getcwd": 17, "eventfd2": 19, "epoll_create1": 20, "epoll_ctl": 21, "epoll_pwait": 22, "dup": 23, "dup3": 24,
        "fcntl": 25, "ioctl": 29, "mkdirat": 34, "unlinkat": 35, "renameat": 38, "statfs": 43, "fstatfs": 44,
        "truncate": 45, "ftruncate": 46, "faccessat": 48, "chdir": 49, "fchdir": 50, "openat": 56, "close": 57, "pipe2": 59,
        "getdents64": 61, "lseek": 62, "read": 63, "write": 64, "readv": 65, "writev": 66, "pread64": 67, "pwrite64": 68,
        "preadv": 69, "pwritev": 70, "sendfile": 71, "pselect6": 72, "ppoll": 73, "readlinkat": 78, "newfstatat": 79,
        "fstat": 80, "fsync": 82, "fdatasync": 83, "utimensat": 88, "exit": 93, "exit_group": 94, "waitid": 95,
        "set_tid_address": 96, "futex": 98, "set_robust_list": 99, "nanosleep": 101, "getitimer": 102, "setitimer": 103,
        "clock_gettime": 113, "clock_getres": 114, "clock_nanosleep": 115, "sched_getaffinity": 123, "sched_yield": 124,
        "restart_syscall": 128, "sigaltstack": 132, "rt_sigsuspend": 133, "rt_sigaction": 134, "rt_sigprocmask": 135,
        "rt_sigpending": 136, "rt_sigtimedwait": 137, "rt_sigreturn": 139, "getresuid": 148, "getresgid": 150, "times": 153,
        "getpgid": 155, "getsid": 156, "getgroups": 158, "uname": 160, "getrlimit": 163, "getrusage": 165,
        "umask": 166, "getcpu": 168, "gettimeofday": 169, "getpid": 172, "getppid": 173, "getuid": 174, "geteuid": 175,
        "getgid": 176, "getegid": 177, "gettid": 178, "sysinfo": 179, "brk": 214, "munmap": 215, "mremap": 216, "execve": 221,
        "mmap": 222, "mprotect": 226, "madvise": 233, "wait4": 260, "prlimit64": 261, "renameat2": 276,
        "getrandom": 278, "membarrier": 283, "copy_file_range": 285, "statx": 291, "rseq": 293, "close_range": 436,
        "faccessat2": 439, "clone": 220,
    },
}  # fmt: skip
ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
"""As the kernel's audit names them. A call made in another architecture's way ends the process."""
PROCESSES = frozenset({"fork", "vfork", "clone", "execve"})
LIMITS = frozenset({"prlimit64"})
"""With privileges a limit can be raised, and those of others set."""
COMMANDS = {
    "fcntl": (0, 1, 2, 3, 4, 1030),  # descriptors and flags; no locks, which others would see; not who is sent which signal
    "ioctl": (0x5401, 0x5413, 0x541B, 0x5450, 0x5451),  # is it a terminal, bytes waiting, close on exec
    "prlimit64": tuple(range(16)),
}
"""Calls whose second argument says what is done: the values that pass."""
IGNORED = frozenset({"utimensat"})
"""Calls that do nothing and succeed: who copies files also copies their times, and does not miss them. The times of a file that
others see would carry a message to them."""
PROCESSOR_TIME = 0
"""The limit that a program must not lower: to be killed at it would look like being killed by somebody else."""
EXITS = frozenset({"exit", "exit_group"})
SIGNALLED = 128
"""Exit codes from here on stand for signals, where one process reports the end of another."""

LOAD, EQUAL, AT_LEAST, AND, RETURN = 0x20, 0x15, 0x35, 0x54, 0x06  # BPF_LD|W|ABS, BPF_JMP|JEQ|K, _JGE, BPF_ALU|AND|K, BPF_RET|K
CALL_AT, ARCHITECTURE_AT, FIRST_ARGUMENT_AT, SECOND_ARGUMENT_AT = 0, 4, 16, 24  # offsets in struct seccomp_data, little-endian
ALLOW, REFUSE, KILL = 0x7FFF0000, 0x00050000 | 1, 0x80000000  # SECCOMP_RET_ALLOW, _ERRNO with EPERM, _KILL_PROCESS
IGNORE = 0x00050000  # SECCOMP_RET_ERRNO without an error


def detect_architecture() -> str | None:
    """Detect the architecture; None if there is no filter for it."""
    name = platform.machine()
    return name if sys.platform == "linux" and sys.byteorder == "little" and name in NUMBERS else None


def compile_filter(architecture: str, without: Collection[str] = PROCESSES, for_program: bool = True) -> bytes:
    """Compile the filter as the kernel takes it: an array of `struct sock_filter`.

    That of a program makes its end tell who ended it: no exit code of its own stands for a signal, and its time stays as it is.
    """
    code = [
        _pack_instruction(LOAD, value=ARCHITECTURE_AT),
        _pack_instruction(EQUAL, ARCHITECTURES[architecture], no=0, yes=1),
        _pack_instruction(RETURN, KILL),
        _pack_instruction(LOAD, value=CALL_AT),
    ]
    for name, number in sorted(NUMBERS[architecture].items()):
        if name in without:
            continue
        if name in COMMANDS:
            passing = [c for c in COMMANDS[name] if not (for_program and name == "prlimit64" and c == PROCESSOR_TIME)]
            inner = _check_command(passing)
        elif name in EXITS and for_program:
            inner = _check_exit_code()
        else:
            inner = [_pack_instruction(RETURN, IGNORE if name in IGNORED else ALLOW)]
        code += [_pack_instruction(EQUAL, number, no=len(inner)), *inner]
    code.append(_pack_instruction(RETURN, REFUSE))
    return b"".join(code)


def _check_command(passing: Sequence[int]) -> list[bytes]:
    """Let a call pass if its second argument is one of these."""
    allowed = [pair for c in passing for pair in (_pack_instruction(EQUAL, c, no=1), _pack_instruction(RETURN, ALLOW))]
    return [_pack_instruction(LOAD, SECOND_ARGUMENT_AT), *allowed, _pack_instruction(RETURN, REFUSE)]


def _check_exit_code() -> list[bytes]:
    """Let a process exit with a code below those of signals, of which the kernel keeps eight bits."""
    return [
        _pack_instruction(LOAD, FIRST_ARGUMENT_AT),
        _pack_instruction(AND, 0xFF),
        _pack_instruction(AT_LEAST, SIGNALLED, no=1),
        _pack_instruction(RETURN, KILL),
        _pack_instruction(RETURN, ALLOW),
    ]


def _pack_instruction(operation: int, value: int = 0, yes: int = 0, no: int = 0) -> bytes:
    """Pack one `struct sock_filter`; `yes` and `no` are how many instructions a comparison skips."""
    return struct.pack("=HBBI", operation, yes, no, value)
