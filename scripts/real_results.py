"""What became of docs/results/real/study.toml: a row for each system, and transcripts that chance has chosen.

    python scripts/real_results.py gather runs/real docs/results/real/NAME.json    # reads the run folders of the sweep
    python scripts/real_results.py table docs/results/real/NAME.json               # prints the table in Markdown
    python scripts/real_results.py table FIRST.json SECOND.json                    # of several series, the oldest first

For each agent: outputs, the share of them that could be read, the share that was cut at the limit, the commonest reasons why
one could not be read, and one output by chance with the prompt before it. For each run: the share of rows that taught
something, the metric of its claim (else the first headline metric that it has) before and after, and seconds a turn.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from milonga.runfolder.record import HEADLINE, Record, read_record
from milonga.runfolder.rollouts import read_rollouts
from milonga.systems.index import CLAIMS

COLUMNS = ("id", "agent", "targets", "text", "ids", "turns", "logprobs", "finish", "invalid", "correct")
MOST = 4000
"""Most characters of a prompt, and of an output, that are kept of a transcript; the middle of a longer one is left out."""
MARKS = "†‡§¶"
"""Marks of rows from older series, the newest of these first."""
READABLE = 0.8
"""A smaller share of readable outputs is marked in the table."""


def gather(runs: Path, study: Path | None = None) -> list[dict[str, Any]]:
    """Summarise every run that the sweep's table lists; with a study, those of its blocks."""
    lines = [json.loads(line) for line in (runs / "runs.jsonl").read_text().splitlines()]
    blocks = [block["name"] for block in tomllib.loads(study.read_text())["runs"]] if study else None
    return [summarise_run(runs, line) for line in lines if blocks is None or line["name"].partition("/")[0] in blocks]


def summarise_run(runs: Path, line: Mapping[str, Any]) -> dict[str, Any]:
    """Summarise one run: what each agent wrote, what taught something, and what was measured."""
    record = read_record(runs / line["name"])
    signals = [row["signal"] for row in record.rows if row.get("signal") is not None]
    seconds = [row["turn_s"] for row in record.timing if "turn_s" in row]
    return {
        "name": line["name"],
        "recipe": line["recipe"],
        "task": record.config.task["name"],
        "finished": line["finished"],
        "turns": record.last["turn"],
        "signal": round(statistics.fmean(signals), 3) if signals else None,
        "seconds": round(statistics.median(seconds), 1) if seconds else None,
        **select_metric(record, line["recipe"]),
        "agents": {agent: summarise_agent(rows, record) for agent, rows in read_by_agent(record.folder).items()},
    }


def select_metric(record: Record, recipe: str) -> dict[str, Any]:
    """Select the metric that the run is about, with its first and last value; a run that was measured once has no last."""
    wanted = [CLAIMS.get(recipe).metric] if recipe in CLAIMS else []
    for metric in [*wanted, *(f"eval/{name}" for _, name in HEADLINE)]:
        if metric in record.curves:
            first, *later = record.curves[metric][1]
            return {"metric": metric.removeprefix("eval/"), "before": first, "after": later[-1] if later else None}
    return {"metric": None, "before": None, "after": None}


def read_by_agent(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """Read the outputs of all saved turns, agent by agent. What was given, such as a demonstration, is no output: it
    has no turn, or no log-probabilities."""
    found: dict[str, list[dict[str, Any]]] = {}
    for file in sorted((folder / "rollouts").glob("turn-*.parquet")):
        for row in read_rollouts(file, COLUMNS):
            if row["turns"] and (row["logprobs"] is None or any(row["logprobs"])):
                found.setdefault(row["agent"], []).append(row)
    return found


def leave_out_searches(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Leave out messages that asked for a search and were answered: a conversation counts by how it ends."""
    answered = {target for row in rows if len(row["turns"]) > 1 for target in row["targets"]}
    return [row for row in rows if row["id"] not in answered]


def summarise_agent(rows: Sequence[Mapping[str, Any]], record: Record) -> dict[str, Any]:
    """Summarise what one agent wrote. Which output is kept is a matter of the run's name alone."""
    rows = leave_out_searches(rows) if record.config.task["name"] == "search" else rows
    reasons = Counter(row["invalid"] for row in rows if row["invalid"])
    chosen = random.Random(f"{record.folder.parent.name}/{rows[0]['agent']}").choice(rows)
    return {
        "outputs": len(rows),
        "readable": round(1 - reasons.total() / len(rows), 3),
        "cut": round(sum(row["finish"] == "length" for row in rows) / len(rows), 3),
        "unreadable": dict(reasons.most_common(3)),
        "transcript": {
            "id": chosen["id"],
            "prompt": shorten(decode(chosen["ids"][: chosen["turns"][-1][0]], record.config.policies["generator"].model)),
            "output": shorten(chosen["text"]),
            "invalid": chosen["invalid"],
            "correct": chosen["correct"],
        },
    }


def decode(ids: Sequence[int], model: str) -> str:
    """Decode the tokens of a prompt as the model saw them."""
    return str(open_tokenizer(model).decode(list(ids)))


@cache
def open_tokenizer(model: str) -> Any:
    from milonga.engine.local.models import load_tokenizer

    return load_tokenizer(model)


def shorten(text: str) -> str:
    """Leave out the middle of a text that is too long to keep."""
    half = MOST // 2
    return text if len(text) <= MOST else f"{text[:half]}\n[… {len(text) - MOST} characters …]\n{text[-half:]}"


def combine(series: Sequence[Sequence[Mapping[str, Any]]]) -> list[tuple[Mapping[str, Any], int]]:
    """Combine series of runs, the oldest first: of each run the last that came to its end, or else the last of all; with each
    how many series are newer than its own."""
    found: dict[str, tuple[Mapping[str, Any], int]] = {}
    for age, runs in zip(reversed(range(len(series))), series, strict=True):
        for run in runs:
            if run["finished"] or run["name"] not in found or not found[run["name"]][0]["finished"]:
                found[run["name"]] = (run, age)
    return list(found.values())


def write_table(*series: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Write the table of one series or of several, the oldest first: a line for each run, marked where an older one has it."""
    yield "| system | task | readable (cut), by agent | signal | metric | before → after | s a turn |"
    yield "|---|---|---|---|---|---|---|"
    for run, age in sorted(combine(series), key=lambda pair: pair[0]["recipe"]):
        agents = ", ".join(f"{name} {format_share(agent)}" for name, agent in run["agents"].items())
        ending = "" if run["finished"] else f", {run['turns']} turns only"
        values = f"{format_number(run['before'])} → {format_number(run['after'])}"
        mark = f" {MARKS[age - 1]}" if age else ""
        cells = [f"`{run['recipe']}`{mark}{ending}", run["task"], agents, format_number(run["signal"])]
        yield f"| {' | '.join([*cells, run['metric'] or '', values, format_number(run['seconds'])])} |"


def write_legend(older: Sequence[Path]) -> Iterator[str]:
    """Write what the marks of a table mean: the file of each older series, the newest of them first."""
    yield from (f"{mark} of [`{file.name}`]({file.parent.name}/{file.name})" for mark, file in zip(MARKS, older, strict=False))


def format_share(agent: Mapping[str, Any]) -> str:
    """Format the readable share of an agent's outputs; a small one is bold."""
    share = f"{agent['readable']:.0%} ({agent['cut']:.0%})"
    return share if agent["readable"] >= READABLE else f"**{share}**"


def format_number(number: float | None) -> str:
    return "–" if number is None else f"{number:.3g}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    steps = parser.add_subparsers(dest="step", required=True)
    gathering = steps.add_parser("gather", help="summarise the run folders of a sweep")
    gathering.add_argument("runs", type=Path)
    gathering.add_argument("file", type=Path)
    gathering.add_argument("--study", type=Path, help="only the runs of this study's blocks, where a folder has others too")
    printing = steps.add_parser("table", help="print the table")
    printing.add_argument("files", type=Path, nargs="+", help=f"files of gather, the oldest first (at most {len(MARKS) + 1})")
    args = parser.parse_args()
    if args.step == "gather":
        args.file.write_text(json.dumps(gather(args.runs, args.study), indent=1, ensure_ascii=False) + "\n")
    files = [args.file] if args.step == "gather" else args.files
    if len(files) > len(MARKS) + 1:
        parser.error(f"at most {len(MARKS) + 1} files: there are no marks for more")
    print(*write_table(*(json.loads(file.read_text()) for file in files)), sep="\n")
    if older := files[-2::-1]:
        print("", *write_legend(older), sep="\n")


if __name__ == "__main__":
    main()
