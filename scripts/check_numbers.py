"""Whether a change of the code left every number as it was: one short run of each recipe, to the bit.

    python scripts/check_numbers.py record before.json      # before the change
    python scripts/check_numbers.py compare before.json     # after it: prints what differs, exits with 1 if anything does
    python scripts/check_numbers.py --tiny      # the script itself: two runs of `grpo` are the same

A run is the shortest in which every agent that learns has learned (`tests/short.py`), with a fixed seed, on the embedded models
and one thread. Recorded are all rows of its metrics, floats in hexadecimal, and a digest of each model it leaves. Bits depend
on the CPU and on torch: both runs must be made on the same machine, which is why nothing of this is kept in the repository.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NoReturn

ROOT = Path(__file__).resolve().parent.parent
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
os.environ.setdefault("HF_HUB_OFFLINE", "1")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", nargs="?", choices=("record", "compare", "one"))
    parser.add_argument("file", type=Path, nargs="?")
    parser.add_argument("recipes", nargs="*", help="only these")
    parser.add_argument("--tiny", action="store_true", help="record and compare the shortest run")
    asked = parser.parse_args()
    sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]
    if asked.tiny:
        with tempfile.TemporaryDirectory() as folder:
            record(Path(folder) / "before.json", ["grpo"])
            compare(Path(folder) / "before.json", ["grpo"])
    if asked.file is None:
        parser.error("name what to do, and a file; or give --tiny")
    if asked.action == "one":
        asked.file.write_text(json.dumps(run_short(asked.recipes[0])))
    elif asked.action == "record":
        record(asked.file, asked.recipes)
    else:
        compare(asked.file, asked.recipes)


def record(file: Path, recipes: list[str]) -> None:
    from short import SHORT

    found = {name: run_apart(name) for name in recipes or SHORT}
    file.write_text(json.dumps(found, indent=1, sort_keys=True))


def compare(file: Path, recipes: list[str]) -> NoReturn:
    """Run again, say what differs from what was recorded, and exit with 1 if anything does."""
    from short import SHORT

    found = {name: run_apart(name) for name in recipes or SHORT}
    known = json.loads(file.read_text())
    different = [name for name in found if not report(name, known.get(name), found[name])]
    print(f"{len(found) - len(different)} passed, {len(different)} failed")
    sys.exit(1 if different else 0)


def run_apart(recipe: str) -> dict[str, Any]:
    """In a process of its own: what one run leaves in memory must not reach the next."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "numbers.json"
        subprocess.run([sys.executable, __file__, "one", str(out), recipe], check=True)
        print(f"{recipe}: ran", flush=True)
        return dict(json.loads(out.read_text()))


def run_short(recipe: str) -> dict[str, Any]:
    import torch

    from short import SHORT, short_loop

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder, short_loop(recipe, Path(folder) / "run") as loop:
        loop.prepare()
        loop.record_start()
        for _ in range(SHORT[recipe].turns):
            loop.run_turn()
        loop.finish_run()
        models = sorted((Path(folder) / "run" / "models").rglob("*.safetensors"))
        weights = {
            str(path.relative_to(Path(folder) / "run")): hashlib.sha256(path.read_bytes()).hexdigest() for path in models
        }
        return {"rows": [to_bits(row) for row in loop.rows], "weights": weights}


def to_bits(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: to_bits(inner) for key, inner in value.items()}
    return float(value).hex() if isinstance(value, float) else value


def report(recipe: str, before: dict[str, Any] | None, now: dict[str, Any]) -> bool:
    """Say how the two differ; True if they do not."""
    if before is None:
        print(f"{recipe}: was not recorded")
        return False
    lines = [f"model {name}" for name, digest in before["weights"].items() if now["weights"].get(name) != digest]
    for number, (old, new) in enumerate(zip(before["rows"], now["rows"], strict=False)):
        for key in sorted({*old, *new}):
            if old.get(key) != new.get(key):
                lines.append(f"row {number}, {key}: {old.get(key)} was, {new.get(key)} is")
    if len(before["rows"]) != len(now["rows"]):
        lines.append(f"{len(before['rows'])} rows were, {len(now['rows'])} are")
    for line in lines[:20]:
        print(f"{recipe}: {line}")
    print(f"{recipe}: {'different' if lines else 'same'}", flush=True)
    return not lines


if __name__ == "__main__":
    main()
