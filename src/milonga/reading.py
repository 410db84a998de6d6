"""Read files that others may have made: run folders, data, studies, models. Whatever they hold, they are data.

Invariants:
- Only regular files are opened, opening never blocks, and no more is read than its size, which each kind has a limit for.
  A link is followed, since caches of models and shared data consist of links; what counts is the file that it leads to.
- What is no JSON or TOML, or holds what no reader expects (a number of 400 digits, infinity, deep nesting, a key twice, half a
  character, another shape), is a `ValueError` whose text is one line. With `OSError` these are all errors: `UNREADABLE`.
"""

from __future__ import annotations

import ast
import errno
import json
import math
import os
import re
import stat
import tomllib
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, TypeVar, cast, overload

from pydantic import TypeAdapter, ValidationError

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

MIB, GIB = 1 << 20, 1 << 30
SETTINGS = MIB
"""Most bytes of a config, plan, study, note, prompt or marker of a checkpoint."""
RESULT = 64 * MIB
"""Most bytes of a file of results: report.json, final.json, compare.json, probe.json."""
STATE = GIB
"""Most bytes of the state in a checkpoint, which may hold buffers, and of a JSON file of a model."""
LINE = 64 * MIB
"""Most bytes of one line of JSON."""
ROWS = 4 * GIB
"""Most bytes of a file of rows, and of the columns that are read of a file of rollouts."""
TEXT = GIB
"""Most bytes of a text file, or of a data file that is read as a whole."""
DATA = 16 * GIB
"""Most bytes of a data file that is read row by row."""
WEIGHTS = 1 << 44
"""Most bytes of a file of weights: larger than any."""
DEPTH = 64
"""Most levels of nesting in JSON and TOML."""
DEEP_KEY = re.compile(rf"""(?<![\w-])(?:(?:[\w-]++|"[^"\n]*+"|'[^'\n]*+')[ \t]*+\.[ \t]*+){{{DEPTH}}}""")
"""A dotted key of TOML that is too deep. A text that looks like one is refused too."""
LARGEST = 10**300
"""Larger integers have no float, with which all readers calculate."""
BATCH = 256
"""Rows of a parquet file that are unpacked at a time."""
UNREADABLE = (OSError, ValueError)
NOT_PYTHON = (SyntaxError, ValueError, RecursionError, MemoryError)
"""What `parse_python` raises for a text that is no Python, or nested too deeply."""
KINDS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)
T = TypeVar("T")


def open_regular(path: Path, most: int) -> BinaryIO:
    """Open a regular file of at most `most` bytes. Anything else is an `OSError` that says what it is, and never waited for."""
    _check_status(os.stat(path), most, path)  # before it is opened: opening a device may already do something
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        _check_status(os.fstat(handle), most, path)  # again: it may be another file by now
        return open(handle, "rb")
    except BaseException:
        os.close(handle)
        raise


def check_regular(path: Path, most: int) -> None:
    """Raise an `OSError` unless a path leads to a regular file of at most `most` bytes, which another library will open."""
    _check_status(os.stat(path), most, path)


def _check_status(status: os.stat_result, most: int, path: Path) -> None:
    if not stat.S_ISREG(status.st_mode):
        what = next((name for fits, name in KINDS if fits(status.st_mode)), "something else")
        raise OSError(errno.EINVAL, f"it is {what}, not a regular file", str(path))
    if status.st_size > most:
        raise OSError(errno.EINVAL, f"it has {status.st_size:,} bytes; more than {most:,} are not read", str(path))


def read_bytes(path: Path, most: int) -> bytes:
    """Read a whole file: as many bytes as its size says. Files that only the system has, such as those of /proc, say none."""
    with open_regular(path, most) as file:
        return file.read(os.fstat(file.fileno()).st_size)


def read_text(path: Path, most: int, encoding: str = "utf-8") -> str:
    return read_bytes(path, most).decode(encoding)


def read_lines(path: Path, most: int) -> Iterator[bytes]:
    """Iterate over the lines of a file, without their ends. A line that is longer than `LINE` is a `ValueError`."""
    with open_regular(path, most) as file:
        left = os.fstat(file.fileno()).st_size
        while left > 0 and (line := file.readline(min(left, LINE + 1))):
            left -= len(line)
            if len(line) > LINE:
                raise ValueError(f"a line has more than {LINE:,} bytes")
            yield line.removesuffix(b"\n")


def read_last_lines(path: Path, most: int) -> list[bytes]:
    """Read the lines at the end of a file, at most `most` bytes of them; the first may be half a line."""
    with open_regular(path, ROWS) as file:
        size = os.fstat(file.fileno()).st_size
        file.seek(max(0, size - most))
        return file.read(min(size, most)).splitlines()


def read_json(path: Path, most: int, finite: bool = True) -> Any:
    return parse_json(read_bytes(path, most), finite)


def read_object(path: Path, most: int, finite: bool = True) -> dict[str, Any]:
    """Read a file that holds one JSON object."""
    found = read_json(path, most, finite)
    if not isinstance(found, dict):
        raise ValueError("it is not an object")
    return found


def read_toml(path: Path, most: int = SETTINGS) -> dict[str, Any]:
    return parse_toml(read_text(path, most))


def parse_json(text: bytes, finite: bool = True, largest: int | None = LARGEST) -> Any:
    """Parse strict JSON in UTF-8. Where not `finite`, the numbers NaN and Infinity that Python writes are allowed; where there
    is no `largest` integer, those that have no float."""
    try:
        constant = _reject_constant if finite else float
        found = json.loads(text.decode("utf-8-sig"), parse_constant=constant, object_pairs_hook=_make_object)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    check_values(found, finite, largest)
    return found


def parse_toml(text: str) -> dict[str, Any]:
    if DEEP_KEY.search(text):  # before it is parsed: the time that takes grows with the square of a key's parts
        raise ValueError(f"a key has more than {DEPTH} parts")
    try:
        found = tomllib.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    check_values(found)
    return found


@overload
def parse_python(source: str | bytes, mode: Literal["exec"] = "exec") -> ast.Module: ...
@overload
def parse_python(source: str | bytes, mode: Literal["eval"]) -> ast.Expression: ...


def parse_python(source: str | bytes, mode: Literal["exec", "eval"] = "exec") -> ast.Module | ast.Expression:
    """Parse a text that others wrote, models among them, without running it; what is no Python raises one of `NOT_PYTHON`.

    Invariant: nothing is printed. Python warns of `1if x else 2` and of stray backslashes, on the terminal of who parses them.
    """
    with warnings.catch_warnings():
        for kind in (SyntaxWarning, DeprecationWarning):  # the latter in Python 3.11
            warnings.simplefilter("ignore", kind)
        return cast("ast.Module | ast.Expression", ast.parse(source, mode=mode))


def _reject_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a value of JSON")


def _make_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"the key {name!r:.80} occurs twice")
        found[name] = value
    return found


def check_values(found: Any, finite: bool = True, largest: int | None = LARGEST) -> None:
    """Raise a `ValueError` where nested data hold what readers cannot calculate with, encode or descend into."""
    level = [found]
    for _ in range(DEPTH):
        inner: list[Any] = []
        for value in level:
            if isinstance(value, Mapping):
                inner += value
                inner += value.values()
            elif isinstance(value, list | tuple):
                inner += value
            else:
                _check_value(value, finite, largest)
        if not inner:
            return
        level = inner
    raise ValueError(f"it is nested more than {DEPTH} levels deep")


def _check_value(value: Any, finite: bool, largest: int | None) -> None:
    if isinstance(value, str):
        check_text(value)
    elif isinstance(value, float):
        if finite and not math.isfinite(value):
            raise ValueError(f"{value} is not a finite number")
    elif isinstance(value, int) and largest is not None and abs(value) >= largest:
        raise ValueError("a number has more than 300 digits")


def check_text(text: str) -> None:
    """Raise a `ValueError` where a text holds half of a character (a lone surrogate): no file or model could take it."""
    if text.isascii():
        return
    try:
        text.encode()
    except UnicodeEncodeError as error:
        half = text[error.start].encode("unicode_escape").decode()
        raise ValueError(f"character {error.start + 1} is half of one (a lone surrogate, {half})") from None


@cache
def _make_adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def check_shape(kind: type[T], found: Any) -> T:
    """Return parsed data as a type (a dataclass, a typed dict, `dict[str, int]`); another shape is a `ValueError`."""
    try:
        checked: T = _make_adapter(cast(Any, kind)).validate_python(found)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise ValueError(f"{place + ': ' if place else ''}{first['msg']}") from None
    return checked


def explain_unreadable(error: OSError | ValueError) -> str:
    """Explain in one line, without the file's name, why it cannot be read."""
    said = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return " ".join(said.split())[:300] or type(error).__name__


@contextmanager
def open_parquet(path: Path, most: int) -> Iterator[pq.ParquetFile]:
    """Open a parquet file that, by its own account, has at most `most` bytes when it is unpacked. What pyarrow raises within
    the `with` statement is a `ValueError`."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    with open_regular(path, most) as source:
        try:
            file = pq.ParquetFile(source)
            _check_unpacked(file.metadata, most)
            yield file
        except (pa.ArrowException, ArithmeticError) as error:
            raise ValueError(f"not parquet ({' '.join(str(error).split())[:200]})") from None


def _check_unpacked(about: pq.FileMetaData, most: int) -> None:
    packed = sum(about.row_group(number).total_byte_size for number in range(about.num_row_groups))
    size = packed + 8 * about.num_rows * about.num_columns
    if size > most:
        raise ValueError(f"unpacked it would have {size:,} bytes; more than {most:,} are not read")


def read_batches(file: pq.ParquetFile, most: int, columns: list[str] | None = None) -> Iterator[pa.RecordBatch]:
    """Iterate over the rows of a parquet file. More than `most` bytes, whatever the file says of itself, are a `ValueError`.

    A value is stored once and may stand in every row: so few rows are unpacked at a time that the largest could be in each.
    """
    about, size = file.metadata, 0
    groups = [about.row_group(number) for number in range(about.num_row_groups)]
    chunks = [group.column(at).total_uncompressed_size for group in groups for at in range(about.num_columns)]
    for batch in file.iter_batches(max(1, min(BATCH, most // max([1, *chunks]))), columns=columns):
        size += sum(_measure_column(column) for column in batch.columns)
        if size > most:
            raise ValueError(f"unpacked it has more than {most:,} bytes")
        yield batch


def _measure_column(column: pa.Array) -> int:
    """Measure the bytes of a column as plain values."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_dictionary(column.type) and pa.types.is_string(column.type.value_type):
        return int(pc.sum(pc.binary_length(column.dictionary).take(column.indices)).as_py() or 0)
    return int(column.nbytes)
