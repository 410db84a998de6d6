"""Load the user's own code, named `path/to/file.py:attribute` or `package.module:attribute`, and name what a program passes.

Invariants: every error in the user's file is reported in one line that says where it is; the same file is loaded once. The
user's code runs in our process and is trusted.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import secrets
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any

from milonga.errors import ConfigError, suggest_name

PACKAGE = str(Path(__file__).parent)
LIVE = "live/"
"""Prefix of the names of objects that only the running program can give."""
_live: dict[str, Any] = {}
"""Objects that the running program passed, by the names that configs have for them."""


def name_object(found: Any) -> str:
    """Name a function, a class or an instance that the running program passed, for a config: `load_attribute` finds it again.

    The name is a place to import it from, where there is one. Otherwise (a lambda, a notebook's cell, an instance) it is
    `live/KEY:name`, which no other process can load.
    """
    own = str(getattr(found, "__name__", type(found).__name__)).strip("<>")
    name = _find_place(found) or f"{LIVE}{secrets.token_hex(4)}:{own}"
    _live[name] = found
    return name


def format_name(name: str) -> str:
    """Format the name of the user's code for a message: without the key of an object that was passed."""
    return name.rpartition(":")[2] if name.startswith(LIVE) else name


def pass_again(name: str, found: Any) -> None:
    """Pass an object that a config has a name for, in another process than the one that named it."""
    _live[name] = found


def is_passed(name: str) -> bool:
    """Whether a name of a config can only be that of an object which the running program passed, or has to pass: no file or
    module is loaded for it, however its path is written."""
    if name.startswith(LIVE) and not name.rpartition(":")[0].endswith(".py"):
        return True
    return name in _live and make_path_absolute(name) in _live


def get_live(name: str) -> Any:
    """Return the object that the running program passed under a name; None if there is none."""
    return _live.get(name)


def _find_place(found: Any) -> str | None:
    """Find where an object can be imported from: `file.py:name`, or `package.module:name` in a package; None if nowhere."""
    module = sys.modules.get(str(getattr(found, "__module__", None)))
    name = str(getattr(found, "__qualname__", ""))
    if module is None or module.__name__ == "__main__" or getattr(module, name, None) is not found:
        return None
    file = getattr(module, "__file__", None)
    alone = not module.__package__ and file is not None and file.endswith(".py")
    return f"{make_absolute(str(file))}:{name}" if alone else f"{module.__name__}:{name}"


def load_attribute(kind: str, name: str) -> tuple[Any, ModuleType]:
    """Load what `place:attribute` names, and its module. `kind` is used in error messages: a task, a recipe."""
    place, _, attribute = name.rpartition(":")
    if name in _live:
        return _live[name], sys.modules.get(str(_live[name].__module__), ModuleType("live"))
    if place.startswith(LIVE):
        raise ConfigError(
            f"{kind} '{attribute}' was passed by a program that has ended; pass it again: milonga.resume(FOLDER, {kind}=...)"
        )
    if not place or not attribute:
        raise ConfigError(f"{kind} '{name}': a {kind} of your own is named 'path/to/file.py:attr' or 'package.module:attr'")
    module = _load_file(kind, Path(place)) if place.endswith(".py") else _load_module(kind, place)
    if not hasattr(module, attribute):
        public = [key for key in vars(module) if not key.startswith("_")]
        raise ConfigError(f"{kind} '{name}': there is no '{attribute}' in '{place}'; {suggest_name(attribute, public)}")
    return getattr(module, attribute), module


def expand_home(path: str) -> Path:
    """Expand `~` at the beginning of a path."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise ConfigError(f"'{path}' names the home of a user who is not known here; write the whole path") from None


def make_absolute(path: str) -> str:
    return str(expand_home(path).absolute())


def is_attribute(name: str) -> bool:
    """Whether a name is that of something in Python (`file.py:attribute`, or an object that was passed) rather than a file."""
    return name in _live or name.startswith(LIVE) or name.rpartition(":")[0].endswith(".py")


def make_path_absolute(name: str) -> str:
    """Make the path in `file.py:attribute` absolute, so that a run can be resumed from another folder; other names stay."""
    file, colon, attribute = name.rpartition(":")
    return f"{make_absolute(file)}{colon}{attribute}" if file.endswith(".py") else name


def make_load_error(what: str, error: BaseException) -> ConfigError:
    """Make a one-line error: what failed, where in the user's file, and why."""
    message = next(iter(str(error).splitlines()), "")
    return ConfigError(f"{what} failed{_find_user_line(error)}: {type(error).__name__}{': ' if message else ''}{message}")


def describe_place(found: Any) -> str:
    """Describe where a function of the user's is defined: its file and line, as far as Python knows."""
    try:
        return f"{Path(inspect.getfile(found)).name}, line {inspect.getsourcelines(found)[1]}"
    except (TypeError, OSError):  # built in, or typed into an interpreter
        return f"a value of type {type(found).__name__}"


def _load_file(kind: str, path: Path) -> ModuleType:
    if not path.is_file():
        raise ConfigError(f"{kind} file '{path}' does not exist")
    _add_to_path(path.resolve().parent)
    # The same file is one module, so that its classes stay identical; two files of one name are two.
    key = "milonga_own_" + hashlib.blake2b(str(path.resolve()).encode(), digest_size=8).hexdigest()
    if key in sys.modules:
        return sys.modules[key]
    spec = importlib.util.spec_from_file_location(key, path.resolve())
    assert spec is not None and spec.loader is not None  # a path that ends in .py always has a loader
    sys.modules[key] = module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[key]
        raise make_load_error(f"{kind} file '{path}'", error) from None
    return module


def _load_module(kind: str, place: str) -> ModuleType:
    if not all(part.isidentifier() for part in place.split(".")):
        raise ConfigError(f"'{place}' is neither a file that ends in .py nor the name of a module")
    _add_to_path(Path.cwd())
    try:
        return importlib.import_module(place)
    except (Exception, SystemExit) as error:
        # A module that is not there differs from one that imports something that is not there.
        if isinstance(error, ModuleNotFoundError) and f"{place}.".startswith(f"{error.name}."):
            raise ConfigError(f"{kind} module '{place}' cannot be found: there is no '{error.name}'") from None
        raise make_load_error(f"{kind} module '{place}'", error) from None


def _add_to_path(folder: Path) -> None:
    """Add a folder to `sys.path`, so that the user's files can import each other. Last, so that they shadow no package."""
    if str(folder) not in sys.path:
        sys.path.append(str(folder))


def _find_user_line(error: BaseException) -> str:
    """Find the outermost line of the user's code in a traceback; empty if there is none."""
    if isinstance(error, SyntaxError) and error.filename is not None:
        return f" in {Path(error.filename).name}, line {error.lineno}"
    frames = traceback.extract_tb(error.__traceback__)
    users = [f for f in frames if not f.filename.startswith(PACKAGE) and "importlib" not in f.filename]
    return f" in {Path(users[0].filename).name}, line {users[0].lineno}" if users else ""
