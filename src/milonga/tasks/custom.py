"""Tasks of the user's own, named `path/to/file.py:attr` or `package.module:attr`, without touching the package.

The attribute is a `Task` subclass, or a function `f(rng: random.Random) -> (question, answer)`. A function becomes a task
whose splits are disjoint by a hash of the question, graded by exact match after `strip`, by the function's own attribute
`grade`, or by a function `grade(question, answer, given) -> bool` of its module.

Invariants: every mistake in the user's file is one line that says where it is; an exception in the user's grader grades
None. The user's code runs in our process and is trusted as such: a grader that evaluates answers is the user's own risk.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import random
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

from pydantic import Field

from milonga.errors import ConfigError, nearest
from milonga.tasks.base import Task, TaskOptions, keyed, split_of
from milonga.types import Grade, Problem, Split

Maker = Callable[[random.Random], tuple[str, str]]
TRIES = 2000
"""Draws before giving up on a split: a tenth of all texts is dev, so that only a handful of texts can miss it so often."""


def custom_task(name: str) -> type[Task]:
    """The task class behind `place:attr`."""
    place, _, attr = name.rpartition(":")
    if not place or not attr:
        raise ConfigError(f"task '{name}': a task of your own is named 'path/to/file.py:attr' or 'package.module:attr'")
    module = _load_file(Path(place)) if place.endswith(".py") else _load_module(place)
    if not hasattr(module, attr):
        public = [key for key in vars(module) if not key.startswith("_")]
        raise ConfigError(f"task '{name}': there is no '{attr}' in '{place}'; {nearest(attr, public)}")
    found = getattr(module, attr)
    if inspect.isclass(found) and issubclass(found, Task):
        return _checked_class(found, name, attr)
    if inspect.isclass(found) or not callable(found):
        kind = "class" if inspect.isclass(found) else type(found).__name__
        raise ConfigError(f"task '{name}' is neither a Task subclass nor a function of a random source, but a {kind}")
    return _from_function(found, getattr(found, "grade", None) or getattr(module, "grade", None), name, attr)


def _checked_class(found: type[Task], name: str, attr: str) -> type[Task]:
    if inspect.isabstract(found):
        missing = ", ".join(sorted(found.__abstractmethods__))
        raise ConfigError(f"task '{name}': class '{attr}' does not define {missing}")
    if not hasattr(found, "name"):
        found.name = attr
    return found


def _load_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise ConfigError(f"task file '{path}' does not exist")
    _importable(path.resolve().parent)
    # Two files of the same name are two modules; the same file is one, so that its classes stay identical.
    digest = hashlib.blake2b(str(path.resolve()).encode(), digest_size=6).hexdigest()
    key = f"milonga_task_{digest}"
    if key in sys.modules:
        return sys.modules[key]
    spec = importlib.util.spec_from_file_location(key, path)
    assert spec is not None and spec.loader is not None  # a path that ends in .py always has a loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[key] = module
    try:
        with _one_line(f"task file '{path}'", str(path)):
            spec.loader.exec_module(module)
    except ConfigError:
        del sys.modules[key]
        raise
    return module


def _load_module(place: str) -> ModuleType:
    _importable(Path.cwd())
    try:
        with _one_line(f"task module '{place}'", None):
            return importlib.import_module(place)
    except ModuleNotFoundError as error:
        raise ConfigError(f"task module '{place}' cannot be found: there is no '{error.name}'") from None
    except (ValueError, TypeError):
        raise ConfigError(f"'{place}' is not the name of a module") from None


def _importable(folder: Path) -> None:
    """Let the user's files import their neighbours. Last in line, so that they never shadow an installed package."""
    if str(folder) not in sys.path:
        sys.path.append(str(folder))


@contextmanager
def _one_line(what: str, filename: str | None) -> Iterator[None]:
    """Turn any exception of the user's code into one line with its place; a module that is not there passes through."""
    try:
        yield
    except ConfigError:
        raise
    except Exception as error:
        if filename is None and isinstance(error, ModuleNotFoundError) and what.startswith(f"task module '{error.name}"):
            raise
        line = _line_of(error, filename)
        message = next(iter(str(error).splitlines()), "")
        raise ConfigError(f"{what}{line}: {type(error).__name__}: {message}".rstrip(": ")) from None


def _line_of(error: Exception, filename: str | None) -> str:
    """`, line N`: where in the user's file it happened, or where the deepest frame outside the import system was."""
    if isinstance(error, SyntaxError) and error.lineno is not None:
        return f", line {error.lineno}"
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if (f.filename == filename if filename else "importlib" not in f.filename)]
    # The first frame is ours; a module that fails while it is imported stands below it.
    own = own if filename else own[1:]
    return f", line {own[-1].lineno}" if own else ""
