"""The run folder: config, metrics, timings, preferences, rollouts, checkpoints, models, report. See docs/run-folder.md.

Invariant: one process at a time works in it; `metrics.jsonl` up to the turn of the newest checkpoint never changes again.
"""

from __future__ import annotations

import fcntl
import re
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import IO

from milonga.config import Config, parse_config, read_toml, to_toml
from milonga.errors import RunFolderError
from milonga.runfolder.checkpoints import Checkpoints
from milonga.runfolder.files import JsonLines, open_ours, translate_disk_errors, write_atomically
from milonga.runfolder.rollouts import write_rollouts
from milonga.types import Floats, Rollouts

DATA = "data.jsonl"
"""The rows that a program passed as data."""
OURS_BEFORE_A_RUN = ("lock", "tracker-id", "error.txt", "tensorboard", DATA)
"""Files that a failed start, or a comparison, may have left in a folder that holds no run yet."""


class RunFolder:
    """A run folder, used in a `with` statement: it holds a lock until the end, which a kill releases too."""

    def __init__(self, path: Path, keep: int) -> None:
        self.path = path
        self.metrics = JsonLines(path / "metrics.jsonl")
        self.timing = JsonLines(path / "timing.jsonl")
        self.preferences = JsonLines(path / "preferences.jsonl")
        self.machine = JsonLines(path / "machine.jsonl")
        self.checkpoints = Checkpoints(path / "checkpoints", keep)
        self._lock: IO[str] | None = None

    def __enter__(self) -> RunFolder:
        with translate_disk_errors(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = open_ours(self.path / "lock", "w")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
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
        write_atomically(self.path / "config.toml", to_toml(config.model_dump(mode="json")))

    def extend(self, config: Config) -> None:
        """Replace the config by one with more turns. The run has not ended any more."""
        (self.path / "report.json").unlink(missing_ok=True)  # first: killed in between, the run ends again where it had
        write_atomically(self.path / "config.toml", to_toml(config.model_dump(mode="json")))

    def rewind(self, turn: int) -> None:
        """Remove everything after the checkpoint that is resumed from: it will be computed again, bit for bit."""
        self.metrics.truncate_after(turn)
        self.timing.truncate_after(turn)
        self.preferences.truncate_after(turn)
        self.checkpoints.remove_after(turn)
        for path in (self.path / "rollouts").glob("turn-*.parquet"):
            found = re.fullmatch(r"turn-(\d+)\.parquet", path.name)
            if found and int(found[1]) > turn:
                path.unlink()

    def save_rollouts(self, turn: int, rollouts: Rollouts, advantages: Mapping[str, Floats]) -> None:
        write_rollouts(self.path / "rollouts" / f"turn-{turn:06d}.parquet", rollouts, advantages)


def read_config(path: Path) -> Config:
    """Read the config of an existing run."""
    if not path.is_dir():
        raise RunFolderError(f"run folder '{path}' does not exist")
    if not (path / "config.toml").exists():
        raise RunFolderError(f"'{path}' is not a run folder: it has no config.toml")
    return parse_config(read_toml(path / "config.toml"))
