"""The body of `milonga report`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from milonga.report import PAGE, write_report


def write_reports(folders: Sequence[Path], out: Path | None, markdown: bool, console: Console) -> dict[str, Any]:
    """Write the report of these folders; return what `--json` prints: the files written."""
    place = out if out is not None else folders[0] / PAGE if len(folders) == 1 else Path(PAGE)
    written = write_report(folders, place, markdown)
    for path in written:
        console.print(f"report: {path}", markup=False, highlight=False, soft_wrap=True)
    return {"reports": [str(path) for path in written]}
