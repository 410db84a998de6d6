"""The first example of every command is run as its page has it, each in a folder that has what the examples speak of.

Small: options that make a command shorter are added to it, a model of random weights takes the place of the one that a page
names, and servers take any port that is free. Nothing else is changed. Some examples do less than they could: that of `claim`
lists (test_new runs a small claim), `probe` meets a model that writes nothing readable, and says so (a readable one is a real
model), and `plan` predicts for GPUs that are not here. Nothing needs the net.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from cases import TINY
from engine_helpers import chat_folder
from helpers import Command
from milonga.api import run
from milonga.cli.app import app
from milonga.cli.help import parse_examples
from milonga.config import read_toml

GROUP: Any = get_command(app)
EXAMPLES = {name: shlex.split(parse_examples(command.epilog)[0], comments=True) for name, command in GROUP.commands.items()}
"""The words of the first example of each command, without `milonga`."""
SETTINGS = "device=cpu threads=1 task.ops=2 batch.problems=4 batch.rollouts=4 eval.problems=4 eval.samples=1 eval.bench=4"
SMALL = ("--turns", "1", *(word for setting in SETTINGS.split() for word in ("--set", setting)))
SHORTER: dict[str, tuple[str, ...]] = {
    "run": (*SMALL, "--set", "options.warmup=1", "--set", "options.n_generator=1", "--out", "runs/tango"),
    "resume": ("--turns", "2"),
    "probe": ("--problems", "2", "--rollouts", "2", "--max-tokens", "8"),
    "eval": ("--problems", "8"),
    "compare": (*SMALL, "--seeds", "2", "--match", "turns", "--jobs", "1", "--out", "runs/compared"),
    "sweep": ("--jobs", "1"),
    "board": ("--port", "0"),
    "serve": ("--port", "0"),
}
STUDY = """[common]
turns = 1
device = "cpu"
threads = 1
task = { name = "chain", ops = 2 }
batch = { problems = 4, rollouts = 4 }
eval = { problems = 4, samples = 1, bench = 0, greedy = false }
[[runs]]
name = "one"
recipe = ["grpo"]
seeds = [0]
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the examples speak of: a run, a file of problems, one of solutions, a study. To be copied, never changed."""
    for name in ("math_verify", "peft", "starlette", "uvicorn"):
        pytest.importorskip(name, reason="one of the extras math, lora, board and serve is not installed")
    folder = tmp_path_factory.mktemp("day")
    settings = TINY | {"options": {"warmup": 1, "n_generator": 1}, "keep": {"rollouts_every": 1}}
    run("tango", turns=1, seed=3, out=folder / "runs" / "first", settings=settings, quiet=True)
    sums = [{"question": f"{n % 10}+{n % 7}*3%100", "answer": (n % 10 + n % 7) * 3} for n in range(8)]
    (folder / "problems.jsonl").write_text("".join(json.dumps(row) + "\n" for row in sums))
    solution = {"problem": "3+4*5%100", "steps": ["3+4=7", "7*5=36"], "label": 1}
    (folder / "solutions.jsonl").write_text(json.dumps(solution) + "\n")
    (folder / "study.toml").write_text(STUDY)
    shutil.move(chat_folder(tmp_path_factory.mktemp("models")), folder / "random-model")
    return folder


@pytest.fixture
def day(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of its own for each example, which is the working directory."""
    folder = tmp_path / "day"
    shutil.copytree(made, folder)
    monkeypatch.chdir(folder)
    return folder


def words_of(name: str) -> list[str]:
    """What is run for a command: its first example, shortened."""
    words = [word.replace("small.gguf", "random-model") for word in EXAMPLES[name][1:]]
    return [*words, *SHORTER.get(name, ())]


def lines_of(path: str) -> list[Any]:
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


def report_of(folder: str) -> Any:
    return json.loads((Path(folder) / "report.json").read_text())


def saw_run(out: str) -> None:
    assert report_of("runs/tango")["turns"] == 2 and "generator accuracy" in out
    assert (Path("runs/tango") / "models" / "verifier" / "model.safetensors").exists()


def saw_resume(out: str) -> None:
    assert report_of("runs/first")["lead_turns"] == 2
    assert read_toml(Path("runs/first/config.toml"))["turns"] == 2


def saw_plan(out: str) -> None:
    assert "7.62B" in out and "GPU-hours" in out


def saw_probe(out: str) -> None:
    assert "can be read" in out


def saw_eval(out: str) -> None:
    assert "generator/accuracy" in out and "verifier/f1" in out


def saw_compare(out: str) -> None:
    assert all(arm in out for arm in ("tango", "grpo", "frozen"))
    assert json.loads(Path("runs/compared/compare.json").read_text())["seeds"] == [100, 101]


def saw_sweep(out: str) -> None:
    reports = list(Path("runs/study").rglob("report.json"))
    assert [json.loads(path.read_text())["turns"] for path in reports] == [1]


def saw_claim(out: str) -> None:
    assert "prime" in out and "An implicit reward model" in out


def saw_list(out: str) -> None:
    assert "search_self_play: " in out and "our own" in out


def saw_show(out: str) -> None:
    assert "verifier says" in out and "milonga " in out


def saw_report(out: str) -> None:
    page = Path("runs/first/report.html").read_text()
    assert "<svg" in page and "tango" in page


def saw_doctor(out: str) -> None:
    assert "torch" in out and sys.version.split()[0] in out


def saw_solve(out: str) -> None:
    rows = lines_of("answers.jsonl")
    assert len(rows) == 8 and all(len(row["candidates"]) == 8 for row in rows)


def saw_verify(out: str) -> None:
    (row,) = (json.loads(line) for line in out.splitlines() if line.startswith("{"))
    assert row["checks"] == 8 and row["steps"] == ["3+4=7", "7*5=36"] and "match" in row


def saw_chat(out: str) -> None:
    assert "verifier: " in out


def saw_export(out: str) -> None:
    folder = Path("out/generator")
    assert (folder / "model.safetensors").exists() and "tango" in (folder / "README.md").read_text()


def saw_new(out: str) -> None:
    assert {"test_double_sums.py"} <= {path.name for path in Path("double_sums").iterdir()}


SEEN: dict[str, Callable[[str], None]] = {
    "run": saw_run,
    "resume": saw_resume,
    "plan": saw_plan,
    "probe": saw_probe,
    "eval": saw_eval,
    "compare": saw_compare,
    "sweep": saw_sweep,
    "claim": saw_claim,
    "list": saw_list,
    "show": saw_show,
    "report": saw_report,
    "doctor": saw_doctor,
    "solve": saw_solve,
    "verify": saw_verify,
    "chat": saw_chat,
    "export": saw_export,
    "new": saw_new,
}
"""Command -> what must have come of its example, given what it printed."""
SERVERS = ("board", "serve")
REFUSED = ("probe",)
"""Commands whose example ends with exit code 2 here."""


def test_every_command_is_run() -> None:
    assert sorted([*SEEN, *SERVERS]) == sorted(GROUP.commands)


@pytest.mark.parametrize("name", SEEN)
def test_the_first_example(name: str, day: Path, milonga: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setattr(sys, "stdin", StringIO("3+4*5%100\n"))
    done = milonga(*words_of(name))
    assert done.code == (2 if name in REFUSED else 0), done.err
    SEEN[name](done.out)


@contextmanager
def served(name: str) -> Iterator[str]:
    """Run the example of a server as a user does; yield its address. It must end well when it is told to."""
    command = [sys.executable, "-u", "-m", "milonga", *words_of(name)]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=os.environ | {"MILONGA_TOKEN": ""}
    )
    try:
        assert process.stdout is not None
        lines = iter(process.stdout.readline, "")
        yield next(found[0] for line in lines if (found := re.search(r"http://[\w.:]+", line)))
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0
    finally:
        process.kill()
        process.wait()


def test_the_first_example_of_board(day: Path) -> None:
    with served("board") as address, urllib.request.urlopen(address) as page:
        assert "first" in page.read().decode()


def test_the_first_example_of_serve(day: Path) -> None:
    body = json.dumps({"problems": [{"question": "3+4*5%100"}], "best_of": 2}).encode()
    with served("serve") as address:
        asked = urllib.request.Request(f"{address}/solve", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(asked) as answer:
            (result,) = json.load(answer)["results"]
    assert len(result["candidates"]) == 2
