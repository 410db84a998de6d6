"""What is shown of a run: curves that matter, and commands to go on with that are taken as they stand; health while it runs."""

from __future__ import annotations

import fcntl
import io
import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import milonga
from cases import TINY
from helpers import Command
from milonga.api import plan_run
from milonga.cli.show import PAID, choose_curves, draw_sparkline, list_candidates, list_next_steps, print_text, show_run
from milonga.cli.words import COUNTED, title_metric
from milonga.comparing.arms import list_metrics, plan_comparison
from milonga.config import Config, RewardSection, parse_setting, to_toml
from milonga.engine import Progress
from milonga.health import Finding
from milonga.resolve import resolve
from milonga.runfolder.console import LiveView, Ticker
from milonga.runfolder.files import JsonLines
from milonga.runfolder.record import Record
from milonga.systems.index import RECIPES
from milonga.text import format_number
from short import SHORT, short_loop

ACCURACY = "eval/generator/accuracy"
TRUNCATED = Finding("truncated", "cut", "--set sampling.max_tokens=48", ("sampling.max_tokens",))


def make_record(folder: Path, config: Config, ended: bool = True, **more: float | str) -> Record:
    folder.mkdir(exist_ok=True)
    (folder / "config.toml").write_text(to_toml(config.model_dump(mode="json")))
    rows: list[dict[str, Any]] = [
        {"turn": turn, **{key.replace("__", "/"): value for key, value in more.items()}} for turn in (0, 1)
    ]
    return Record(folder, config, rows, [], [], {"turns": 1} if ended else None)


@pytest.mark.parametrize("recipe", [*RECIPES])
def test_what_to_try_next_is_taken_as_it_stands(recipe: str, tmp_path: Path) -> None:
    """With the run's own config: the probe, the run with what is advised, and the comparison can all be planned."""
    config = resolve([TINY, SHORT[recipe].settings, {"recipe": recipe}]).config
    record = make_record(tmp_path / "a run", config, eval__generator__accuracy=0.5)
    steps = [shlex.split(step) for step in list_next_steps(record, [TRUNCATED])]
    imitates = "generator" in RECIPES.get(recipe).learns  # then its objective is none of GRPO's
    assert [words[1] for words in steps] == ["probe", "run", "eval", *([] if imitates else ["compare"])]
    probe, again, _, *rest = steps
    assert plan_run(probe[2], config=probe[4]).config.task == config.task
    changed = plan_run(again[2], config=again[4], settings=[parse_setting(again[6])]).config
    assert changed.sampling.max_tokens == 48 and changed.policies.keys() == config.policies.keys()
    for compare in rest:
        arms = plan_comparison(compare[2:4], config=compare[5], seeds=compare[7]).arms
        assert [arm.plan.config.task for arm in arms] == [config.task] * 2


def test_steps_follow_the_state_of_a_run(tmp_path: Path) -> None:
    config = resolve([TINY, {"recipe": "grpo"}]).config
    record = make_record(tmp_path, config, eval__generator__accuracy=0.5)
    assert [step.split()[1] for step in list_next_steps(record, [])] == ["eval", "compare"]
    severe = Finding("unreadable", "nothing", severe=True)
    assert [step.split()[1] for step in list_next_steps(record, [severe])] == ["probe"]
    stopped = make_record(tmp_path, config, ended=False)
    assert list_next_steps(stopped, []) == [f"milonga resume {tmp_path}"]
    stalled = make_record(tmp_path, config, ended=False, stalled="why")
    assert list_next_steps(stalled, []) == [f"milonga resume {tmp_path} --force"]
    with (tmp_path / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert list_next_steps(stopped, []) == [], "it is at work: to resume it would be refused"
    assert list_next_steps(stopped, []) == [f"milonga resume {tmp_path}"]


def test_all_that_is_advised_is_one_command(tmp_path: Path) -> None:
    record = make_record(tmp_path, resolve([TINY, {"recipe": "grpo"}]).config, eval__generator__accuracy=0.5)
    more = Finding("mismatch", "far", "--set dtype=float32", ("dtype",))
    words = shlex.split(list_next_steps(record, [TRUNCATED, more, TRUNCATED])[1])
    assert words[5:] == ["--set", "sampling.max_tokens=48", "--set", "dtype=float32"]


def test_a_sparkline_shows_the_whole_of_a_curve() -> None:
    assert draw_sparkline([0.0, 1.0]) == "▁█" and draw_sparkline([3.0, 3.0, 3.0]) == "▁▁▁"
    fell = draw_sparkline([1.0] * 40 + [0.0] * 40)
    assert fell == "█" * 8 + "▁" * 8, "the first half too, though the last sixteen values are all alike"
    assert draw_sparkline([*range(8)]) == "▁▂▃▄▅▆▇█"


def test_sentences_are_wrapped_on_a_terminal_and_nothing_else_is() -> None:
    sentence = "a word " * 20
    for terminal, wrap, lines in ((True, True, 2), (True, False, 1), (False, True, 1)):
        screen = io.StringIO()
        print_text(Console(file=screen, width=80, force_terminal=terminal), sentence, wrap=wrap)
        assert len(screen.getvalue().splitlines()) == lines, (terminal, wrap)


def test_the_curves_that_matter_are_accuracy_the_claim_and_what_is_usual(tmp_path: Path) -> None:
    figures = {
        name.replace("/", "__"): 0.5 for name in (ACCURACY, "eval/verifier/pair_accuracy", "eval/verifier/f1", "eval/zeal")
    }
    prime = make_record(tmp_path, resolve([TINY, SHORT["prime"].settings, {"recipe": "prime"}]).config, **figures)
    assert choose_curves(prime) == [ACCURACY, "eval/verifier/pair_accuracy", "eval/verifier/f1"]
    grpo = resolve([TINY, {"recipe": "grpo"}]).config
    assert choose_curves(make_record(tmp_path, grpo, learn__generator__entropy=0.1, eval__generator__accuracy=0.5)) == [
        ACCURACY,
        "learn/generator/entropy",
    ]
    both = {"eval__generator__reward": 0.1, "eval__generator__accuracy": 0.5}
    assert choose_curves(make_record(tmp_path, grpo, **both)) == [ACCURACY]
    paid = grpo.model_copy(update={"rewards": [RewardSection(function="a.py:f")]})
    assert choose_curves(make_record(tmp_path, paid, **both)) == ["eval/generator/reward", ACCURACY]
    both["rollouts__generator__reward"] = 0.2
    assert choose_curves(make_record(tmp_path, paid, **both)) == [
        "eval/generator/reward",
        "rollouts/generator/reward",
        ACCURACY,
    ]
    own = grpo.model_copy(update={"recipe": "mine.py:Mine"})  # is not loaded: there is no such file
    assert choose_curves(make_record(tmp_path, own, eval__mine__zeal=0.5)) == ["eval/mine/zeal"]
    assert title_metric("eval/mine/zeal") == "mine/zeal"


VARIED: dict[str, list[dict[str, Any]]] = {
    "sweet_rl": [{"options": {"user": "simulator", "formats": 0}, "dialect": "plain"}],
    "tango_balanced": [{"options": {"measured": 4}}],
}
"""Options by which a recipe measures something else."""


@pytest.mark.parametrize("recipe", [*RECIPES])
def test_every_curve_that_may_be_shown_has_words(recipe: str, tmp_path: Path) -> None:
    """Of whatever a recipe measures, and whatever of it is missing; counts are no curves that matter."""
    for more in ({}, *VARIED.get(recipe, ())):
        plan = resolve([TINY, SHORT[recipe].settings, {"recipe": recipe}, more])
        measured = [*PAID, "learn/generator/entropy", "rollouts/generator/accuracy", *sorted(list_metrics(plan))]
        record = make_record(tmp_path, plan.config, **dict.fromkeys(measured, 0.5))
        left = {metric for metric in measured if metric not in list_candidates(record)}
        assert all(metric.endswith((*COUNTED, "/reward")) for metric in left)
        for metric in {*measured} - left:
            words = title_metric(metric)
            assert "/" not in words and "_" not in words and words != metric, metric


def test_words_of_a_metric_say_whose_it_is_and_when() -> None:
    said = {
        "eval/generator/invalid_rate": "generator: share of outputs that cannot be read",
        "rollouts/verifier/truncated_rate": "verifier: share of outputs that are cut, while training",
        "learn/tester/entropy": "tester: entropy of a token",
        "eval/generator/pass@8": "generator: chance that one of 8 is right",
        "eval/verifier/bench_invalid_rate": "verifier: share of outputs that cannot be read, bench",
        "eval/accuracy_on_sign_flip": "verifier: accuracy on sign flip",
        "eval/mine/zeal": "mine/zeal",
        "credit/generator/reward": "credit/generator/reward",
        "own": "own",
    }
    assert {metric: title_metric(metric) for metric in said} == said


def test_no_number_or_curve_is_cut_for_a_long_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """On a terminal of 80 columns names are broken; in a pipe nothing is."""
    config = resolve([TINY, SHORT["absolute_zero"].settings, {"recipe": "absolute_zero"}]).config
    make_record(tmp_path, config)
    rows = [{"turn": turn, "lead_turn": turn, "eval/proposer/learnable": 0.0004 / (turn + 1)} for turn in range(16)]
    (tmp_path / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    for terminal in (True, False):
        for all_ in (True, False):
            screen = io.StringIO()
            show_run(tmp_path, 0, Console(file=screen, width=80, force_terminal=terminal, color_system=None), all_)
            lines = screen.getvalue().splitlines()
            table = [line for line in lines if line[:1] in ("┏", "┃", "┡", "│", "└")]
            assert any("4.0e-04" in line and "2.5e-05" in line and "█" in line for line in table)
            assert not any("…" in line for line in table) and (max(map(len, table)) <= 80 or not terminal)
            name = "eval/proposer/learnable" if all_ else "proposer: share of valid tasks that are solved sometimes"
            assert any(name in line for line in lines) or (terminal and not all_)


def test_what_is_wrong_is_said_once_while_it_lasts(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.StringIO()
    monkeypatch.setattr("sys.stderr", screen)
    view = LiveView("title", 4)

    def find(generator: str = "", verifier: str = "") -> list[Finding]:
        said = {"generator": generator, "verifier": verifier}
        return [Finding("truncated", text, subject=agent) for agent, text in said.items() if text]

    turns = [find(), find("10 % are cut"), find("20 % are cut", "12 % are"), find(), find("30 % are cut")]
    for turn, findings in enumerate(turns):
        view.add({"turn": turn}, findings)
    said = [line for line in screen.getvalue().splitlines() if line.startswith("health")]
    assert said == [f"health: truncated: {text}" for text in ("10 % are cut", "12 % are", "30 % are cut")]


def test_how_far_sampling_and_learning_are_is_said_after_a_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    times, said = iter((100.0, 110.0, 125.0, 140.0, 150.0, 170.0, 200.0)), list[str]()
    monkeypatch.setattr("milonga.runfolder.console.time.monotonic", lambda: next(times))
    ticker = Ticker(said.append)
    for progress in (
        Progress("generator", "sample", 8, 0, 8, 1, 64),
        Progress("generator", "sample", 8, 2, 6, 16, 64),
        Progress("generator", "sample", 8, 4, 4, 32, 64),
        Progress("generator", "sample", 8, 8),
        Progress("generator", "learn", 8, 2),
        Progress("generator", "learn", 8, 6),
    ):
        ticker(progress)
    assert said == [
        "generator: 2 of 8 outputs written, the next 6 are at token 16 of at most 64  [0:15 < 0:19]",
        "generator: 8 of 8 outputs written  [0:40 < 0:00]",
        "generator: 2 of 8 rollouts learned from  [0:00 < 0:00]",
        "generator: 6 of 8 rollouts learned from  [0:30 < 0:10]",
    ]


def test_an_engine_tells_how_far_it_is(tmp_path: Path) -> None:
    told = list[Progress]()
    with short_loop("grpo", tmp_path / "run") as loop:
        loop.engine.watch = told.append
        loop.run_turn()
    sampled, learned = ([one for one in told if one.work == work] for work in ("sample", "learn"))
    assert all(one.done >= 0 and one.done + one.writing <= one.total and one.tokens <= one.limit for one in told)
    assert any(one.writing for one in sampled) and sampled[-1].done == sampled[-1].total
    assert learned[-1].done == learned[-1].total and {one.policy for one in told} == {"generator"}


def test_learning_is_told_over_all_steps_of_an_update(tmp_path: Path) -> None:
    """Two epochs of two minibatches: as many rows as have an advantage, twice, and never fewer than before."""
    told = list[Progress]()
    policies = {"generator": {"epochs": 2, "minibatches": 2}}
    with short_loop("grpo", tmp_path / "run", {"policies": policies}) as loop:
        loop.engine.watch = told.append
        loop.run_turn()
    learned = [one for one in told if one.work == "learn"]
    done = [one.done for one in learned]
    assert len(done) >= 4 and done == sorted(set(done)) and {one.total for one in learned} == {done[-1]}
    assert done[-1] % 2 == 0 and loop.rows[-1]["learn/generator/steps"] == 4


def test_a_run_without_evaluations_measures_nothing_and_can_be_measured_later(milonga: Command, tmp_path: Path) -> None:
    config, out = tmp_path / "config.toml", tmp_path / "run"
    config.write_text(to_toml({**TINY, "keep": {"rollouts_every": 1}, "sampling": {"max_tokens": 4}}))
    run = milonga("run", "grpo", "--turns", "1", "--config", config, "--no-eval", "--out", out, "--json")
    assert run.code == 0 and run.json["generator"]["accuracy"] == {"start": None, "end": None}
    assert "nothing was measured on held-out problems" in run.err
    assert "none: nothing is measured on held-out problems" in (out / "report.html").read_text(encoding="utf-8")
    rows = JsonLines(out / "metrics.jsonl").rows()
    assert len(rows) == 2 and not any(key.startswith("eval/") for row in rows for key in row)
    shown = milonga("show", out)
    assert shown.code == 0 and "the solution was cut at the limit of tokens" in shown.out
    measured = milonga("eval", out, "--split", "dev", "--problems", "2", "--json")
    assert measured.code == 0 and 0 <= measured.json["generator/accuracy"] <= 1
    refused = milonga("compare", "grpo", "tango", "--config", config, "--set", "eval.problems=0", "--dry-run")
    assert refused.code == 2 and "eval.problems is 0" in refused.err


def test_only_the_start_and_the_end_are_evaluated_if_none_are_between(tmp_path: Path) -> None:
    settings = {**TINY, "eval": TINY["eval"] | {"every": 0}}
    milonga.run("grpo", turns=3, out=tmp_path / "run", settings=settings, quiet=True)
    rows = JsonLines(tmp_path / "run" / "metrics.jsonl").rows()
    assert [ACCURACY in row for row in rows] == [True, False, False, True]
    said = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert "at the start and at the end on 4 dev problems" in said and "every 0 turns" not in said


def test_to_measure_is_refused_where_the_config_leaves_no_problems(milonga: Command, tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text(to_toml({**TINY, "eval": {"problems": 0}}))
    call = ("run", "grpo", "--config", config, "--dry-run", "--json")
    assert milonga(*call).json["config"]["eval"]["problems"] == 0
    refused = milonga(*call, "--eval")
    assert refused.code == 2 and "--eval: eval.problems is 0" in refused.err and "Traceback" not in refused.err
    assert milonga(*call, "--eval", "--set", "eval.problems=4").json["config"]["eval"]["problems"] == 4


def test_numbers_are_written_alike_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is not finite is no zero, and what is small is not nothing: in a line of a run as in its report."""
    found = [format_number(value) for value in (float("nan"), float("inf"), 0.0004, 1e-13, 0.25, 3, None)]
    assert found == ["nan", "inf", "4.0e-04", "0.000", "0.250", "3", "—"]
    screen = io.StringIO()
    monkeypatch.setattr("sys.stderr", screen)
    LiveView("title", 4).add({"turn": 1, ACCURACY: 0.25, "learn/generator/entropy": 0.0004})
    assert screen.getvalue().startswith("turn 1  held-out 0.250  entropy 4.0e-04")


def test_a_run_says_what_is_wrong_in_the_terminal_its_report_and_show_alike(milonga: Command, tmp_path: Path) -> None:
    """Solutions that are all cut: one cause, which comes first, in the same words everywhere."""
    out, config = tmp_path / "run", tmp_path / "config.toml"
    config.write_text(to_toml({**TINY, "sampling": {"max_tokens": 4}, "keep": {"rollouts_every": 1}}))
    run = milonga("run", "grpo", "--turns", "1", "--config", config, "--out", out, "--json")
    text = "100 % of the generator's outputs are cut at the limit of their length: --set sampling.max_tokens=8"
    assert run.err.count(f"health: truncated: {text}") == 2, "when it is seen, and at the end"
    first = run.json["health"][0]
    assert (first["badge"], f"{first['text']}: {first['help']}", first["severe"]) == ("truncated", text, True)
    shown = milonga("show", out, "--json")
    assert shown.json["health"][0] == first and f"health: truncated: {text}" in shown.err
    assert "solutions cannot be read: no answer line" in shown.err
    assert text in (out / "report.html").read_text().replace("&#x27;", "'").replace("&#39;", "'")
