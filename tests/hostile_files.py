"""Files that somebody else may have made: every way in which a file of a run folder, or of data, can be another than ours."""

from __future__ import annotations

import copy
import json
import os
import random
import shutil
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import tomli_w

DEEP = "[" * 2000 + "]" * 2000
RAW = ("9" * 400, "9" * 5000, "NaN", "-Infinity", "1e999", '"\\ud800"', '"\\u001b[2J\\u202e"', DEEP, "")
"""Values that only the text of a file can hold: numbers, halves of characters, nesting; or none at all."""
VALUES: tuple[Any, ...] = (None, True, -1, 10**18, 0.5, "", "text", [], [[1], "a"], {}, {"a": {"b": []}})
BYTES = (b"", b"\xff\xfe", b"null", b"5", b"[]", b"{}", b'{"files": {}}', b"{", b"[" * 100_000, b"\0" * 100, b"PAR1PAR1")
MARK = "the raw value"


def make_pipe(path: Path) -> None:
    os.mkfifo(path)


def make_endless(path: Path) -> None:
    path.symlink_to("/dev/zero")


def make_folder(path: Path) -> None:
    path.mkdir()


def make_huge(path: Path) -> None:
    """A file of 8 TiB that takes no room."""
    with path.open("wb") as file:
        file.truncate(1 << 43)
        file.seek(0)
        file.write(b"{")


def make_dangling(path: Path) -> None:
    path.symlink_to("nowhere")


KINDS: tuple[Callable[[Path], None], ...] = (make_pipe, make_endless, make_folder, make_huge, make_dangling)


def replace_by_kind(path: Path, make: Callable[[Path], None]) -> None:
    path.unlink()
    make(path)


def list_places(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """List the places of nested data, the whole included."""
    yield place
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from list_places(inner, (*place, key))


def damage_value(value: Any, rng: random.Random) -> str:
    """Make JSON of data in which one value, or key, is another: of another kind, missing, twice, or nothing that JSON has."""
    value = copy.deepcopy(value)
    place = rng.choice(list(list_places(value)))
    if not place:
        return json.dumps(rng.choice(VALUES))
    holder = value
    for key in place[:-1]:
        holder = holder[key]
    way = rng.choice(("value", "raw", "missing", "twice", "other"))
    if way == "value":
        holder[place[-1]] = rng.choice(VALUES)
    elif way == "missing":
        del holder[place[-1]]
    elif way == "other" and isinstance(holder, dict):
        holder[f"{place[-1]}\x1b[31m"] = holder.pop(place[-1])
    elif way == "twice" and isinstance(holder, dict):
        holder[MARK] = 1
        return json.dumps(value).replace(json.dumps(MARK), json.dumps(place[-1]), 1)
    else:
        holder[place[-1]] = MARK
        return json.dumps(value).replace(json.dumps(MARK), rng.choice(RAW), 1)
    return json.dumps(value)


def damage_text(path: Path, rng: random.Random) -> bytes:
    """Make another content for a file of JSON, JSON lines or TOML."""
    content = path.read_bytes()
    way = rng.choice(("bytes", "cut", "value", "value", "value", "value"))
    if way == "bytes":
        return rng.choice(BYTES)
    if way == "cut":
        return content[: rng.randrange(len(content) + 1)]
    if path.suffix == ".toml":
        damaged = damage_value(tomllib.loads(content.decode()), rng)
        try:
            return tomli_w.dumps(json.loads(damaged)).encode()
        except (TypeError, ValueError, RecursionError, AttributeError):  # not all of it is TOML
            return content.replace(b"turns = ", b"turns = " + rng.choice(RAW).encode(), 1)
    lines = content.decode().splitlines() if path.suffix == ".jsonl" else [content.decode()]
    at = rng.randrange(len(lines))
    lines[at] = damage_value(json.loads(lines[at]), rng)
    return "\n".join(lines).encode()


def seal_again(checkpoint: Path) -> None:
    """Write the marker of a checkpoint anew, as somebody would who forges one."""
    from milonga.checksum import checksum

    files = [file for file in checkpoint.iterdir() if file.name != "complete.json" and file.is_file()]
    seals = {file.name: {"bytes": file.stat().st_size, "crc32": checksum(file)} for file in files}
    (checkpoint / "complete.json").write_text(json.dumps({"turn": 0, "files": seals}))


def copy_folder(source: Path, target: Path) -> Path:
    """Copy a run folder; its large files are links, which nobody writes to."""

    def copy_file(one: str, other: str) -> None:
        (os.link if one.endswith(".safetensors") else shutil.copy)(one, other)

    shutil.rmtree(target, ignore_errors=True)
    return Path(shutil.copytree(source, target, copy_function=copy_file))
