"""The body of `milonga doctor`: installed packages, devices, and what would be used."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from milonga.errors import format_install_hint
from milonga.runfolder.machine import CORE, get_version

EXTRAS = {
    "peft": "lora",
    "math-verify": "math",
    "reasoning-gym": "gym",
    "datasets": "hub",
    "nicegui": "board",
    "gguf": "gguf",
    "fastapi": "serve",
    "httpx": "endpoint",
    "ray": "ray",
    "vllm": "vllm",
    "tensorboard": "tensorboard",
    "wandb": "wandb",
    "trackio": "trackio",
}


def _describe_sandbox() -> str:
    """Describe the best sandbox level that this system offers, and why there is no better one."""
    from milonga.sandbox import isolation
    from milonga.sandbox.executor import is_file_count_bounded, try_level

    reason = try_level("isolated")
    if reason is None:
        bound = "" if is_file_count_bounded() else "; the number of a program's files is not bounded on this system"
        return f"isolated ({isolation.get_bubblewrap_version()}{bound})"
    worse = try_level("limited")
    return f"limited only: {reason}" if worse is None else f"none: {worse}"


def examine() -> dict[str, Any]:
    """Examine this machine and what is installed on it; return it as data."""
    import torch

    from milonga.engine.local.engine import choose_device
    from milonga.engine.local.models import resolve_model_path
    from milonga.runfolder.files import free_bytes

    device = choose_device("auto")
    weights = Path(resolve_model_path("embedded")) / "model.safetensors"
    # vLLM is packaged apart for machines without a GPU.
    versions = {name: get_version(name) or get_version(f"{name}-cpu") for name in (*CORE, *EXTRAS)}
    return {
        "packages": versions,
        "missing": [name for name in CORE if versions[name] is None],
        "extras": {name: extra for name, extra in EXTRAS.items() if versions[name] is None},
        "python": platform.python_version(),
        "system": platform.system(),
        "cores": os.cpu_count(),
        "device": str(device),
        "gpu": torch.cuda.get_device_name(device) if device.type == "cuda" else None,
        "threads": torch.get_num_threads(),
        "embedded_mib": weights.stat().st_size / 2**20 if weights.exists() else None,
        "sandbox": _describe_sandbox(),
        "free_gib": free_bytes(Path.cwd()) / 2**30,
    }


def print_examined(found: dict[str, Any], console: Console) -> None:
    table = Table("package", "version", "what for")
    for name, version in found["packages"].items():
        what = "core" if name in CORE else EXTRAS[name] if version else escape(format_install_hint(EXTRAS[name]))
        table.add_row(name, version or ("[red]missing[/red]" if name in CORE else "—"), what)
    console.print(table)
    console.print(f"python {found['python']} on {found['system']}, {found['cores']} cores")
    console.print(f"device: {found['device']}" + (f" ({found['gpu']})" if found["gpu"] else ""))
    console.print(f"torch threads: {found['threads']}")
    size = "[red]missing[/red]" if found["embedded_mib"] is None else f"{found['embedded_mib']:.1f} MiB"
    console.print(f"embedded model: {size}")
    console.print(f"sandbox: {found['sandbox']}", markup=False, soft_wrap=True)
    console.print(f"free disk here: {found['free_gib']:.1f} GiB")
