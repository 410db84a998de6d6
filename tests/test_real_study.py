"""The study of all systems on real data: each of them can be pointed at data in words with an ordinary instruct model."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from engine_helpers import model_folder
from milonga.comparing.study import read_studies
from milonga.comparing.sweep import sweep
from milonga.systems.index import RECIPES

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "scripts"))

from real_results import combine, gather, write_legend
from real_results import write_table as write_results
from real_systems import prepare


def write(file: Path, rows: list[dict[str, object]]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))


def make_data(folder: Path) -> None:
    """Small files in the forms of GSM8K, MATH and MBPP."""
    worked = "She has {n} and {n}, which is {n}+{n} = <<{n}+{n}={s}>>{s}.\n#### {s}"
    sums = [{"question": f"Ana has {n} and {n}. How many?", "answer": worked.format(n=n, s=2 * n)} for n in range(11, 500)]
    write(folder / "gsm8k" / "train.jsonl", [*sums])
    write(folder / "gsm8k" / "test.jsonl", [{**row, "question": row["question"] + " Say it."} for row in sums[:20]])
    levels = [{"question": f"What is {n}^2?", "answer": str(n * n), "level": 1 + n % 5, "subject": "x"} for n in range(90)]
    write(folder / "math" / "train.jsonl", [*levels])
    programs = [
        {
            "task_id": n,  # MBPP is split by these: 11 to 510 are for tests
            "text": f"Write a function to add {n}.",
            "code": f"def add_{n}(a):\n    return a + {n}",
            "test_list": [f"assert add_{n}({a}) == {a + n}" for a in range(3)],
            "test_setup_code": "",
        }
        for n in range(500, 700)
    ]
    write(folder / "mbpp" / "mbpp.jsonl", [*programs])


def test_every_system_can_be_pointed_at_real_data(tmp_path: Path) -> None:
    """Nothing is loaded: all settings fit, and no task is refused. `oracle` needs the exact truth of steps, by its name."""
    make_data(tmp_path / "data")
    prepare(tmp_path / "made", tmp_path / "data")
    known = {"MODEL": model_folder(tmp_path, kind="chat"), "DATA": str(tmp_path / "data"), "MADE": str(tmp_path / "made")}
    arms = read_studies([ROOT / "docs" / "results" / "real" / "study.toml"], known)
    assert {arm.arm.recipe for arm in arms} == set(RECIPES) - {"oracle"}
    assert all(arm.arm.plan.config.dialect == "plain" for arm in arms)


def test_results_have_a_row_for_each_run_and_a_transcript_for_each_agent(tmp_path: Path) -> None:
    study = tmp_path / "study.toml"
    study.write_text(
        "[common]\nturns = 1\neval = { problems = 2, samples = 1, bench = 0 }\nbatch = { problems = 2, rollouts = 2 }\n"
        'keep = { rollouts_every = 1 }\noptions = { warmup = 1 }\n[[runs]]\nname = "here"\nrecipe = "tango"\n'
    )
    sweep(read_studies([study], {}), tmp_path / "out", {}, jobs=1, quiet=True)
    (run,) = gather(tmp_path / "out")
    assert (run["name"], run["recipe"], run["task"], run["finished"]) == ("here/tango/seed-0", "tango", "chain", True)
    assert set(run["agents"]) == {"generator", "verifier"} and run["metric"] == "generator/accuracy" and run["seconds"] > 0
    for agent in run["agents"].values():
        assert 0 <= agent["cut"] <= 1 and agent["readable"] == 1 - round(
            sum(agent["unreadable"].values()) / agent["outputs"], 3
        )
        assert agent["transcript"]["prompt"] and agent["transcript"]["output"]
    assert gather(tmp_path / "out", study) == [run]
    study.write_text('[[runs]]\nname = "elsewhere"\n')
    assert gather(tmp_path / "out", study) == [], "a folder may hold the runs of other studies too"
    assert gather(tmp_path / "out") == [run], "chance chooses the same transcripts again"
    *_, row = write_results([run | {"agents": {"generator": {"readable": 0.5, "cut": 0.25}}, "signal": None}])
    assert row.startswith("| `tango` | chain | generator **50% (25%)** | – | generator/accuracy | ")


def make_run(recipe: str, finished: bool, signal: float) -> dict[str, Any]:
    measured = {"turns": 2, "seconds": 1.0, "metric": None, "before": None, "after": None, "agents": {}}
    return {
        "name": f"here/{recipe}/seed-0",
        "recipe": recipe,
        "task": "chain",
        "finished": finished,
        "signal": signal,
        **measured,
    }


def test_of_several_series_the_last_finished_run_counts_or_else_the_last() -> None:
    first = [
        make_run("grpo", True, 0.1),
        make_run("tango", True, 0.2),
        make_run("score", False, 0.3),
        make_run("gar", True, 0.4),
    ]
    second = [make_run("grpo", False, 0.5), make_run("tango", True, 0.6), make_run("score", False, 0.7)]
    third = [make_run("score", True, 0.8), make_run("sft", False, 0.9)]
    found = {run["recipe"]: (run["signal"], age) for run, age in combine([first, second, third])}
    assert found == {"grpo": (0.1, 2), "tango": (0.6, 1), "score": (0.8, 0), "gar": (0.4, 2), "sft": (0.9, 0)}
    rows = [row.split(" | ")[0] for row in write_results(first, second, third)][2:]
    assert rows == ["| `gar` ‡", "| `grpo` ‡", "| `score`", "| `sft`, 2 turns only", "| `tango` †"]
    assert list(write_legend([Path("real/b.json"), Path("real/a.json")])) == [
        "† of [`b.json`](real/b.json)",
        "‡ of [`a.json`](real/a.json)",
    ]


def test_the_page_has_the_table_of_its_files() -> None:
    """Every number of the page's table is that of the files beside it."""
    page = (ROOT / "docs" / "results" / "real.md").read_text(encoding="utf-8")
    series = [json.loads((ROOT / "docs" / "results" / "real" / name).read_text()) for name in ("h200.json", "h200-2.json")]
    assert "\n".join(write_results(*series)) in page
