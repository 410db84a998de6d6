"""Log metrics to optional trackers: tensorboard, wandb, trackio. A resumed run continues the same run of the tracker."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from milonga.errors import MissingExtra, RunFolderError
from milonga.reading import SETTINGS, UNREADABLE, explain_unreadable, read_text
from milonga.runfolder.files import write_atomically


class Tracker(Protocol):
    """Logs the numbers of a metrics row."""

    def log(self, turn: int, numbers: Mapping[str, float]) -> None: ...

    def close(self) -> None: ...


class _Tensorboard:
    def __init__(self, folder: Path, start: int) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise MissingExtra("the tracker 'tensorboard'", "tensorboard") from None
        # purge_step hides what an interrupted run logged after the turn that is resumed.
        self.writer = SummaryWriter(str(folder / "tensorboard"), purge_step=start + 1)  # type: ignore[no-untyped-call]

    def log(self, turn: int, numbers: Mapping[str, float]) -> None:
        for key, value in numbers.items():
            self.writer.add_scalar(key, value, turn)  # type: ignore[no-untyped-call]

    def close(self) -> None:
        self.writer.close()  # type: ignore[no-untyped-call]


class _Wandb:
    """wandb, or trackio, which has the same interface."""

    def __init__(self, module: str, folder: Path, project: str, config: dict[str, Any]) -> None:
        try:
            self.module: Any = __import__(module)
        except ImportError:
            raise MissingExtra(f"the tracker '{module}'", module) from None
        name = _get_run_id(folder)
        extra: dict[str, Any] = {"dir": str(folder), "id": name} if module == "wandb" else {}
        self.module.init(project=project, name=name, config=config, resume="allow", **extra)

    def log(self, turn: int, numbers: Mapping[str, float]) -> None:
        self.module.log(dict(numbers), step=turn)

    def close(self) -> None:
        self.module.finish()


def _get_run_id(folder: Path) -> str:
    """The run's id in a tracker: made once and saved in the folder, so that a resumed run is the same run."""
    file = folder / "tracker-id"
    if not file.exists():
        plain = "".join(c if c.isalnum() else "-" for c in folder.resolve().name)
        write_atomically(file, f"{plain}-{secrets.token_hex(4)}")
    try:
        return read_text(file, SETTINGS).strip()
    except UNREADABLE as error:
        raise RunFolderError(f"'{file}' cannot be read: {explain_unreadable(error)}") from None


def open_trackers(names: Sequence[str], folder: Path, project: str, config: dict[str, Any], start: int) -> list[Tracker]:
    out: list[Tracker] = []
    for name in names:
        out.append(_Tensorboard(folder, start) if name == "tensorboard" else _Wandb(name, folder, project, config))
    return out


def select_numbers(row: Mapping[str, Any]) -> dict[str, float]:
    return {k: float(v) for k, v in row.items() if isinstance(v, int | float) and not isinstance(v, bool) and k != "turn"}
