"""The body of `milonga sweep`: read the study, unpack, run, pack, show."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from milonga.cli.stopped import say_how_to_go_on
from milonga.errors import ConfigError


def run_sweep(
    studies: Sequence[Path],
    *,
    out: Path,
    known: Sequence[str],
    settings: Sequence[Mapping[str, Any]],
    minutes: float | None,
    jobs: int | None,
    only: Sequence[str],
    unpack_from: Path | None,
    pack_to: Path | None,
    pack_mib: float,
    list_only: bool,
    console: Console,
) -> dict[str, Any]:
    """Make the missing runs of one or more studies and print what became of them. Return what `--json` prints."""
    from milonga.comparing.packing import pack, unpack
    from milonga.comparing.study import order_runs, read_studies
    from milonga.comparing.sweep import name_run, sweep, time_out

    values = parse_values(known)
    arms = read_studies(studies, values, settings)
    runs = [run for _, run in order_runs(arms, out)]
    if list_only:
        listed = [run for run in runs if not only or name_run(run, out).startswith(tuple(only))]
        names = [name_run(run, out) for run in listed]
        for name, run in zip(names, listed, strict=True):
            console.print(f"{name}{'  finished' if run.finished else ''}", highlight=False, markup=False)
        return {"runs": names}
    if unpack_from is not None:
        unpack(unpack_from, out)
    is_over = time_out(math.inf if minutes is None else minutes)
    with say_how_to_go_on(without="--unpack"):  # unpacked again, it would replace what was made since
        done = sweep(arms, out, values, is_over=is_over, jobs=jobs, only=only)
    if pack_to is not None:
        packed = pack(out, runs, pack_to, pack_mib)
        done["packed"] = {"file": str(pack_to), "runs": packed.runs, "checkpoints": packed.checkpoints, "left": packed.left}
    _print_result(done, out, console)
    return done


def parse_values(known: Sequence[str]) -> dict[str, str]:
    """Parse `NAME=VALUE`, the values of a study's placeholders."""
    pairs = [text.partition("=") for text in known]
    for name, equals, _ in pairs:
        if not equals or not name.isupper():
            raise ConfigError(f"--with takes NAME=VALUE, the name in capitals as in the study, not '{name}{equals}'")
    return {name: value for name, _, value in pairs}


def _print_result(done: dict[str, Any], out: Path, console: Console) -> None:
    unfinished = f", {len(done['stopped'])} to go on with" if done["stopped"] else ""
    console.print(f"{done['finished']} of {done['runs']} runs are finished{unfinished}; {out / 'runs.jsonl'} has them all")
    for name, error in done["failed"].items():
        console.print(f"{name}: {error}", highlight=False, markup=False)
    for badge, names in done["health"].items():
        first = f"`milonga show {shlex.quote(str(out / names[0]))}` says what is wrong with the first"
        console.print(f"{badge}: {len(names)} of {done['runs']} runs; {first}", highlight=False, markup=False, soft_wrap=True)
    for name in done.get("packed", {}).get("left", ()):
        console.print(f"{name}: its checkpoint was too large to pack; elsewhere it begins anew", highlight=False, markup=False)
