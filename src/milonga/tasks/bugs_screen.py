"""What a patch may not bring: names by which code looks at, or reaches into, what runs it.

No ordinary repair needs them. A file that uses one already may go on using it as often as before. This is a first look, which
keeps simple attempts from being run at all; the verdict does not rest on it.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator

from milonga.reading import parse_python
from milonga.tasks.bugs_checks import Files

MODULES = {
    "pytest", "_pytest", "pluggy", "unittest", "doctest", "gc", "inspect", "ctypes", "_ctypes", "builtins", "importlib",
    "imp", "runpy", "marshal", "atexit", "signal", "faulthandler", "tracemalloc", "code", "codeop", "site",
    "sitecustomize", "usercustomize", "pdb", "bdb", "trace", "linecache", "mmap", "program", "milonga", "__main__",
    "_imp", "_frozen_importlib", "zipimport", "pkgutil", "cffi", "conftest",
}  # fmt: skip
"""Modules that a patch may not begin to import."""
NAMES = {
    "eval", "exec", "compile", "__import__", "globals", "locals", "vars", "breakpoint", "__builtins__", "__loader__",
    "__spec__",
}  # fmt: skip
ATTRIBUTES = {
    "_getframe", "_current_frames", "settrace", "setprofile", "meta_path", "path_hooks", "path_importer_cache",
    "addaudithook", "f_back", "f_locals", "f_globals", "f_builtins", "f_code", "gi_frame", "cr_frame", "ag_frame",
    "tb_frame", "tb_next", "__traceback__", "__globals__", "__code__", "__closure__", "__subclasses__", "__bases__",
    "__mro__", "__base__", "__builtins__", "__import__", "__loader__", "__spec__", "__getattribute__",
    "__init_subclass__", "__set_name__", "__del__", "runtest", "nodeid",
}  # fmt: skip
METHODS = {
    "__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__", "__instancecheck__", "__subclasscheck__",
    "__subclasshook__", "__getattribute__", "__del__", "__set_name__", "__init_subclass__", "__contains__",
}  # fmt: skip
"""Methods by which an object answers for what it is compared with: a class that has none may not be given one."""
DOTTED = {
    "sys.modules", "sys.__stdout__", "sys.__stderr__", "sys.path", "sys.exc_info", "sys.excepthook", "os.write",
    "os._exit", "os.kill", "os.abort", "os.fork", "os.execv", "os.execve", "os.dup", "os.dup2", "os.pipe", "os.fdopen",
    "os.close", "os.closerange", "os.posix_spawn", "os.system", "os.popen", "os.open", "os.read", "os.sendfile",
    "os.memfd_create", "types.FunctionType", "types.CodeType", "types.ModuleType", "operator.attrgetter",
    "operator.methodcaller",
}  # fmt: skip
DYNAMIC = ("getattr", "setattr")


def find_forbidden(start: Files, original: Files, patched: Files) -> str:
    """Find the first thing that a patched file newly uses and may not; empty if there is none."""
    for path in sorted(patched):
        if patched[path] in (start.get(path), original.get(path)):
            continue
        new = _count_uses(patched[path]) - (_count_uses(start.get(path, "")) | _count_uses(original.get(path, "")))
        if new:
            return f"{path} newly uses {min(new)}"
    return ""


def _count_uses(text: str) -> Counter[str]:
    """Count what is used in a source of all that may not be. It is parsed as bytes: as when it is imported, what it says of its
    encoding counts. What is no Python uses nothing, and fails its tests."""
    try:
        tree = parse_python(text.encode(errors="replace"))
    except (SyntaxError, ValueError):
        return Counter()
    except (RecursionError, MemoryError):
        return Counter({"code that is nested too deeply": 1})
    known = dict(_find_aliases(tree))
    return Counter(use for node in ast.walk(tree) for use in _find_uses(node, known))


def _find_aliases(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Find the names that modules have in a source."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((each.asname or each.name, each.name) for each in node.names)


def _find_uses(node: ast.AST, known: dict[str, str]) -> Iterator[str]:
    """Find what a node uses of all that may not be."""
    if isinstance(node, ast.Import | ast.ImportFrom):
        yield from _find_imported(node)
    elif isinstance(node, ast.Name) and node.id in NAMES | METHODS:
        yield node.id
    elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name in METHODS:
        yield node.name
    elif isinstance(node, ast.Attribute):
        home = known.get(node.value.id, "") if isinstance(node.value, ast.Name) else getattr(node.value, "attr", "")
        yield from {f"{home}.{node.attr}"} & DOTTED or {node.attr} & (ATTRIBUTES | METHODS)
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        if node.value in ATTRIBUTES | METHODS | NAMES or "pytest" in node.value or "conftest" in node.value:
            yield f"the word {node.value[:40]!r}"
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in DYNAMIC:
        is_plain = len(node.args) > 1 and isinstance(node.args[1], ast.Constant)
        yield from [] if is_plain else [f"{node.func.id} with a name that is made up"]


def _find_imported(node: ast.Import | ast.ImportFrom) -> Iterator[str]:
    """Find what is imported of all that may not be; what belongs to the same package may."""
    home = "" if isinstance(node, ast.Import) else "." * node.level + (node.module or "")
    for each in node.names:
        name = f"{home}.{each.name}" if home else each.name
        if name.partition(".")[0] in MODULES or name in DOTTED or name in ("sys.*", "os.*"):
            yield name
