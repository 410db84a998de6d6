"""What a system's run costs beside one of GRPO: FLOPs of both, on the same task, with as many turns of the lead agent.

    python scripts/measure_costs.py                                # all systems; more than an hour of one core
    python scripts/measure_costs.py tango prime --turns 2          # some of them, anew; the others stay

The models are the embedded ones, turns and options those by default, the batch is the same for all. Turns of other agents,
warm-ups and first phases of imitation are counted, evaluations are not. FLOPs are those of the ledger: the result does not
depend on the machine. What is not possible (a task that GRPO cannot learn, a model that is missing) is kept with its reason.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from milonga.api import plan_run, start
from milonga.errors import UserError
from milonga.systems.index import SYSTEMS

KEPT = Path(__file__).parent.parent / "docs" / "results" / "costs.json"
SETTINGS: dict[str, Any] = {
    "device": "cpu",
    "threads": 1,
    "probe": "off",
    "stop_without_signal": 0,
    "batch": {"problems": 8, "rollouts": 8},
    "eval": {"problems": 0},
    "keep": {"checkpoint_every": 1000, "checkpoints": 1, "rollouts_every": 0},
}


def measure(recipe: str, turns: int | None, task: dict[str, Any] | None = None) -> dict[str, Any]:
    """Run a recipe for some turns of its lead agent; return its compute, and the task."""
    plan = plan_run(recipe, turns=turns, task=task, settings=[SETTINGS])
    with tempfile.TemporaryDirectory() as folder:
        report = start(plan, Path(folder) / "run", quiet=True)
    return {"task": dict(plan.config.task), "turns": report["turns"], "lead_turns": report["lead_turns"], **report["compute"]}


def compare_with_grpo(recipe: str, turns: int | None, known: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Measure a recipe and, on its task, GRPO; `known` keeps what GRPO took on each task."""
    try:
        found = measure(recipe, turns)
        same = json.dumps([found["task"], found["lead_turns"]], sort_keys=True)
        if same not in known:
            known[same] = measure("grpo", found["lead_turns"], found["task"])
    except UserError as error:
        return {"refused": str(error)}
    return found | {"ratio": found["flops"] / known[same]["flops"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("systems", nargs="*", help="these alone")
    parser.add_argument("--turns", type=int, help="turns of the lead agent, instead of each system's own")
    parser.add_argument("--out", type=Path, default=KEPT)
    args = parser.parse_args()
    kept: dict[str, Any] = json.loads(args.out.read_text()) if args.out.exists() else {}
    known: dict[str, dict[str, Any]] = {}
    for name in args.systems or [system.name for system in SYSTEMS]:
        kept[name] = compare_with_grpo(name, args.turns, known)
        sys.stderr.write(f"{name}: {kept[name].get('refused') or format(kept[name]['ratio'], '.2f')}\n")
        args.out.write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
