"""Rewards and other functions of the user's own: what they pay, what is still measured, and one line for each mistake."""

from __future__ import annotations

import json
import math
import textwrap
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import milonga
from cases import TINY
from helpers import Command, make_rollout
from milonga.api import plan_run
from milonga.config import RewardSection
from milonga.credit import has_both_outcomes
from milonga.errors import ConfigError, UserError
from milonga.flags import make_layer, parse_reward, place_on_gpus
from milonga.runfolder.files import JsonLines
from milonga.runfolder.folder import read_config
from milonga.systems.index import RECIPES
from milonga.tasks.base import ANSWERS
from milonga.tasks.functions import COLUMNS, RewardFunction, load_rewards, sum_rewards
from milonga.types import Grade, Problem, Rollout, Rollouts
from milonga.using.export import export
from short import SHORT, short_loop

NAN = math.nan
ROWS = [{"question": f"{a}+{b}%100", "answer": str(a + b), "hint": a} for a in range(10) for b in range(10)]
SMALL = TINY | {"sampling": {"max_tokens": 24}}
FILE = """
def length(prompts, completions, **columns):
    return [float(len(text)) for text in completions]

def unknown(prompts, completions, **columns):
    return [None for _ in completions]

def last(text, problem):
    return text.split()[-1] if text.split() else None
"""


def reward_of(grade: Grade | None) -> float:
    return replace(make_rollout(1, 2), grade=grade).reward


def asked(text: str, completion: str, **columns: Any) -> Rollout:
    problem = Problem(f"id/{text}", text, "4", {COLUMNS: columns})
    return replace(make_rollout(1, 2), problem=problem, text=completion)


def by(function: Any, weight: float = 1.0) -> RewardFunction:
    return RewardFunction("mine", function, weight)


def write(folder: Path, text: str = FILE, name: str = "mine.py") -> Path:
    path = folder / name
    path.write_text(textwrap.dedent(text))
    return path


def refusal(make: Any) -> str:
    with pytest.raises(UserError) as caught:
        make()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_reward_is_correctness_unless_the_grade_says_otherwise() -> None:
    assert [reward_of(Grade(True)), reward_of(Grade(False)), reward_of(Grade(True, reward=0.25))] == [1.0, 0.0, 0.25]
    assert math.isnan(reward_of(Grade(None))) and math.isnan(reward_of(None)), "unknown is no zero"
    assert math.isnan(reward_of(Grade(True, reward=NAN))), "a right answer whose reward is unknown"
    assert reward_of(Grade(None, reward=0.5)) == 0.5
    both = Rollouts([replace(make_rollout(1, 2), grade=Grade(True, reward=0.25)), make_rollout(1, 2, correct=False)])
    assert both.correct.tolist() == [1.0, 0.0] and both.rewards.tolist() == [0.25, 0.0]


def test_a_group_has_a_signal_where_rewards_differ() -> None:
    assert has_both_outcomes(np.array([0.2, 0.3, 0.7, 0.7, 0.5, NAN]), "aabbcc").tolist() == [True] * 2 + [False] * 4


def test_a_function_sees_texts_and_the_columns_of_the_row() -> None:
    seen: dict[str, Any] = {}

    def look(prompts: list[str], completions: list[str], **columns: Any) -> list[float]:
        seen.update(columns, prompts=prompts, completions=completions)
        return [0.0, 1.0]

    rollouts = [asked("2+2", "four", hint=2, prompts="mine"), asked("1+3", "4", more="x")]
    assert by(look).compute(rollouts) == [0.0, 1.0]
    assert seen == {
        "prompts": ["2+2", "1+3"],
        "completions": ["four", "4"],
        "question": ["2+2", "1+3"],
        "answer": ["4", "4"],
        "hint": [2, None],
        "more": [None, "x"],
    }


def test_several_functions_are_summed_by_weight_and_unknown_ones_are_left_out() -> None:
    functions = [by(lambda **_: [1.0, 2, None, None]), by(lambda **_: [0.5, None, np.float32(4), None], -2.0)]
    total = sum_rewards(functions, [asked(str(n), "") for n in range(4)])
    # 1 - 2 * 0.5, 2, -2 * 4, and nobody knows the last one
    assert total[:3] == [0.0, 2.0, -8.0] and math.isnan(total[3])


def divide(prompts: Sequence[str], hint: Sequence[float], **_: Any) -> list[float]:
    return [1 / h for h in hint]


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (divide, r"reward 'mine' on row 'id/b' \('b'\) failed in test_rewards\.py, line \d+: ZeroDivisionError"),
        (lambda **_: [1.0], r"\(test_rewards\.py, line \d+\) gave 1 values for 2 completions"),
        (lambda **_: 1.0, "gave a value of type float for 2 completions"),
        (lambda **_: [1.0, "x"], r"gave 'x' for row 'id/b' \('b'\); return a finite number, or None"),
        (lambda **_: [1.0, NAN], "gave nan for row 'id/b'"),
        (lambda **_: [math.inf, 1.0], "gave inf for row 'id/a'"),
    ],
    ids=["exception", "length", "type", "text", "nan", "infinite"],
)
def test_a_mistake_names_place_and_row(function: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        by(function).compute([asked("a", "", hint=1), asked("b", "", hint=0)])
    assert "\n" not in str(caught.value)


def test_a_function_of_another_form_is_refused_before_anything_runs(tmp_path: Path) -> None:
    path = write(tmp_path, "def f(completions):\n    return 1\ng = 3\n")
    for name, words in (("f", "mine.py, line 1) must take (prompts, completions, **columns), not (completions)"), ("g", "int")):
        settings = make_layer(reward=f"{path}:{name}")
        assert words in refusal(lambda layer=settings: plan_run("grpo", settings=[layer]))
    assert "there is no 'h'" in refusal(lambda: plan_run("grpo", settings=[make_layer(reward=f"{path}:h")]))


def test_a_weight_is_part_of_the_name() -> None:
    assert parse_reward("my.py:f*0.5") == {"function": "my.py:f", "weight": 0.5}
    assert parse_reward("my.py:f") == {"function": "my.py:f"}
    assert parse_reward((divide, 0.5)) == {"function": f"{Path(__file__)}:divide", "weight": 0.5}
    assert "a weight is a number" in refusal(lambda: parse_reward("my.py:f*half"))


def test_a_resolved_config_names_the_file_from_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path)
    monkeypatch.chdir(tmp_path)
    config = plan_run("grpo", settings=[make_layer(reward=["mine.py:length*2"], extract="mine.py:last")]).config
    assert [section.model_dump() for section in config.rewards] == [{"function": f"{path}:length", "weight": 2.0}]
    assert config.extract == f"{path}:last"
    monkeypatch.chdir("/")
    again = plan_run(settings=[config.model_dump(mode="json", exclude_none=True)])
    assert again.config == config and again.rewards[0].weight == 2.0


def test_rewards_are_for_recipes_that_pay_outcomes(tmp_path: Path) -> None:
    flags = make_layer(reward=f"{write(tmp_path)}:length")
    text = refusal(lambda: plan_run("sft", settings=[flags]))
    assert text.startswith("recipe 'sft' pays no outcome rewards") and "grpo" in text and "verifier_only" not in text
    for recipe in (name for name in RECIPES if RECIPES.get(name).pays_outcomes and not RECIPES.get(name).tasks):
        assert plan_run(recipe, settings=[flags]).rewards


def test_who_needs_answers_refuses_a_task_without_them(tmp_path: Path) -> None:
    """GRPO can be paid by reward functions alone; Tango's verifier learns what is right."""
    task = f"{write(tmp_path, BLIND, 'blind.py')}:Blind"
    flags = make_layer(reward=f"{write(tmp_path)}:length")
    for recipe in ("grpo", "tango"):
        text = refusal(lambda name=recipe: plan_run(name, task=task))
        assert text == f"recipe '{recipe}' needs to know which answers are right, which task 'Blind' does not"
    assert "needs to know" in refusal(lambda: plan_run("tango", task=task, settings=[flags]))
    assert ANSWERS not in plan_run("grpo", task=task, settings=[flags]).task.offers
    assert plan_run("ttrl", task=task).config.recipe == "ttrl", "whose label is a vote"


BLIND = """
from milonga import Grade, Problem, Task

class Blind(Task):
    has_answers = False

    def problem(self, split, index):
        return Problem(f"{split}/{index}", f"{index % 7}+{split == 'dev'}%100", "")

    def grade(self, problem, answer, steps):
        return Grade(None)
"""


def test_rewards_pay_where_nothing_is_known_and_accuracy_is_not_measured(tmp_path: Path) -> None:
    task = f"{write(tmp_path, BLIND, 'blind.py')}:Blind"
    rewards = [f"{write(tmp_path)}:length*0.5"]
    settings = {key: value for key, value in SMALL.items() if key != "task"}
    report = milonga.run("grpo", task=task, reward=rewards, turns=1, out=tmp_path / "run", settings=settings, quiet=True)
    assert report["generator"]["accuracy"] == {"start": None, "end": None}
    assert report["generator"]["reward"]["start"] > 1, "half the number of characters"
    row = JsonLines(tmp_path / "run" / "metrics.jsonl").rows()[-1]
    assert row["dropped"] == 0 and row["learn/generator/grad_norm"] > 0
    assert {key for key in row if key.startswith("flow/")} == {"flow/rewards>generator"}
    measured = milonga.evaluate(tmp_path / "run", split="dev", problems=2)
    assert measured["generator/accuracy"] is None and measured["generator/reward"] > 1
    export(tmp_path / "run", "generator", tmp_path / "out")
    for file in (tmp_path / "out" / "README.md", tmp_path / "run" / "report.html"):
        assert "mine.py:length*0.5" in file.read_text(), "what paid is told"


def test_rewards_are_described_without_their_folder() -> None:
    names = ("/home/me/mine.py:length", "package.module:length", "live/0a1b2c3d:length")
    assert [RewardSection(function=name).describe() for name in names] == ["mine.py:length", names[1], "length"]
    assert RewardSection(function=names[0], weight=0.5).describe() == "mine.py:length*0.5"


@pytest.mark.parametrize(
    ("recipe", "flow"),
    [
        ("maporl", {"rewards>generator", "rewards>partner"}),
        ("tango", {"rewards>generator", "verifier>generator", "answers>verifier"}),  # a judge is paid by what is true
    ],
)
def test_credit_by_rewards_is_named_so_for_all_whom_they_pay(recipe: str, flow: set[str], tmp_path: Path) -> None:
    rewards = {"rewards": [{"function": f"{write(tmp_path)}:length", "weight": 1.0}], "binding": "own"}
    with short_loop(recipe, tmp_path / "run", rewards) as loop:
        for _ in range(SHORT[recipe].turns):
            loop.run_turn()
    keys = {key for row in loop.rows for key in row if key.startswith("flow/")}
    assert {key.removeprefix("flow/") for key in keys if "demonstrations" not in key} == flow


def test_unknown_rewards_are_left_out_and_counted(tmp_path: Path) -> None:
    out = tmp_path / "run"
    milonga.run("grpo", reward=f"{write(tmp_path)}:unknown", turns=1, out=out, settings=SMALL, quiet=True)
    row = JsonLines(out / "metrics.jsonl").rows()[-1]
    assert row["rollouts/generator/reward"] is None and row["rollouts/generator/accuracy"] is not None
    assert row["dropped"] == 16 and row["learn/generator/grad_norm"] in (0, None), "4 problems of 4 rollouts"


def test_an_extractor_finds_the_answer_in_any_text(tmp_path: Path) -> None:
    out = tmp_path / "run"

    def cheat(text: str, problem: Problem) -> str:
        return problem.answer

    milonga.run("grpo", extract=cheat, turns=1, out=out, settings=SMALL, quiet=True)
    row = JsonLines(out / "metrics.jsonl").rows()[-1]
    assert row["rollouts/generator/accuracy"] == 1.0, "whatever was written"
    assert "pass it again" in refusal(lambda: load_rewards(plan_run("grpo", settings=[{"extract": "live/0:cheat"}]).rewards))
    text = refusal(
        lambda: milonga.run(
            "grpo", extract=lambda text, problem: 3, turns=1, out=tmp_path / "wrong", settings=SMALL, quiet=True
        )
    )
    assert text.startswith("extract 'lambda' (test_rewards.py, line ") and "gave 3 for" in text


GRADED = """
def adding(rng):
    n = rng.randrange(1000)
    return f"{n}+1%100", str((n + 1) % 100)

def grade(question, answer, given):
    return {"half": 0.5, "low": 0.49, "one": 1, "yes": True, "no": False, "unsure": None}[given]
"""


def test_a_grader_may_return_a_reward(tmp_path: Path) -> None:
    task = plan_run("grpo", task=f"{write(tmp_path, GRADED)}:adding").task
    found = [task.grade(task.problem("train", 0), given, ()) for given in ("half", "low", "one", "yes", "no", "unsure")]
    assert [grade.correct for grade in found] == [True, False, True, True, False, None]
    assert [grade.reward for grade in found] == [0.5, 0.49, 1.0, None, None, None]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("1 / 0", r"on the question '\d+\+1%100' failed in mine\.py, line 7: ZeroDivisionError"),
        (
            "2.5",
            r"mine\.py, line 6\) gave 2\.5 on the question '\d+\+1%100'; return True, False, a number from 0 to 1, or None",
        ),
        ("'yes'", "gave 'yes' on"),
        ("float('nan')", "gave nan on"),
    ],
)
def test_a_mistake_in_a_grader_stops_the_run(tmp_path: Path, body: str, message: str) -> None:
    head, _, _ = GRADED.rpartition("    return")
    task = f"{write(tmp_path, f'{head}    return {body}')}:adding"
    settings = {key: value for key, value in SMALL.items() if key != "task"}
    with pytest.raises(ConfigError, match=message) as caught:
        milonga.run("grpo", task=task, turns=1, out=tmp_path / "run", settings=settings, quiet=True)
    assert "\n" not in str(caught.value)


def test_five_lines_train_a_model_and_resume(tmp_path: Path) -> None:
    out = tmp_path / "run"

    def reward(prompts: list[str], completions: list[str], answer: list[str], **_: Any) -> list[float]:
        return [float(a in c) for c, a in zip(completions, answer, strict=True)]

    settings = {"batch.problems": 4, "eval": {"problems": 2, "samples": 1, "bench": 0}, "keep.checkpoint_every": 1}
    report = milonga.run(
        "grpo", model="embedded", data=ROWS, reward=reward, turns=2, rollouts=4, max_tokens=24, out=out, settings=settings
    )
    assert report["turns"] == 2 and 0 <= report["generator"]["reward"]["end"] <= 1
    assert [json.loads(line) for line in (out / "data.jsonl").read_text().splitlines()] == ROWS
    assert milonga.resume(out, quiet=True, turns=3)["turns"] == 3, "the function is still here"


def test_what_another_process_cannot_load_is_passed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "run"
    milonga.run("grpo", reward=[lambda **_: [1.0] * 4], turns=1, out=out, settings=SMALL_GROUPS, quiet=True)
    monkeypatch.setattr("milonga.loading._live", {})  # as in another process
    (out / "report.json").unlink()  # as if it had been killed before its end
    assert refusal(lambda: milonga.resume(out)) == (
        "reward 'lambda' was passed by a program that has ended; pass it again: milonga.resume(FOLDER, reward=...)"
    )
    assert "2 given, but the run has 1" in refusal(lambda: milonga.resume(out, reward=[len, len]))
    assert milonga.resume(out, reward=lambda **_: [1.0] * 4, quiet=True)["turns"] == 1


SMALL_GROUPS = SMALL | {"batch": {"problems": 1, "rollouts": 4}, "eval": SMALL["eval"] | {"problems": 4}}


def test_rows_that_cannot_be_kept_are_refused(tmp_path: Path) -> None:
    out = tmp_path / "run"
    assert "row 2 of data cannot be written as JSON" in refusal(
        lambda: milonga.run("grpo", data=[ROWS[0], {"question": object()}], out=out)
    )
    assert "give one of them" in refusal(lambda: milonga.run("grpo", data=ROWS, task="chain", out=out))


class Own(RECIPES.get("grpo")):  # type: ignore[misc]
    """A recipe of the user's own."""

    name = "own"


def adding(rng: Any) -> tuple[str, str]:
    n = rng.randrange(1000)
    return f"{n}+1%100", str((n + 1) % 100)


@pytest.mark.parametrize("form", ["function", "lambda", "class", "instance"])
def test_python_takes_recipes_and_tasks_as_they_are(tmp_path: Path, form: str) -> None:
    chain = type(plan_run("grpo").task)
    task = {"function": adding, "lambda": lambda rng: adding(rng), "class": chain, "instance": chain()}[form]
    settings = {key: value for key, value in SMALL.items() if key != "task"}
    report = milonga.run(Own, task=task, turns=1, out=tmp_path / "run", settings=settings, quiet=True)
    assert report["recipe"] == f"{Path(__file__)}:Own"
    config = (tmp_path / "run" / "config.toml").read_text()
    again = {"function": f'"{Path(__file__)}:adding"', "class": '"milonga.tasks.chain:Chain"'}
    assert again[form] in config if form in again else 'name = "live/' in config


def test_flags_are_settings(milonga: Command, tmp_path: Path) -> None:
    rows = "".join(f'{{"prompt": "{n}+1?", "gold": {n + 1}}}\n' for n in range(200))
    data, mine = write(tmp_path, rows, "rows.jsonl"), write(tmp_path)
    flags = ["--data", data, "--generator", "embedded", "--question", "prompt", "--answer", "gold", "--lora", "--wandb"]
    flags += ["--reward", f"{mine}:length*0.5"]
    numbers = ["--lr", "0.001", "--problems", "3", "--rollouts", "5", "--max-tokens", "77"]
    done = milonga("run", "tango", *flags, *numbers, "--set", "batch.rollouts=6", "--dry-run", "--json")
    assert done.code == 0, done.err
    assert len(done.out.splitlines()) == 1, "JSON alone on stdout"
    config = done.json["config"]
    assert config["task"]["path"] == str(data) and config["binding"] == "lora" and config["keep"]["trackers"] == ["wandb"]
    assert config["rewards"] == [{"function": f"{mine}:length", "weight": 0.5}]
    assert {name: section["lr"] for name, section in config["policies"].items()} == {"generator": 0.001, "verifier": 0.001}
    assert config["batch"] == {"problems": 3, "rollouts": 6}, "a setting wins over a flag"
    assert config["sampling"]["max_tokens"] == 77
    both = milonga("run", "grpo", "--data", data, "--task", "chain")
    assert both.code == 2 and "give one of them" in both.err


def test_compare_takes_the_same_flags(milonga: Command) -> None:
    flags = ["--rollouts", "3", "--lr", "0.002", "--max-tokens", "40"]
    done = milonga("compare", "grpo", "tango", "--seeds", "2", *flags, "--dry-run", "--json")
    assert done.code == 0 and len(done.out.splitlines()) == 1, done.err
    assert "rollouts = 3" in done.err and "lr = 0.002" in done.err


def test_a_rate_of_all_policies_gives_way_to_one_of_their_own() -> None:
    own = {"policies": {"verifier": {"lr": 0.5}}, "lr": 0.25}
    config = plan_run("curriculum", settings=[own]).config
    assert {name: section.lr for name, section in config.policies.items()} == {
        "generator": 0.25,
        "verifier": 0.5,
        "proposer": 0.25,
    }
    assert plan_run(settings=[config.model_dump(mode="json", exclude_none=True)]).config == config


def test_several_gpus_are_shared_by_all_policies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 4)
    assert place_on_gpus(1, RECIPES.get("tango")) == {"engine": "local"}
    assert place_on_gpus(4, RECIPES.get("tango")) == {"engine": "ray", "placement": {"learners": 4, "gpus": 0.5}}
    assert place_on_gpus(2, RECIPES.get("curriculum"))["placement"]["gpus"] == 0.3333, "three of them fit into one GPU"


@pytest.mark.parametrize("name", ["model", "generator"])
def test_a_model_is_that_of_the_lead_agent(tmp_path: Path, name: str) -> None:
    folder = str(Path(milonga.__file__).parent / "embedded" / "base")
    settings = SMALL | {"dialect": "terse"}
    milonga.run("grpo", turns=1, out=tmp_path / "run", settings=settings, quiet=True, **{name: folder})
    assert read_config(tmp_path / "run").policies["generator"].model == folder


def test_more_gpus_than_there_are_is_refused(milonga: Command) -> None:
    done = milonga("run", "grpo", "--gpus", "4096", "--dry-run")
    assert done.code == 2 and "--gpus 4096: this machine has" in done.err


def test_the_version_and_short_help(milonga: Command) -> None:
    assert milonga("--version").out == "milonga 0.1.0\n"
    assert "Usage" in milonga("run", "-h").out
