"""`milonga compare` for real, on tiny settings: by the command line, killed and run again, with matched compute."""

from __future__ import annotations

import importlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

import milonga
from milonga.comparing.arms import parse_arm, parse_seeds, plan_comparison, write_plan
from milonga.comparing.pool import Pool, Run
from milonga.comparing.progress import read_last_turn
from milonga.comparing.results import analyse, examine_arm
from milonga.comparing.tables import draw, to_markdown
from milonga.errors import ConfigError, RunFolderError
from milonga.report.curves import TITLES
from milonga.report.sheets import build_sheets, format_measured, list_remarks
from milonga.report.verdicts import describe_comparison
from milonga.runfolder.files import JsonLines
from milonga.runfolder.folder import RunFolder
from milonga.systems.index import CLAIMS

TINY = {
    "task": {"ops": 2},
    "batch": {"problems": 4, "rollouts": 4},
    "eval": {"problems": 8, "bench": 4, "samples": 2, "greedy": False, "checks": 1, "every": 1},
    "keep": {"checkpoint_every": 1, "rollouts_every": 0},
    "device": "cpu",
}
COMMAND = [sys.executable, "-c", "from milonga.cli import main; main()", "compare"]


def flags(tree: dict[str, Any], prefix: str = "") -> list[str]:
    out: list[str] = []
    for key, value in tree.items():
        name = f"{prefix}{key}"
        out += flags(value, f"{name}.") if isinstance(value, dict) else ["--set", f"{name}={json.dumps(value)}"]
    return out


def command(out: Path, *more: str) -> list[str]:
    asked = ["--turns", "2", "--match", "turns", "--jobs", "1", "--out", str(out)]
    return [*COMMAND, "frozen", "grpo", *asked, *flags(TINY), *more]


def run(arguments: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(arguments, capture_output=True, text=True, timeout=300)


def compared(arguments: list[str]) -> dict[str, Any]:
    done = run([*arguments, "--json"])
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """Two arms, two seeds, undisturbed."""
    out = tmp_path_factory.mktemp("compare") / "plain"
    return out, compared(command(out, "--seeds", "2"))


def test_comparison_says_what_its_runs_say(plain: tuple[Path, dict[str, Any]]) -> None:
    out, result = plain
    assert result["seeds"] == [100, 101] and result["baseline"] == "grpo" and not result["failed"]
    for name, arm in result["arms"].items():
        assert arm["lead_turns"] == 2
        for place, seed in enumerate((100, 101)):
            folder = out / name / f"seed-{seed}"
            last = JsonLines(folder / "metrics.jsonl").rows()[-1]
            report = json.loads((folder / "report.json").read_text())
            problems = json.loads((folder / "final.json").read_text())["problems"]
            assert len(problems) == 8
            for metric in ("accuracy", "sound_accuracy"):
                found = arm["metrics"][f"eval/generator/{metric}"]
                assert found["values"][place] == last[f"eval/generator/{metric}"]
                mean = sum(problem[metric] for problem in problems.values()) / len(problems)
                assert mean == pytest.approx(found["values"][place])
            assert arm["runs"][place]["tokens"] == report["compute"]["tokens"]
    # The verifier that frozen asks costs tokens that grpo does not use: the table must show it.
    assert result["arms"]["frozen"]["tokens"] > result["arms"]["grpo"]["tokens"]
    assert "eval/verifier/f1" in result["arms"]["frozen"]["metrics"]
    assert "eval/verifier/f1" not in result["arms"]["grpo"]["metrics"]


def test_comparison_leaves_its_files(plain: tuple[Path, dict[str, Any]]) -> None:
    out, result = plain
    assert json.loads((out / "compare.json").read_text()) == result
    text = (out / "compare.md").read_text()
    assert "difference to grpo" in text and "eval/generator/sound\\_accuracy" in text
    plot = ElementTree.parse(out / "compare.svg").getroot()
    assert plot.get("class") == "chart" and "![curves](compare.svg)" in text
    assert [part.get("class") for part in plot if part.tag.endswith("svg")] == ["part", "part"]
    differences = {(d["arm"], d["metric"]): d for d in result["differences"]}
    finals = {f"eval/generator/{m}" for m in ("accuracy", "sound_accuracy")}
    assert set(differences) == {("frozen", metric) for metric in finals | {f"area of {metric}" for metric in finals}}
    for difference in differences.values():
        assert difference["verdict"] in ("higher", "lower", "undecided")
        assert difference["p_holm"] >= difference["p"]
        assert (difference["problems"] is not None) == (difference["metric"] in finals)


def test_arms_start_alike(plain: tuple[Path, dict[str, Any]]) -> None:
    _, result = plain
    starts = [arm["metrics"]["eval/generator/accuracy"]["start"] for arm in result["arms"].values()]
    assert starts[0] == starts[1]


def test_a_plot_has_no_band_that_fills_it(plain: tuple[Path, dict[str, Any]]) -> None:
    """Two seeds have an interval far wider than what they did."""
    wide = {"x": [0.0, 2.0], "mean": [0.30, 0.31], "low": [0.0, 0.0], "high": [0.9, 0.9]}
    arms = {
        name: arm | {"metrics": {metric: found | {"curve": wide} for metric, found in arm["metrics"].items()}}
        for name, arm in plain[1]["arms"].items()
    }
    plot = draw(plain[1] | {"arms": arms})
    assert 'class="band"' not in plot and plot.count("would fill the chart: 95 % t interval over 2 seeds</text>") == 2
    assert plot.count("hollow points at the end: each seed</text>") == 2


def test_finished_comparison_is_shown_again_at_once(plain: tuple[Path, dict[str, Any]]) -> None:
    """No run is repeated; another baseline needs no new runs, and is said."""
    out, result = plain
    before = {path: path.stat().st_mtime_ns for path in out.glob("*/*/report.json")}
    again = compared(command(out, "--seeds", "2"))
    assert again == result
    other = compared(command(out, "--seeds", "2", "--baseline", "frozen"))
    assert other["notes"] == ["the baseline was 'grpo' when this comparison was begun"]
    assert [d["mean"] for d in other["differences"]] == [-d["mean"] for d in result["differences"]]
    assert before == {path: path.stat().st_mtime_ns for path in out.glob("*/*/report.json")}


def test_other_settings_in_the_same_folder_are_refused(plain: tuple[Path, dict[str, Any]]) -> None:
    out, _ = plain
    for more in (["--seeds", "3"], ["--seeds", "2", "--set", "policies.generator.lr=0.001"]):
        done = run(command(out, *more))
        assert done.returncode == 2
        assert "other settings" in done.stderr and len(done.stderr.splitlines()) == 1
    begun = tomllib.loads((out / "compare.toml").read_text())["match"]
    done = run(command(out, "--seeds", "2", "--match", "tokens"))
    assert done.returncode == 2 and done.stderr.strip().endswith(f"choose another --out, or go on with it by --match {begun}")


def test_killed_in_the_middle_and_run_again(plain: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    """Killed without warning while a run is at work: nobody stays behind, and in the end the numbers are the same."""
    out = tmp_path / "killed"
    second = out / "grpo" / "seed-100"
    process = subprocess.Popen(command(out, "--seeds", "100,"), stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    wait_until(lambda: read_last_turn(second) >= 1, process)
    process.send_signal(signal.SIGKILL)
    process.wait()
    wait_until(lambda: unlocked(second))
    assert not (second / "report.json").exists()
    result = compared(command(out, "--seeds", "100,"))
    assert [numbers_of_seed(arm) for arm in result["arms"].values()] == [
        numbers_of_seed(arm) for arm in plain[1]["arms"].values()
    ]


def test_interrupted_leaves_nobody_behind(tmp_path: Path) -> None:
    out = tmp_path / "interrupted"
    first = out / "frozen" / "seed-100"
    process = subprocess.Popen(command(out, "--seeds", "1"), stderr=subprocess.PIPE, text=True)
    wait_until((first / "checkpoints" / "turn-000000").exists, process)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "every run ends after its turn, with a checkpoint; Ctrl-C again stops at once" in said
    newest = sorted(path.name for path in (first / "checkpoints").iterdir())[-1]
    assert JsonLines(first / "metrics.jsonl").rows()[-1]["turn"] == int(newest.removeprefix("turn-")), "nothing is lost"
    assert [line for line in said.splitlines() if "stopped" in line] == [said.splitlines()[-1]]
    assert f"--out {out}" in said
    wait_until(lambda: unlocked(first))


def numbers_of_seed(arm: dict[str, Any]) -> list[Any]:
    """What an arm measured and used with its first seed."""
    return [arm["runs"][0], *((name, m["values"][0], m["areas"][0]) for name, m in arm["metrics"].items())]


def wait_until(true: Any, process: subprocess.Popen[Any] | None = None) -> None:
    end = time.monotonic() + 120
    while not true():
        assert time.monotonic() < end, "waited in vain"
        assert process is None or process.poll() is None, "it ended before it could be killed"
        time.sleep(0.02)


def unlocked(folder: Path) -> bool:
    try:
        with RunFolder(folder, 1):
            return True
    except RunFolderError:
        return False


def test_matched_tokens_and_a_run_that_fails(tmp_path: Path) -> None:
    """The other arm gets, by seed, the reference's tokens and less than one turn more; who fails stops nobody."""
    out = tmp_path / "tokens"
    blocked = out / "frozen" / "seed-101"
    arguments = command(out, "--seeds", "2", "--match", "tokens", "--json")
    claim_first(out)
    blocked.parent.mkdir()
    blocked.write_text("a file where the run folder should be")
    done = run(arguments)
    assert done.returncode == 1
    result = json.loads(done.stdout.splitlines()[-1])
    assert [(run["arm"], run["seed"]) for run in result["failed"]] == [("frozen", 101), ("grpo", 101)]
    assert "frozen seed 101: failed" in done.stderr
    reference = result["arms"]["frozen"]["runs"][0]["tokens"]
    rows = JsonLines(out / "grpo" / "seed-100" / "metrics.jsonl").rows()
    assert rows[-1]["compute/tokens"] == result["arms"]["grpo"]["runs"][0]["tokens"] >= reference
    assert rows[-2]["compute/tokens"] < reference
    assert result["axis"] == "compute/tokens"


def claim_first(out: Path) -> None:
    """What the command itself writes first, so that the folder may hold something else already."""
    out.mkdir()
    write_plan(out, plan_comparison(["frozen", "grpo"], turns=2, seeds=2, match="tokens", settings=[TINY]))


def test_a_process_that_dies_is_an_answer(tmp_path: Path) -> None:
    with Pool(1, on_cpu=True) as pool:
        pool.begin(Run("grpo", 1, tmp_path / "run"), {})
        os.kill(pool.workers[0].process.pid, signal.SIGKILL)
        [(ended, answer)] = pool.wait(60)
    assert ended.seed == 1 and "signal 9" in answer["error"]


def test_compare_is_a_function_of_the_package() -> None:
    """The package milonga.run must not hide the function of that name, whenever it is imported."""
    importlib.import_module("milonga.runfolder.folder")
    assert callable(milonga.compare) and callable(milonga.run)


def test_arms_carry_their_own_settings() -> None:
    name, own = parse_arm("frozen:options.alpha=0.9,policies.generator.betas=[0.9,0.99],batch.rollouts=8")
    assert name.startswith("frozen:")
    assert own == {
        "options": {"alpha": 0.9},
        "policies": {"generator": {"betas": [0.9, 0.99]}},
        "batch": {"rollouts": 8},
    }
    comparison = plan_comparison(["frozen", "frozen:options.alpha=0.9"], settings=[{"options": {"alpha": 0.2}}])
    assert [arm.plan.config.options["alpha"] for arm in comparison.arms] == [0.2, 0.9]
    assert comparison.baseline == "frozen:options.alpha=0.9"
    assert [arm.folder for arm in comparison.arms] == ["frozen", "frozen-options.alpha=0.9"]


def test_common_settings_reach_the_arms_that_know_them() -> None:
    settings = [{"options": {"warmup": 2}, "policies": {"verifier": {"lr": 1e-4}}}]
    tango, grpo = plan_comparison(["tango", "grpo"], settings=settings).arms
    assert tango.plan.config.options["warmup"] == 2 and tango.plan.config.policies["verifier"].lr == 1e-4
    assert "verifier" not in grpo.plan.config.policies and tango.turns == 2 + 30 + 9


def test_what_is_matched_where_nobody_says() -> None:
    """FLOPs where recipes differ in what a turn costs, turns for settings of one recipe, or where FLOPs are not known."""
    endpoint = "frozen:policies.verifier.model=openai:http://127.0.0.1:9/v1#m"
    for arms, expected in (
        (["tango", "grpo"], "flops"),
        (["frozen", "frozen:options.alpha=0.9"], "turns"),
        ([endpoint, "grpo"], "turns"),
        ([f"{endpoint},policies.verifier.endpoint.parameters=1e9", "grpo"], "flops"),
    ):
        assert plan_comparison(arms, settings=[{"dialect": "terse"}]).match == expected
    assert plan_comparison(["tango", "grpo"], match="turns").match == "turns"


@pytest.mark.parametrize(
    ("arms", "asked", "error"),
    [
        (["tango"], {}, "at least two arms"),
        (["grpo", "grpo"], {}, "each named once"),
        (["tango", "gpro"], {}, "did you mean 'grpo'"),
        (["tango", "grpo"], {"match": "time"}, "unknown match"),
        (["tango", "grpo"], {"baseline": "oracle"}, "not an arm"),
        (["tango", "grpo"], {"seeds": "x"}, "--seeds takes"),
        (["tango", "grpo"], {"seeds": [1, 1]}, "each once"),
        (["tango", "grpo"], {"settings": [{"seed": 3}]}, "use --seeds"),
        (["tango", "grpo"], {"settings": [{"options": {"bogus": 1}}]}, "bogus"),
        (["tango", "grpo:task.ops=3"], {}, "all arms must share it"),
        (
            ["tango", "grpo:policies.generator.model=other"],
            {"settings": [{"dialect": "terse"}]},
            "the generator's model",
        ),
        (["tango", "grpo"], {"settings": [{"policies": {"verifier": {"model": "other"}}}]}, "dialect"),
    ],
)
def test_unfair_or_unclear_comparisons_are_refused(arms: list[str], asked: dict[str, Any], error: str) -> None:
    with pytest.raises(ConfigError, match=error):
        plan_comparison(arms, **asked)


def test_seeds() -> None:
    assert parse_seeds(3) == parse_seeds("3") == (100, 101, 102)
    assert parse_seeds("7,9") == parse_seeds([7, 9]) == (7, 9)
    assert parse_seeds("7,") == (7,)


def test_a_folder_with_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    done = run(command(tmp_path))
    assert done.returncode == 2 and "holds no comparison" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_dry_run_prints_the_plan_and_writes_nothing(tmp_path: Path) -> None:
    out = tmp_path / "new"
    done = run(command(out, "--seeds", "2", "--dry-run", "--json"))
    assert done.returncode == 0 and not out.exists()
    assert json.loads(done.stdout.splitlines()[-1])["comparison"]["seeds"] == [100, 101]


def test_a_dry_run_says_how_many_runs_and_how_long(tmp_path: Path) -> None:
    said = json.loads(run(command(tmp_path / "new", "--seeds", "2", "--match", "flops", "--dry-run", "--json")).stdout)["plan"]
    assert said == [
        "4 runs: frozen, grpo; seeds 100, 101",
        "differences to grpo in eval/generator/accuracy, flops matched",
        "frozen: 2 turns",
        "grpo: until it has used the flops of frozen with its seed",
    ]


@pytest.mark.parametrize("width", [80, 120, 160])
def test_tables_fit_the_terminal_and_no_number_is_broken(plain: tuple[Path, dict[str, Any]], width: int) -> None:
    from io import StringIO

    from rich.console import Console

    from milonga.comparing.tables import DETAILS, print_tables

    result = plain[1] | {"out": "runs/compared", "health": []}
    screen = StringIO()
    print_tables(result, Console(file=screen, width=width, force_terminal=True, color_system=None))
    lines = screen.getvalue().splitlines()
    cut = width < 160
    assert all(len(line) <= width for line in lines if not line.startswith("results"))
    assert " ".join(screen.getvalue().split()).startswith(describe_comparison(result))
    for sheet in build_sheets(result):
        for row in sheet.rows:
            shown = [cell for name, cell in zip(sheet.head, row, strict=True) if not (cut and name in DETAILS)]
            assert any(all(cell in line for cell in shown) for line in lines), shown


@pytest.mark.parametrize("width", [30, 60, 70])
def test_no_number_is_broken_where_nothing_fits(plain: tuple[Path, dict[str, Any]], width: int) -> None:
    """Lines run over the edge, where the terminal breaks them, and every row still has its name."""
    from io import StringIO

    from rich.console import Console

    from milonga.comparing.tables import DETAILS, print_tables

    screen = StringIO()
    print_tables(
        plain[1] | {"out": "o", "health": []}, Console(file=screen, width=width, force_terminal=True, color_system=None)
    )
    lines = screen.getvalue().splitlines()
    for sheet in build_sheets(plain[1]):
        for row in sheet.rows:
            shown = [cell for name, cell in zip(sheet.head, row, strict=True) if name not in DETAILS]
            assert any(all(cell in line for cell in shown) for line in lines), shown


LONG = [("tango_balanced", "grpo"), ("tango:options.alpha=0.9", "grpo"), ("grpo", "tango_free_adversary"), ("a" * 60, "b" * 60)]


@pytest.mark.parametrize("width", [80, 100, 160, 200])
@pytest.mark.parametrize("names", LONG, ids=lambda names: names[0][:20])
def test_tables_fit_beside_long_names_of_arms(plain: tuple[Path, dict[str, Any]], names: tuple[str, str], width: int) -> None:
    """A name may be broken; a number, a verdict or the title never."""
    from io import StringIO

    from rich.console import Console

    from milonga.comparing.tables import DETAILS, print_tables, shorten_arms

    called = dict(zip(("frozen", "grpo"), names, strict=True))
    result = plain[1] | {"out": "runs/compared", "health": [], "notes": []}
    result |= {"arms": {called[name]: arm for name, arm in result["arms"].items()}}
    result |= {"differences": [one | {"arm": called[one["arm"]]} for one in result["differences"]]}
    result |= {key: called[result[key]] for key in ("reference", "baseline")}
    screen = StringIO()
    print_tables(result, Console(file=screen, width=width, force_terminal=True, color_system=None))
    lines = screen.getvalue().splitlines()
    assert all(len(line) <= width for line in lines if not line.startswith("results"))
    assert " ".join(describe_comparison(result).split()[-5:]) in " ".join(screen.getvalue().split())
    for sheet in build_sheets(shorten_arms(result)):
        assert sheet.title in " ".join(screen.getvalue().split())
        for row in sheet.rows:
            shown = [cell for name, cell in zip(sheet.head, row, strict=True) if not (width < 160 and name in DETAILS)]
            assert any(all(cell in line for cell in shown[1:]) and shown[0].split()[0][:8] in line for line in lines), shown


def test_the_verdict_is_one_line_in_a_pipe(plain: tuple[Path, dict[str, Any]]) -> None:
    from io import StringIO

    from rich.console import Console

    from milonga.comparing.tables import print_tables

    screen = StringIO()
    print_tables(plain[1] | {"out": "runs/compared", "health": []}, Console(file=screen, width=40, force_terminal=False))
    assert screen.getvalue().splitlines()[0] == describe_comparison(plain[1])


def test_a_comparison_says_what_is_wrong_with_its_runs(plain: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    """Each finding once for each arm, with the number of runs that have it; of one whose runs are gone there is none."""
    _, result = plain
    (arm,) = (arm for arm in plan_comparison(["frozen", "grpo"], seeds=2, settings=[TINY]).arms if arm.recipe == "grpo")
    for seed in (100, 101):
        folder = tmp_path / arm.folder / f"seed-{seed}"
        folder.mkdir(parents=True)
        rows = [{"turn": turn, "lead_turn": turn, "learner": "generator", "signal": 0.0} for turn in range(1, 7)]
        (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    (found,) = examine_arm(arm, (100, 101, 102), tmp_path)
    assert (found["arm"], found["badge"], found["seeds"], found["runs"]) == ("grpo", "no signal", [100, 101], 2)
    (said,) = list_remarks(result | {"failed": [], "notes": [], "health": [found]})
    assert said.startswith("no signal: grpo, 2 of 2 runs; in seed 100 ") and found["help"] in said
    assert examine_arm(arm, (100,), tmp_path / "nowhere") == []


def test_what_hangs_on_the_machine_is_told_and_not_kept(plain: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    """A grader that takes half of every turn in all runs, and a GPU that was nearly full in one of them."""
    from io import StringIO

    from rich.console import Console

    from milonga.comparing.tables import print_tables

    out = tmp_path / "copied"
    shutil.copytree(plain[0], out)
    for run in out.glob("*/seed-*"):
        (run / "timing.jsonl").write_text(json.dumps({"turn": 1, "turn_s": 4.0, "idle_s": 2.0}) + "\n")
    full = out / "grpo" / "seed-101"
    rows = JsonLines(full / "metrics.jsonl").rows()
    rows[-1]["learn/generator/peak_gib"] = 9.5
    (full / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    (full / "machine.jsonl").write_text(json.dumps({"turn": 0, "gpu_gib": [10.0]}) + "\n")
    comparison = plan_comparison(["frozen", "grpo"], seeds=2, turns=2, match="turns", settings=[TINY])
    result = analyse(comparison, out, {}, [])
    assert result["health"] == plain[1]["health"]
    screen = StringIO()
    print_tables(result, Console(file=screen, width=200))
    lines = screen.getvalue().splitlines()
    slow = "2 of 2 runs; in seed 100 50 % of a turn, 2.0 s, go into prompts"
    for arm in result["arms"]:
        assert sum(line.startswith(f"slow grader: {arm}, {slow}") for line in lines) == 1
    full_memory = "memory: grpo, 1 of 2 runs; in seed 101 learning the generator held 9.5 of 10.0 GiB"
    assert [line.startswith(full_memory) for line in lines if line.startswith("memory")] == [True]


def test_an_interval_ends_where_the_metric_ends() -> None:
    wide = {"final": 0.9, "interval": (-2.0, 3.0)}
    assert format_measured("eval/generator/accuracy", wide) == "0.900 [0.000, 1.000]"
    assert format_measured("eval/hacking_gap", wide) == "0.900 [-1.000, 1.000]"
    assert format_measured("eval/generator/reward", wide) == "0.900 [-2.000, 3.000]"
    assert format_measured("eval/generator/accuracy", wide | {"interval": None}) == "0.900"


def test_the_metric_of_every_claim_has_a_title_in_words() -> None:
    assert {claim.metric for claim in map(CLAIMS.get, CLAIMS)} <= set(TITLES)


def test_arms_are_shown_as_they_are_written(plain: tuple[Path, dict[str, Any]]) -> None:
    """A name with markup in it is text, in the terminal and on the page."""
    from io import StringIO

    from rich.console import Console

    from milonga.comparing.tables import print_tables

    _, result = plain
    name = "grpo:dialect=[red]a|b"
    arms = {name if key == "grpo" else key: value for key, value in result["arms"].items()}
    odd = result | {"arms": arms, "baseline": name}
    screen = StringIO()
    print_tables(odd, Console(file=screen, width=200))
    assert "grpo: dialect=[red]a|b" in screen.getvalue()
    assert "\\[red\\]a\\|b" in to_markdown(odd)
