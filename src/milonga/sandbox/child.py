"""The process that runs one program and ends. It runs as a script, once, and imports nothing of Milonga but `codec`.

Invariants:
- It holds the program and its inputs, and nothing else: whatever the program finds or forges here is its own.
- Limits are in force before the program is read. What it says goes to one descriptor: `ready` and the seconds that
  starting took, then one line of JSON. Who reads it trusts none of it.
- It ends by `_exit`: nothing that a program left for the end is run.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import resource
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:  # at run time `typing` is slow to load
    from types import CodeType, ModuleType
    from typing import Any, NoReturn

Module = type(sys)
TEXT = 500
"""Characters of an exception's text that are reported."""
SET_DEATH_SIGNAL, SET_NO_NEW_PRIVILEGES, SET_SECCOMP, FILTER_MODE, SIGKILL = 1, 38, 22, 2, 9
REMOUNT, NO_SET_USER_ID, NO_DEVICES = 32, 2, 4
CAPABILITY_VERSION = 0x20080522
OUT_OF_MEMORY = 3
"""The exit code of a process that could not even say so."""


def main() -> NoReturn:
    setup = json.loads(sys.argv[1])
    codec = _load_module("codec", os.path.dirname(os.path.abspath(__file__)))
    os.environ.clear()
    sys.argv[:] = ["program"]
    if setup["files"] is not None:
        _bound_files(setup["files"])
        _drop_capabilities()
    set_limits(setup["limits"])
    _load_syscall_filter(os.read(setup["filter"], 1 << 16))
    os.close(setup["filter"])
    _write_line(setup["result"], f"ready {time.process_time():.6f}")
    request = json.loads(_receive_request())
    gc.collect()
    gc.freeze()
    perform_request(request, setup["result"], codec)


def _load_module(name: str, folder: str) -> Any:
    """Load a module from our folder; leave neither on the import path of the program."""
    sys.path.insert(0, folder)
    module = __import__(name)
    del sys.path[0], sys.modules[name]
    return module


def set_limits(limits: dict[str, int]) -> None:
    """Set soft and hard resource limits, by the names of `resource`."""
    for name, value in limits.items():
        if hasattr(resource, name):
            resource.setrlimit(getattr(resource, name), (value, value))


def _bound_files(most: int) -> None:
    """Bound the number of files in scratch. Where the system forbids it, only their size is bounded: `doctor` measures it."""
    import ctypes

    ctypes.CDLL(None).mount(None, b"/scratch", None, REMOUNT | NO_SET_USER_ID | NO_DEVICES, b"nr_inodes=%d" % most)


def _drop_capabilities() -> None:
    """Give up every capability for good: no program may be read while there is one."""
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    head, none = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION, 0), (ctypes.c_uint32 * 6)()
    if libc.capset(head, none) != 0:
        raise OSError(ctypes.get_errno(), "capset")


def _load_syscall_filter(code: bytes) -> None:
    """Load a seccomp filter into this process, and make it die with its parent."""
    import ctypes

    class Filter(ctypes.Structure):
        _fields_ = [("length", ctypes.c_ushort), ("code", ctypes.c_char_p)]

    libc = ctypes.CDLL(None, use_errno=True)
    program = Filter(len(code) // 8, code)
    arguments: tuple[tuple[Any, ...], ...] = (
        (SET_DEATH_SIGNAL, SIGKILL, 0, 0, 0),
        (SET_NO_NEW_PRIVILEGES, 1, 0, 0, 0),
        (SET_SECCOMP, FILTER_MODE, ctypes.byref(program), 0, 0),
    )
    for each in arguments:
        if libc.prctl(*each) != 0:
            raise OSError(ctypes.get_errno(), f"prctl {each[0]}")


def _receive_request() -> bytes:
    """Receive the request: its length in a line, then so many bytes. The rest is the program's standard input."""
    head = b""
    while not head.endswith(b"\n"):
        byte = os.read(0, 1)
        if not byte:
            os._exit(0)  # nobody wants us any more
        head += byte
    body = bytearray()
    while len(body) < int(head):
        part = os.read(0, int(head) - len(body))
        if not part:
            os._exit(0)
        body += part
    return bytes(body)


def _write_line(descriptor: int, line: str) -> None:
    data = line.encode() + b"\n"
    while data:
        data = data[os.write(descriptor, data) :]


def perform_request(request: dict[str, Any], descriptor: int, codec: Any) -> NoReturn:
    """Run the program, write the report, exit. The report is made of what was gathered, whatever the program did here."""
    reserve = [bytearray(1 << 20)]  # to have room for saying that there was none
    reply: dict[str, Any] = {"token": request["token"], "failure": None, "results": [], "mutates": False}
    write, leave, flushes, dumps = _write_line, os._exit, (sys.stdout.flush, sys.stderr.flush), json.dumps
    try:
        reply["failure"] = _run_program(request, reply, codec)
    except BaseException as error:
        reserve.clear()
        reply["failure"] = _describe_error(error)
    reserve.clear()
    for flush in flushes:
        with contextlib.suppress(BaseException):
            flush()
    try:
        write(descriptor, dumps(reply))
    except MemoryError:
        leave(OUT_OF_MEMORY)
    finally:
        leave(0)


def _run_program(request: dict[str, Any], reply: dict[str, Any], codec: Any) -> list[str] | None:
    """Run the program and fill in `reply["results"]`; return the failure, None if there is none."""
    entry = request["entry"]
    try:
        code = compile(request["source"], "<program>", "exec", dont_inherit=True)
    except BaseException as error:
        return ["syntax", *_describe_error(error)[1:]]
    module = Module("program" if entry else "__main__")
    sys.modules[module.__name__] = module
    if not entry:
        return _run_script(code, module)
    exec(code, module.__dict__)
    function = module.__dict__.get(entry)
    if function is None:
        return ["exception", "NameError", f"the program does not define {entry}"]
    for text in request["calls"]:
        arguments = codec.decode(text)
        reply["results"].append(_call_function(function, arguments, codec))
        reply["mutates"] = reply["mutates"] or _is_changed(arguments, text, codec)
    return None


def _run_script(code: CodeType, module: ModuleType) -> list[str] | None:
    try:
        exec(code, module.__dict__)
    except SystemExit as end:
        if end.code not in (None, 0):
            raise
    return None


def _call_function(function: Any, arguments: tuple[Any, ...], codec: Any) -> list[str]:
    """Call the function; return the encoded result, or the failure."""
    try:
        returned = function(*arguments)
    except BaseException as error:
        return _describe_error(error)
    try:
        return [codec.encode(returned)]
    except codec.InvalidValue as error:
        return ["bad_output", "InvalidValue", str(error)[:TEXT]]
    except BaseException as error:
        return _describe_error(error)


def _is_changed(arguments: tuple[Any, ...], text: str, codec: Any) -> bool:
    try:
        return bool(codec.encode(arguments) != text)
    except BaseException:
        return True


def _describe_error(error: BaseException) -> list[str]:
    """Return status, name and text of an exception. Its own `__str__` may fail."""
    status = "memory" if isinstance(error, MemoryError) else "exception"
    try:
        return [status, str(type(error).__name__)[:TEXT], str(error)[:TEXT]]
    except BaseException:
        return [status, "", ""]


if __name__ == "__main__":
    main()
