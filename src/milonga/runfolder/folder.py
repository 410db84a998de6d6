"""The run folder: config, metrics, timings, preferences, rollouts, checkpoints, models, report. See docs/run-folder.md.

Invariant: one process at a time works in it; `metrics.jsonl` up to the turn of the newest checkpoint never changes again.
"""

from __future__ import annotations

import errno
import fcntl
import re
import tomllib
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from milonga.config import Config, parse_config, read_toml, to_toml
from milonga.errors import Notice, RunFolderError
from milonga.runfolder.checkpoints import Checkpoints
from milonga.runfolder.files import JsonLines, open_ours, translate_disk_errors, write_atomically
from milonga.runfolder.rollouts import write_rollouts
from milonga.runfolder.seals import MACHINE, METRICS, PREFERENCES, TIMING, Loss, keep_aside, mend_rows, read_rows
from milonga.runfolder.signature import SIGNATURE, write_signature
from milonga.types import Floats, Rollouts

DATA = "data.jsonl"
"""The rows that a program passed as data."""
OURS_BEFORE_A_RUN = ("lock", "tracker-id", "error.txt", "tensorboard", DATA, SIGNATURE)
"""Files that a failed start, or a comparison, may have left in a folder that holds no run yet."""


class RunFolder:
    """A run folder, used in a `with` statement: it holds a lock until the end, which a kill releases too."""

    def __init__(self, path: Path, keep: int) -> None:
        self.path = path
        self.metrics = JsonLines(path / METRICS)
        self.timing = JsonLines(path / TIMING)
        self.preferences = JsonLines(path / PREFERENCES)
        self.machine = JsonLines(path / MACHINE)
        self.checkpoints = Checkpoints(path / "checkpoints", keep)
        self._lock: IO[str] | None = None

    def __enter__(self) -> RunFolder:
        with translate_disk_errors(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = open_ours(self.path / "lock", "w")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                text = f"'{self.path}' is on a file system without locks ({error.strerror}): no second process is kept out"
                warnings.warn(text, Notice, stacklevel=2)
                return self
            self._lock.close()
            raise RunFolderError(f"'{self.path}' is in use by another run; wait for it, or choose another --out") from None
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._lock is not None:
            self._lock.close()

    def require_new(self) -> None:
        """Refuse a folder that already holds a run."""
        if (self.path / "config.toml").exists():
            raise RunFolderError(
                f"'{self.path}' already holds a run; continue it with 'milonga resume {self.path}' or choose another --out"
            )
        if any(path.name not in OURS_BEFORE_A_RUN for path in self.path.iterdir()):
            raise RunFolderError(f"'{self.path}' is not empty and holds no run; choose another --out")

    def begin(self, config: Config) -> None:
        """Write the resolved config: from here on the folder holds a run."""
        self.require_new()
        write_signed_config(self.path, config.model_dump(mode="json"))

    def extend(self, config: Config) -> None:
        """Replace the config by one with more turns. The run has not ended any more.

        Only what the config says is written, as it is only that which was signed: what this version added since is left out."""
        (self.path / "report.json").unlink(missing_ok=True)  # first: killed in between, the run ends again where it had
        write_atomically(self.path / "config.toml", to_toml(config.model_dump(mode="json", exclude_unset=True)))

    def rewind(self, turn: int, losses: Sequence[Loss] = ()) -> None:
        """Remove everything after the checkpoint that is resumed from: it will be computed again, bit for bit. Where something
        up to it is lost, what is left is kept, and the damaged file beside it."""
        damaged = {loss.file for loss in losses}
        for file, last in ((self.metrics, turn), (self.timing, turn), (self.preferences, turn), (self.machine, None)):
            if file.path.name in damaged:
                mend_rows(file.path, last)
            else:
                file.truncate_after(last)
        self.checkpoints.remove_after(turn)
        for path in (self.path / "rollouts").glob("turn-*.parquet"):
            found = re.fullmatch(r"turn-(\d+)\.parquet", path.name)
            if found and int(found[1]) > turn:
                path.unlink()

    def restart(self) -> bool:
        """Go back to the beginning, as a run that was killed before its first checkpoint does; True if it had come further, and
        its checkpoints are gone: then its metrics stay beside."""
        went_on = any(row["turn"] > 0 for row in read_rows(self.metrics.path, None).kept)
        if went_on:
            keep_aside(self.metrics.path)
        self.rewind(-1)
        return went_on

    def save_rollouts(self, turn: int, rollouts: Rollouts, advantages: Mapping[str, Floats]) -> None:
        write_rollouts(self.path / "rollouts" / f"turn-{turn:06d}.parquet", rollouts, advantages)


def has_config(folder: Path, config: Config) -> bool:
    """Whether the config of a run is this one, but for the threads, which stay those it began with."""
    own = read_config(folder)
    return own == config.model_copy(update={"threads": own.threads})


def write_signed_config(folder: Path, config: Mapping[str, Any]) -> None:
    """Write the config of a run that this user begins. Its signature comes first: killed in between, there is no run yet."""
    text = to_toml(config)
    write_signature(folder, parse_config(tomllib.loads(text)))  # as it will be read
    write_atomically(folder / "config.toml", text)


def read_config(path: Path) -> Config:
    """Read the config of an existing run."""
    if not path.is_dir():
        raise RunFolderError(f"run folder '{path}' does not exist")
    if not (path / "config.toml").exists():
        raise RunFolderError(f"'{path}' is not a run folder: it has no config.toml")
    return parse_config(read_toml(path / "config.toml"))
