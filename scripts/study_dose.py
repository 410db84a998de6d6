"""How much of the generator's credit came from steps in the pilot of the study, and which alpha the study takes by that.

    python scripts/study_dose.py runs/pilot

Invariants: nothing but the share of step credit is read, so that a setting is not chosen for what it gains; nothing is chosen
before every run that `pilot.toml` plans is finished.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from milonga.comparing.stats import average
from milonga.comparing.study import order_runs, read_studies
from milonga.comparing.sweep import name_run

PILOT = Path(__file__).parents[1] / "docs" / "study" / "pilot.toml"
SHARE = "credit/generator/step_share"
LEAST = 0.25
"""The mean share of step credit from which on a verifier is felt."""


def read_lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def list_planned(folder: Path) -> dict[str, float]:
    """List the runs that the pilot plans in a folder, each with its alpha."""
    runs = order_runs(read_studies([PILOT], {"BASES": "bases"}), folder)
    return {name_run(run, folder): arm.identity["options"]["alpha"] for arm, run in runs}


def read_shares(folder: Path, planned: Mapping[str, float]) -> dict[float, float | None]:
    """Read the mean share over the generator's turns of the runs of each alpha; None where no turn has one."""
    found: dict[float, list[float]] = {}
    for name, alpha in planned.items():
        turns = read_lines(folder / name / "metrics.jsonl")
        found.setdefault(alpha, []).extend(turn[SHARE] for turn in turns if turn.get(SHARE) is not None)
    return {alpha: average(shares) for alpha, shares in sorted(found.items())}


def choose_alpha(shares: Mapping[float, float]) -> float:
    """Choose the least alpha whose share is enough; the largest where none is."""
    return min((alpha for alpha, share in shares.items() if share >= LEAST), default=max(shares))


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="the folder of the pilot's sweep")
    args = parser.parse_args(argv)
    planned = list_planned(args.folder)
    finished = {row["name"] for row in read_lines(args.folder / "runs.jsonl") if row["finished"]}
    if missing := [name for name in planned if name not in finished]:
        parser.error(f"{len(missing)} of {len(planned)} runs of the pilot are not finished: {', '.join(missing)}")
    read = read_shares(args.folder, planned)
    shares = {alpha: share for alpha, share in read.items() if share is not None}
    if unknown := [f"{alpha:g}" for alpha in read if alpha not in shares]:
        parser.error(f"no turn has a share of step credit with alpha {', '.join(unknown)}")
    for alpha, share in shares.items():
        print(f"alpha {alpha:g}: {share:.3f} of the credit from steps")
    print(f"the study takes alpha {choose_alpha(shares):g}")


if __name__ == "__main__":
    main()
