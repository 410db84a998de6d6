"""Load the user's own code, named `path/to/file.py:attribute` or `package.module:attribute`.

Invariants: every error in the user's file is reported in one line that says where it is; the same file is loaded once. The
user's code runs in our process and is trusted.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any

from milonga.errors import ConfigError, suggest_name

PACKAGE = str(Path(__file__).parent)


def load_attribute(kind: str, name: str) -> tuple[Any, ModuleType]:
    """Load what `place:attribute` names, and its module. `kind` is used in error messages: a task, a recipe."""
    place, _, attribute = name.rpartition(":")
    if not place or not attribute:
        raise ConfigError(f"{kind} '{name}': a {kind} of your own is named 'path/to/file.py:attr' or 'package.module:attr'")
    module = _load_file(kind, Path(place)) if place.endswith(".py") else _load_module(kind, place)
    if not hasattr(module, attribute):
        public = [key for key in vars(module) if not key.startswith("_")]
        raise ConfigError(f"{kind} '{name}': there is no '{attribute}' in '{place}'; {suggest_name(attribute, public)}")
    return getattr(module, attribute), module


def make_absolute(path: str) -> str:
    return str(Path(path).expanduser().absolute())


def make_path_absolute(name: str) -> str:
    """Make the path in `file.py:attribute` absolute, so that a run can be resumed from another folder; other names stay."""
    file, colon, attribute = name.rpartition(":")
    return f"{make_absolute(file)}{colon}{attribute}" if file.endswith(".py") else name


def make_load_error(what: str, error: BaseException) -> ConfigError:
    """Make a one-line error: what failed, where in the user's file, and why."""
    message = next(iter(str(error).splitlines()), "")
    return ConfigError(f"{what} failed{_find_user_line(error)}: {type(error).__name__}{': ' if message else ''}{message}")


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
