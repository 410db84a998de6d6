"""How much of the generator's credit came from steps in the pilot of the study, and which alpha the study takes by that.

    python scripts/study_dose.py runs/pilot

Invariant: nothing but the share of step credit is read, so that a setting is not chosen for what it gains.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from milonga.comparing.stats import average

SHARE = "credit/generator/step_share"
LEAST = 0.25
"""The mean share of step credit from which on a verifier is felt."""


def read_shares(folder: Path) -> dict[float, float]:
    """Read the mean share over the generator's turns of the finished runs of each alpha."""
    found: dict[float, list[float]] = {}
    for row in (json.loads(line) for line in (folder / "runs.jsonl").read_text().splitlines()):
        if row["finished"]:
            turns = [json.loads(line) for line in (folder / row["name"] / "metrics.jsonl").read_text().splitlines()]
            known = [turn[SHARE] for turn in turns if turn.get(SHARE) is not None]
            found.setdefault(row["settings"]["options"]["alpha"], []).extend(known)
    return {alpha: mean for alpha, shares in sorted(found.items()) if (mean := average(shares)) is not None}


def choose_alpha(shares: Mapping[float, float]) -> float:
    """Choose the least alpha whose share is enough; the largest where none is."""
    return min((alpha for alpha, share in shares.items() if share >= LEAST), default=max(shares))


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="the folder of the pilot's sweep")
    args = parser.parse_args(argv)
    shares = read_shares(args.folder)
    if not shares:
        parser.error("no run of the pilot is finished")
    for alpha, share in shares.items():
        print(f"alpha {alpha:g}: {share:.3f} of the credit from steps")
    print(f"the study takes alpha {choose_alpha(shares):g}")


if __name__ == "__main__":
    main()
