"""`milonga new`: what it writes passes its own tests, runs, resumes and compares; and recipes of the user's own in general."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from milonga import api
from milonga.claims import plan_claim
from milonga.cli import main
from milonga.cli.new import write_skeleton
from milonga.comparing.arms import plan_comparison
from milonga.config import to_toml
from milonga.errors import ConfigError, RunFolderError
from milonga.runfolder.folder import read_config
from milonga.systems.custom import find_claim, find_recipe
from milonga.systems.grpo.recipe import Grpo
from milonga.systems.index import SYSTEMS, System

FAMILIES = {system.family for system in SYSTEMS}
TINY = {
    "device": "cpu",
    "threads": 1,
    "batch": {"problems": 2, "rollouts": 2},
    "eval": {"problems": 2, "samples": 1, "bench": 4},
    "keep": {"rollouts_every": 0},
}


FILES = {
    "recipe": {"recipe.py", "claim.py", "README.md", "test_first_try.py"},
    "task": {"first_try.py", "first_try.md", "test_first_try.py"},
}
PLACES = {"recipe": "recipe.py", "task": "first_try.py"}


def call(folder: Path, *arguments: str) -> str:
    done = subprocess.run([sys.executable, "-m", *arguments], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["recipe", "task"])
def test_a_skeleton_passes_its_tests_runs_and_resumes(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def milonga(*arguments: str) -> dict[str, Any]:
        monkeypatch.setattr(sys, "argv", ["milonga", *arguments, "--json"])
        with pytest.raises(SystemExit) as end:
            main()
        out, err = capsys.readouterr()
        assert end.value.code == 0, err
        found: dict[str, Any] = json.loads(out.splitlines()[-1])
        return found

    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.toml").write_text(to_toml(TINY))
    written = milonga("new", kind, "first_try")
    assert {Path(file).name for file in written["files"]} == FILES[kind] and all(map(os.path.isfile, written["files"]))
    # In the user's project, by the user's rules: ruff's own, and more.
    call(tmp_path, "ruff", "check", "--isolated", "--extend-select", "E,F,W,I,B,UP,C4,SIM,RUF,PT,N", "first_try")
    call(tmp_path, "ruff", "format", "--isolated", "--check", "first_try")
    assert "passed" in call(tmp_path, "pytest", "-q", "-p", "no:cacheprovider", "first_try")
    whole = milonga(*written["run"].split()[1:], "--turns", "2", "--config", "tiny.toml", "--out", "run")
    assert whole["lead_turns"] == 2
    config = read_config(tmp_path / "run")
    named = config.recipe if kind == "recipe" else config.task["name"]
    assert named == f"{tmp_path / 'first_try' / PLACES[kind]}:FirstTry"
    # From another folder, and from its start: as if it had been killed in its first turn.
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "turn-000002")
    monkeypatch.chdir(tmp_path.parent)
    resumed = milonga("resume", str(tmp_path / "run"))
    folder = f"{tmp_path / 'run'}"
    assert (whole.pop("run"), resumed.pop("run")) == ("run", folder)
    assert [command.replace(folder, "run") for command in resumed.pop("next")] == whole.pop("next")
    assert resumed == whole


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "test_mine.py").write_text("mine\n")
    with pytest.raises(RunFolderError, match=r"nothing was written: .*test_mine\.py is there already"):
        write_skeleton("task", "mine", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["test_mine.py"]
    assert write_skeleton("recipe", "other", tmp_path)["name"] == f"{tmp_path / 'recipe.py'}:Other"
    assert (tmp_path / "test_mine.py").read_text() == "mine\n"


@pytest.mark.parametrize(
    "name",
    [
        "",
        "Mine",
        "my-task",
        "../mine",
        "mine.py",
        "1st",
        "a__b",
        "_a",
        "class",
        "x" * 41,
        "ä",
        "none",
        "json",
        "numpy",
        "grade",
    ],
)
def test_a_name_that_is_none_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot name a task"):
        write_skeleton("task", name, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_new_recipe_is_a_system(tmp_path: Path) -> None:
    """Its claim is a comparison with GRPO that can be planned, and its line in the catalogue says what the class says."""
    written = write_skeleton("recipe", "first_try", tmp_path)
    claim = find_claim(f"{tmp_path / 'claim.py'}:CLAIM")
    comparison = plan_claim(claim)
    assert [arm.recipe for arm in comparison.arms] == [written["name"], "grpo"] and claim.recipe == "first_try"
    entry: System = eval(written["entry"].rstrip(","), {"System": System})
    found = find_recipe(written["name"])
    assert (entry.name, entry.recipe) == (found.name, "first_try.recipe:FirstTry")
    assert (entry.claim, entry.page) == ("first_try.claim:CLAIM", "first_try/README.md") and entry.family in FAMILIES
    assert entry.line == (found.__doc__ or "").rstrip(".") and written["entry"] in (tmp_path / "README.md").read_text()


def test_a_claim_that_is_none_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "claim.py").write_text("CLAIM = 3\n")
    with pytest.raises(ConfigError, match="is not a Claim, but a value of type int"):
        find_claim(f"{tmp_path / 'claim.py'}:CLAIM")
    with pytest.raises(ConfigError, match="unknown claim 'tango'"):
        find_claim("tango")


def test_a_wrong_kind_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="did you mean 'recipe'"):
        write_skeleton("recipes", "mine", tmp_path)


OWN = """
from milonga.systems.grpo.recipe import Grpo


class Mine(Grpo):
    defaults = {"turns": 7}
"""


def write(folder: Path, text: str) -> str:
    (folder / "mine.py").write_text(textwrap.dedent(text))
    return f"{folder / 'mine.py'}:Mine"


def test_a_recipe_in_a_file_is_planned_like_any_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, OWN)
    monkeypatch.chdir(tmp_path)
    plan = api.plan_run("mine.py:Mine")
    assert isinstance(plan.recipe, Grpo) and plan.recipe.name == "Mine" and plan.config.turns == 7
    assert plan.config.recipe == f"{tmp_path / 'mine.py'}:Mine", "it can be resumed from another folder"
    assert api.choose_run_folder("mine.py:Mine").name.startswith("Mine-")
    assert find_recipe("mine.py:Mine") is find_recipe(str(tmp_path / "mine.py") + ":Mine")


def test_a_recipe_in_a_file_is_an_arm_like_any_other(tmp_path: Path) -> None:
    name = write(tmp_path, OWN)
    arms = [name, f"{name}:batch.rollouts=4", "grpo", "grpo:batch.rollouts=4"]
    comparison = plan_comparison(arms, settings=[{"turns": 3}])
    assert [arm.plan.config.batch.rollouts for arm in comparison.arms] == [8, 4, 8, 4]
    assert [arm.recipe for arm in comparison.arms] == [name, name, "grpo", "grpo"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1\n", "there is no 'Mine'"),
        ("Mine = 3\n", "is not a Recipe subclass, but a value of type int"),
        ("class Mine: pass\n", "is not a Recipe subclass, but another class"),
        ("1 / 0\n", r"recipe file '.*' failed in mine\.py, line 1: ZeroDivisionError"),
        (
            "from milonga.recipe import Recipe\nclass Mine(Recipe): pass\n",
            "does not define credit and rollout and schedule and agents and lead and bindings",
        ),
    ],
)
def test_a_mistake_in_the_file_is_one_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        find_recipe(write(tmp_path, text))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("line", ['bindings = {"own": ""}', "overlap = True"])
def test_a_permission_is_said_by_name(tmp_path: Path, line: str) -> None:
    text = f"from milonga.systems.grpo.recipe import Grpo\nclass Mine(Grpo):\n    {line}\n"
    with pytest.raises(ConfigError, match=r"must be ALLOWED or Refused\(\"reason\"\), of milonga\.recipe"):
        find_recipe(write(tmp_path, text))


def test_a_file_that_is_not_there_is_one_line() -> None:
    with pytest.raises(ConfigError, match=r"recipe file 'none\.py' does not exist"):
        find_recipe("none.py:Mine")
    with pytest.raises(ConfigError, match="did you mean 'tango'"):
        find_recipe("tengo")
