"""The body of `milonga doctor`: installed packages, devices, and what would be used."""

from __future__ import annotations

import os
import platform
from pathlib import Path

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


def examine(console: Console) -> None:
    import torch

    from milonga.engine.local.engine import choose_device
    from milonga.engine.local.models import resolve_model_path
    from milonga.runfolder.files import free_bytes

    table = Table("package", "version", "what for")
    for name in CORE:
        table.add_row(name, get_version(name) or "[red]missing[/red]", "core")
    for name, extra in EXTRAS.items():
        found = get_version(name) or get_version(f"{name}-cpu")  # vLLM is packaged apart for machines without a GPU
        table.add_row(name, found or "—", extra if found else escape(format_install_hint(extra)))
    console.print(table)
    device = choose_device("auto")
    console.print(f"python {platform.python_version()} on {platform.system()}, {os.cpu_count()} cores")
    console.print(f"device: {device}" + (f" ({torch.cuda.get_device_name(device)})" if device.type == "cuda" else ""))
    console.print(f"torch threads: {torch.get_num_threads()}")
    weights = Path(resolve_model_path("embedded")) / "model.safetensors"
    size = f"{weights.stat().st_size / 2**20:.1f} MiB" if weights.exists() else "[red]missing[/red]"
    console.print(f"embedded model: {size}")
    console.print(f"sandbox: {_describe_sandbox()}", markup=False, soft_wrap=True)
    console.print(f"free disk here: {free_bytes(Path.cwd()) / 2**30:.1f} GiB")
