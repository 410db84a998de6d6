"""Gather what the benchmarks measured on one GPU into the file that `milonga plan` is calibrated with.

    python scripts/calibrate_plan.py           # writes src/milonga/planning/measured.json, and prints fit and errors

Reads benchmarks/results/sample-*.json, learn*.json without an adapter, and turn.json. More results of `benchmarks/sample.py`
and `benchmarks/learn.py`, of other shapes, rows and lengths, make the calibration wider.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from milonga.planning.calibrate import MEASURED, calibrate
from milonga.planning.shapes import SHAPES

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
STEPS = 64
"""Of which sample.py takes the mean, from the middle of a call on."""
PROMPT, SHOWN = 125, 450
"""About how many tokens the prompts of solutions and of verifications have in turn.py: benchmarks/README.md."""


def sampled(name: str, found: dict[str, Any]) -> Iterator[dict[str, Any]]:
    common = {"shape": found["shape"], "rows": found["rows"], "source": f"benchmarks/results/{name}"}
    middle = found["prompt"] + found["new"] // 2 + STEPS // 2
    label = f"{found['shape']}, {found['rows']} rows"
    step = {"name": f"{label}: a decoding step", "kind": "step", "prompt": middle, "seconds": found["step ms"] / 1e3}
    yield step | common
    work = {key: found[key] for key in ("prompt", "new")} | {"prompts": found["rows"]}
    long = f"{label}, {found['prompt']} + {found['new']} tokens: a call"
    yield {"name": long, "kind": "sample", "seconds": found["seconds"]["median"]} | work | common


def learned(name: str, found: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Not those with an adapter, which is not planned for, or with recomputation, whose cost is known by its count."""
    if found["trained_parameters"] != found["parameters"] or "--recompute" in found["command"]:
        return
    # The benchmark's vocabulary may have a few tokens more than the published one.
    shape = min(SHAPES.values(), key=lambda shape: abs(shape.parameters - found["parameters"]))
    if abs(shape.parameters / found["parameters"] - 1) > 1e-3:
        raise SystemExit(f"{name}: no shape in milonga.planning.shapes has {found['parameters']} parameters")
    tokens = int(found["what"].split(" tokens")[0].rpartition(" ")[2])
    common = {"shape": shape.name, "tokens": tokens, "source": f"benchmarks/results/{name}"}
    for kind, key in (("learn", "seconds"), ("score", "score_seconds")):
        label = f"{shape.name}, {tokens} tokens: {kind}"
        flops = found["tflop"]["strict"] * 1e12
        yield {"name": label, "kind": kind, "seconds": found[key]["median"], "flops": flops} | common


def turned(name: str, found: dict[str, Any]) -> Iterator[dict[str, Any]]:
    problems, rows, new = found["problems"], found["problems"] * found["rollouts"], found["new"]
    solve = {"kind": "sample", "rows": rows, "prompts": problems, "prompt": PROMPT}
    once = solve | {"rows": problems}
    verify = {"kind": "sample", "rows": rows, "prompts": rows, "prompt": SHOWN}
    learn = {"kind": "learn", "rows": rows, "prompt": PROMPT}
    parts = {
        "grpo": {"sample_s": solve, "learn_s": learn},
        "tango": {"sample_s": solve, "verify_s": verify, "learn_s": learn},
        "tango, the verifier's turn": {
            "sample_s": once, "verify_s": verify | {"prompts": problems}, "learn_s": learn | {"prompt": SHOWN},
        },
    }  # fmt: skip
    common = {"shape": found["model"], "source": f"benchmarks/results/{name}"}
    for turn, works in parts.items():
        line = found[f"{turn}: timeline"]
        for key, work in works.items():
            yield {"name": f"{turn}: {key.removesuffix('_s')}", "seconds": line[key], "new": new} | work | common
        rollouts = sum(int(work["rows"]) for key, work in works.items() if key != "learn_s")
        rest = line["turn_s"] - sum(line[key] for key in works)
        yield {"name": f"{turn}: all else", "kind": "between", "rows": rollouts, "seconds": rest} | common


def held() -> Iterator[dict[str, Any]]:
    """Memory of the learning benchmarks: one pass each."""
    for file in sorted(RESULTS.glob("learn*.json")):
        found = json.loads(file.read_text(encoding="utf-8"))
        for one in list(learned(file.name, found))[:1]:
            size = found["peak_memory_gib"] * 2**30
            yield {"name": one["name"], "size": size} | {key: one[key] for key in ("shape", "tokens", "source")}


def gather() -> list[dict[str, Any]]:
    out: list[dict[str, Any]] = []
    for pattern, reader in (("sample-*.json", sampled), ("learn*.json", learned), ("turn.json", turned)):
        for file in sorted(RESULTS.glob(pattern)):
            out += reader(file.name, json.loads(file.read_text(encoding="utf-8")))
    return out


def text() -> str:
    times, sizes = (",\n".join("  " + json.dumps(row) for row in rows) for rows in (gather(), held()))
    return f'{{\n "accelerator": "h200",\n "measurements": [\n{times}\n ],\n "memory": [\n{sizes}\n ]\n}}\n'


def main() -> None:
    MEASURED.write_text(text(), encoding="utf-8")
    found = calibrate()
    sys.stdout.write(f"{found.reached}\n")
    for check in found.checks:
        other = "" if check.foreign is None else f"  from the smallest model {check.error(check.foreign):+.0%}"
        errors = f"fitted {check.error(check.fitted):+.0%}  unseen {check.error(check.unseen):+.0%}{other}"
        sys.stdout.write(f"{check.one.seconds:9.5f} s  {check.one.name}: {errors}\n")
    for one in found.held:
        sys.stdout.write(f"{one.size / 2**30:9.1f} GiB  {one.name}: {one.predicted_bytes / one.size - 1:+.0%}\n")
    sys.stdout.write(f"{found.errors()}\n")


if __name__ == "__main__":
    main()
