"""The board on a run with a million rollouts: the first page, filters, a transcript, memory; and a look at a hundred runs.

Writes rollouts in the schema of real runs (problems x 8 solutions, each with its verification), then starts `milonga board` and
asks it for pages as a browser does. A filter that nothing passes makes the reader search the whole run; that is timed in this
process, with nothing remembered and then with all turns remembered. Beside the time on the wall stands that of the
processor, which other work on the machine does not lengthen.

    python benchmarks/board.py --out benchmarks/results/board.json
    python benchmarks/board.py --tiny      # the script itself, in seconds
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any
from urllib.parse import quote
from urllib.request import urlopen

import numpy as np
import pyarrow as pa

from milonga.board.browse import Filters, Rollouts
from milonga.board.catalogue import Catalogue
from milonga.runfolder.rollouts import make_schema, write_table
from shapes import conditions, keep, parse

EACH = 8
"""Solutions of a problem."""
STEPS, TOKENS, PROMPT = 6, 56, 24
CONFIG = 'recipe = "tango"\nseed = 0\nturns = 1000\ndialect = "terse"\n[task]\nname = "chain"\n'


def lists(values: np.ndarray, width: int) -> pa.Array:
    return pa.ListArray.from_arrays(np.arange(0, len(values) + 1, width, dtype=np.int32), pa.array(values))


def turn_table(turn: int, problems: int, rng: np.random.Generator) -> pa.Table:
    """One turn: solutions first, then a verification of each, as Tango plays it."""
    count = problems * EACH
    names = [f"chain/train/{turn * problems + k}" for k in range(problems) for _ in range(EACH)]
    questions = [f"{a}+{b}*{c}-{d}%100" for a, b, c, d in rng.integers(1, 99, (problems, 4)).repeat(EACH, axis=0)]
    ids = [f"{turn}/generator/{name}/{k % EACH}" for k, name in enumerate(names)]
    digits = rng.integers(10, 99, (count, STEPS, 3))
    steps = [[f"{a}+{b}={c}\n" for a, b, c in row] for row in digits]
    texts = ["".join(row) + f"#{row[-1][-3:-1]}" for row in steps]
    truth = rng.random((count, STEPS)) < 0.85
    correct, right = truth.all(axis=1), rng.random((count, STEPS)) < 0.8
    final = right.all(axis=1) ^ (rng.random(count) < 2e-4)  # a contradiction in five thousand
    nothing = pa.nulls(count)
    tokens = PROMPT + TOKENS
    ends = np.tile(PROMPT + 8 * np.arange(1, STEPS + 1), count).astype(np.int32)
    shared: dict[str, Any] = {
        "problem": names * 2,
        "question": questions * 2,
        "targets": [[]] * count + [[id] for id in ids],
        "ids": lists(rng.integers(0, 512, 2 * count * tokens).astype(np.int32), tokens),
        "logprobs": lists(-rng.random(2 * count * tokens, dtype=np.float32), tokens),
        "advantages": lists(rng.standard_normal(2 * count).astype(np.float32).repeat(tokens), tokens),
        "chars": lists(np.tile(np.maximum(0, np.arange(tokens, dtype=np.int32) - PROMPT + 1), 2 * count), tokens),
        "trained_from": [PROMPT] * 2 * count,
        "policy": ["generator"] * count + ["verifier"] * count,
        "version": [turn] * 2 * count,
        "step_ends": lists(np.concatenate([ends, ends]), STEPS),
        "finish": ["eos"] * 2 * count,
        "format": [1.0] * 2 * count,
    }
    own: dict[str, tuple[Any, Any]] = {
        "id": (ids, [f"{turn}/verifier/{id}/0" for id in ids]),
        "agent": (["generator"] * count, ["verifier"] * count),
        "text": (texts, ["".join("+\n" if r else "-\n" for r in row) + "=?" for row in right]),
        "step_chars": (
            [np.cumsum([len(s) for s in row]).tolist() for row in steps],
            [list(range(2, 2 * STEPS + 1, 2))] * count,
        ),
        "invalid": (nothing.to_pylist(), ["no final verdict" if draw < 0.01 else None for draw in rng.random(count)]),
        "answer": ([text[-2:] for text in texts], nothing.to_pylist()),
        "verification": ([False] * count, [True] * count),
        "final_verdict": (nothing.to_pylist(), final.tolist()),
        "step_verdicts": (nothing.to_pylist(), right.tolist()),
        "contradiction": (nothing.to_pylist(), (final != right.all(axis=1)).tolist()),
        "fooled": (nothing.to_pylist(), (final & ~correct).tolist()),
        "correct": (correct.tolist(), nothing.to_pylist()),
        "step_truth": (truth.tolist(), nothing.to_pylist()),
    }
    columns = shared | {name: [*solution, *check] for name, (solution, check) in own.items()}
    arrays = [
        columns[f.name].cast(f.type) if isinstance(columns.get(f.name), pa.Array)
        else pa.nulls(2 * count, f.type) if f.name not in columns else pa.array(columns[f.name], f.type)
        for f in make_schema()
    ]  # fmt: skip
    return pa.Table.from_arrays(arrays, schema=make_schema())


def write_run(folder: Path, rollouts: int, problems: int) -> int:
    """A run folder with so many rollouts; returns its turns."""
    turns = max(1, rollouts // (2 * EACH * problems))
    rng = np.random.default_rng(0)
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text(CONFIG)
    with (folder / "metrics.jsonl").open("w") as file:
        for turn in range(turns + 1):
            file.write(json.dumps({"turn": turn, "lead_turn": turn, "eval/generator/accuracy": 0.5}) + "\n")
    for turn in range(1, turns + 1):
        write_table(folder / "rollouts" / f"turn-{turn:06d}.parquet", turn_table(turn, problems, rng))
    return turns


class Server:
    """`milonga board`, and how much memory it has taken."""

    def __init__(self, folder: Path) -> None:
        command = [sys.executable, "-m", "milonga", "board", str(folder), "--port", "0"]
        began = time.perf_counter()
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().split(": ")[1].split("  ")[0]
        self.get("")
        self.start_s = time.perf_counter() - began

    def get(self, page: str) -> str:
        with urlopen(self.url + page) as answer:
            text: str = answer.read().decode()
        return text

    def cpu_s(self) -> float:
        """Processor seconds so far."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def timed(self, page: str, holds: str) -> dict[str, float]:
        cpu, began = self.cpu_s(), time.perf_counter()
        text = self.get(page)
        passed = {"wall_s": time.perf_counter() - began, "cpu_s": self.cpu_s() - cpu}
        if holds not in text:
            raise SystemExit(f"{page} does not show {holds!r}")
        return passed

    def peak_mib(self) -> float:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"VmHWM:\s+(\d+)", status)[1]) / 1024  # type: ignore[index]

    def close(self) -> None:
        self.process.terminate()
        self.process.wait()


def search_all(reader: Rollouts, filters: Filters) -> dict[str, float]:
    """A search through every turn."""
    cpu, began, start = time.process_time(), time.perf_counter(), None
    while True:
        start = reader.list_problems(filters, start).after
        if start is None:
            return {"wall_s": time.perf_counter() - began, "cpu_s": time.process_time() - cpu}


def measure(folder: Path, turns: int, problems: int, repeats: int) -> dict[str, Any]:
    problem = quote(f"chain/train/{turns // 2 * problems + 7}", safe="")
    pages = {
        "first_page": ("rollouts/big", "solved"),
        "filter": ("rollouts/big?flag=fooled", "fooled"),
        "rare_filter_first_answer": ("rollouts/big?flag=contradiction", "contradiction"),
        "search": ("rollouts/big?q=17%2B", "solved"),
        "transcript": (f"problem/big?turn={turns // 2}&problem={problem}", "generator 8"),
    }
    server = Server(folder.parent)
    try:
        result: dict[str, Any] = {"start_s": server.start_s, "idle_mib": server.peak_mib()}
        result["first"] = {name: server.timed(*page) for name, page in pages.items()}
        result["again"] = {name: medians([server.timed(*page) for _ in range(repeats)]) for name, page in pages.items()}
        result["peak_mib"] = server.peak_mib()
    finally:
        server.close()
    reader, nowhere = Rollouts(folder / "rollouts", True), Filters(flags=frozenset({"contradiction", "invalid", "few"}))
    result["search_whole_run"] = {"first": search_all(reader, nowhere), "again": search_all(reader, nowhere)}
    return result


def medians(timings: list[dict[str, float]]) -> dict[str, float]:
    return {key: statistics.median(timing[key] for timing in timings) for key in timings[0]}


def look_at_runs(folder: Path, count: int, turns: int) -> dict[str, float]:
    """A look at many runs of many turns: the first, and one when nothing has changed."""
    row = {"turn": 0, **{f"eval/metric/{k}": 0.5 for k in range(80)}}
    text = "".join(json.dumps(row | {"turn": turn}) + "\n" for turn in range(turns))
    for at in range(count):
        run = folder / f"run-{at}"
        run.mkdir(parents=True)
        (run / "config.toml").write_text(CONFIG)
        (run / "metrics.jsonl").write_text(text)
    catalogue = Catalogue(folder)
    first, *later = (timed_scan(catalogue) for _ in range(10))
    return {"first_s": first, "again_s": min(later)}


def timed_scan(catalogue: Catalogue) -> float:
    began = time.perf_counter()
    catalogue.scan()
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rollouts", type=int, default=1_000_000)
    parser.add_argument("--problems", type=int, default=125, help="of a turn, each with 8 solutions and 8 verifications")
    parser.add_argument("--runs", type=int, default=100, help="runs to look at")
    parser.add_argument("--turns", type=int, default=1000, help="turns of each of those")
    parser.add_argument("--repeats", type=int, default=9, help="how often each page is asked for again")
    arguments = parse(parser, rollouts=480, problems=10, runs=2, turns=3, repeats=1)
    folder = Path(tempfile.mkdtemp(prefix="board-"))
    try:
        began = time.perf_counter()
        turns = write_run(folder / "runs" / "big", arguments.rollouts, arguments.problems)
        files = list((folder / "runs" / "big" / "rollouts").iterdir())
        written = {"turns": turns, "rollouts": turns * 2 * EACH * arguments.problems, "seconds": time.perf_counter() - began,
                   "mib": sum(file.stat().st_size for file in files) / 2**20}  # fmt: skip
        os.sync()
        measured = measure(folder / "runs" / "big", turns, arguments.problems, arguments.repeats)
        runs = look_at_runs(folder / "many", arguments.runs, arguments.turns)
    finally:
        shutil.rmtree(folder)
    where = conditions("cpu")
    where["versions"] |= {name: version(name) for name in ("pyarrow", "nicegui")}
    where["load"] = os.getloadavg()[0]
    keep({**where, "written": written, "measured": measured, "many_runs": runs}, arguments.out)


if __name__ == "__main__":
    main()
