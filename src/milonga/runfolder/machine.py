"""Describe the machine of a run: versions, hardware, the command. Kept apart from the metrics, which must not depend on it."""

from __future__ import annotations

import datetime as dt
import os
import platform
import shlex
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

CORE = ("milonga", "torch", "transformers", "safetensors", "numpy", "pydantic", "pyarrow", "typer", "rich")


def get_version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def describe_machine(turn: int) -> dict[str, Any]:
    """Make a row of machine.jsonl for a process that starts or resumes at this turn."""
    gpus = _list_gpus()
    return {
        "turn": turn,
        "started": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        "command": get_command(),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "processor": _get_processor(),
        "cores": os.cpu_count(),
        "memory_gib": _get_memory_gib(),
        "gpus": [str(gpu.name) for gpu in gpus],
        "gpu_gib": [round(gpu.total_memory / 2**30, 1) for gpu in gpus],
        "versions": {name: found for name in CORE if (found := get_version(name))},
    }


def get_command() -> str | None:
    """The command line of this process if it is `milonga`; None for a user's own program, which is not recorded."""
    name = Path(sys.argv[0])
    ours = name.name == "milonga" or name.parent.name == "milonga"  # python -m milonga
    return shlex.join(["milonga", *sys.argv[1:]]) if ours else None


def _get_processor() -> str:
    """The name of the processor, if the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.processor())


def _get_memory_gib() -> float | None:
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)
    except (ValueError, OSError):  # not every system tells it
        return None


def _list_gpus() -> list[Any]:
    """List what torch says of the GPUs. It is asked only if it is already imported: importing it takes a second."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        return []
    return [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
