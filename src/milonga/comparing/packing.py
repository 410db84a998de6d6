"""Pack what a sweep has done into one small file, and unpack it on another machine.

Invariants: of a finished run the record is packed, not its models, checkpoints and rollouts; of an unfinished one the newest
checkpoint too, as far as the limit allows, those that came furthest first; a run whose checkpoint did not fit begins anew.
"""

from __future__ import annotations

import tarfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from milonga.comparing.pool import Run
from milonga.comparing.progress import read_last_turn
from milonga.comparing.sweep import PLAN, TABLE
from milonga.errors import UserError
from milonga.reading import DATA, UNREADABLE, open_regular
from milonga.runfolder.checkpoints import Checkpoints
from milonga.runfolder.files import free_bytes
from milonga.runfolder.matrix import FILE as MATRIX
from milonga.runfolder.signature import SIGNATURE

RECORD = (
    "config.toml",
    SIGNATURE,
    "metrics.jsonl",
    "timing.jsonl",
    "machine.jsonl",
    "preferences.jsonl",
    "report.json",
    "final.json",
    "pass_rates.json",
    MATRIX,
)
"""What is packed of a run."""
MIB = 2**20
MOST_MEMBERS = 1_000_000
"""Files and folders that are unpacked."""


@dataclass(frozen=True)
class Packed:
    """What a file holds."""

    runs: int
    checkpoints: int
    left: tuple[str, ...]
    """Unfinished runs whose checkpoints did not fit."""
    size: int


def pack(out: Path, runs: Sequence[Run], file: Path, limit_mib: float) -> Packed:
    """Pack the runs that have begun into a gzipped tar file of about `limit_mib` MiB at most (checkpoints hardly shrink)."""
    begun = [run for run in runs if (run.folder / "metrics.jsonl").exists()]
    unfinished = sorted((run for run in begun if not run.finished), key=lambda run: -read_last_turn(run.folder))
    room, kept = limit_mib * MIB, {}
    for run in unfinished:
        found = Checkpoints(run.folder / "checkpoints", 1).find_newest()
        size = sum(part.stat().st_size for part in found[0].iterdir()) if found else 0
        if found and size <= room:
            kept[run], room = found[0], room - size
    resumable = [run for run in begun if run.finished or run in kept]
    with tarfile.open(file, "w:gz", compresslevel=6) as archive:
        for name in (PLAN, TABLE):
            if (out / name).exists():
                archive.add(out / name, name)
        for run in resumable:
            for path in (run.folder / name for name in RECORD):
                if path.exists():
                    archive.add(path, path.relative_to(out).as_posix())
            if run in kept:
                archive.add(kept[run], kept[run].relative_to(out).as_posix())
    left = tuple(run.folder.relative_to(out).as_posix() for run in unfinished if run not in kept)
    return Packed(len(resumable), len(kept), left, file.stat().st_size)


def unpack(file: Path, out: Path) -> None:
    """Unpack a file of `pack` into a sweep's folder; what is there already is replaced."""
    try:
        with open_regular(file, DATA) as source, tarfile.open(fileobj=source, mode="r:gz") as archive:
            members = list(_check_members(archive, free_bytes(out)))
            out.mkdir(parents=True, exist_ok=True)
            archive.extractall(out, members, filter="data")
    except (*UNREADABLE, tarfile.TarError, zlib.error, EOFError) as error:
        raise UserError(f"'{file}' cannot be unpacked: {error}") from None


def _check_members(archive: tarfile.TarFile, room: int) -> Iterator[tarfile.TarInfo]:
    """Iterate over the members of an archive, before anything is unpacked: only files and folders, and no more of them than
    there is room for."""
    for number, member in enumerate(archive, 1):
        room -= member.size
        if not (member.isreg() or member.isdir()):
            raise ValueError(f"'{member.name}' is neither a file nor a folder")
        if room < 0 or number > MOST_MEMBERS:
            raise ValueError("unpacked it would be larger than the disk has room for")
        yield member
