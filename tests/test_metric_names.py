"""The names of metrics are known before anything runs: a comparison refuses one that no arm will have."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from cases import TINY
from milonga.api import make_engine
from milonga.cli import main
from milonga.comparing.arms import list_metrics, plan_comparison
from milonga.context import RunContext
from milonga.errors import ConfigError
from milonga.loop import make_evaluator
from milonga.resolve import resolve
from milonga.systems.index import RECIPES
from short import SHORT

SMALL = {"asl": {"audit": 4}, "deepseek_math_v2": {"audit": 4}}
MEASURED = ("rlp", "aprm", "rstar_math", "score", "maporl", "mars", "marti", "search_self_play", "self_taught_evaluators")
MEASURED += ("sweet_rl", "cure", "absolute_zero", "self_play_swe", "tango_balanced")
SMALL |= {recipe: {"measured": 4} for recipe in MEASURED}


@pytest.mark.parametrize(("recipe", "greedy"), [*((recipe, True) for recipe in RECIPES), ("tango", False)])
def test_an_evaluation_gives_exactly_the_names_that_were_known_before(recipe: str, greedy: bool) -> None:
    more = {"eval": {"bench": 4 if greedy else 0, "greedy": greedy}, "options": SMALL.get(recipe, {})}
    plan = resolve([TINY, SHORT[recipe].settings, {"recipe": recipe}, more])
    run_context = RunContext(make_engine(plan), plan.task, plan.roles, plan.agents, plan.config.sampling, 0, 4)
    assert set(make_evaluator(plan, run_context)()) == list_metrics(plan)


def test_a_misspelt_metric_is_refused_before_anything_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    command = ["milonga", "compare", "tango", "grpo", "--metric", "verifier/f2", "--out", str(out)]
    monkeypatch.setattr(sys, "argv", command)
    with pytest.raises(SystemExit) as end:
        main()
    said = capsys.readouterr().err
    assert end.value.code == 2 and not out.exists()
    assert said == "milonga: no arm measures 'eval/verifier/f2': did you mean 'eval/verifier/f1'?\n"


def test_one_arm_that_measures_it_is_enough() -> None:
    assert plan_comparison(["prime", "grpo"], metric="verifier/step_auroc").metric == "eval/verifier/step_auroc"
    with pytest.raises(ConfigError, match="step_auroc"):
        plan_comparison(["tango", "grpo"], metric="verifier/step_auroc")


def test_what_is_not_asked_for_is_not_measured() -> None:
    """Greedy solutions and the bench cost time, and can be switched off: then nothing can be compared by them."""
    off = [{"eval": {"greedy": False, "bench": 0}}]
    for metric in ("generator/greedy_accuracy", "verifier/greedy_f1"):
        assert plan_comparison(["tango", "grpo"], metric=metric)
        with pytest.raises(ConfigError, match="no arm measures"):
            plan_comparison(["tango", "grpo"], metric=metric, settings=off)
