"""Every recipe with every binding it declares: whoever learns moves, and nobody else; under adapters the base stays still."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from cases import CASES, TINY
from milonga.api import preview_learning
from milonga.engine.local import LocalEngine
from milonga.errors import ConfigError
from milonga.recipe import ALLOWED
from milonga.resolve import resolve
from milonga.systems.index import RECIPES
from short import SHORT, short_loop

torch.set_num_threads(1)
DECLARED = [(name, binding) for name in RECIPES for binding, may in RECIPES.get(name).bindings.items() if may == ALLOWED]


def test_every_recipe_is_short() -> None:
    assert set(SHORT) == set(RECIPES)


@pytest.mark.parametrize("recipe", list(RECIPES))
def test_who_learns_is_known_before_a_run(recipe: str) -> None:
    """With so many turns, and where compute is the budget: a dry run says the rates of those who move, and no others."""
    short, case = SHORT[recipe], CASES[recipe]
    layers = [TINY, {"options": short.options, "turns": short.turns}, short.settings, {"recipe": recipe}]
    for budget in ({}, {"budget": {"tokens": 1e6}}):
        plan = resolve([*layers, budget])
        learners = {plan.agents[agent] for agent in short.learners}
        assert {line.partition(":")[0] for line in preview_learning(plan) if "learning rate" in line} == learners
    assert set(resolve([case.settings, {"recipe": recipe, "turns": case.turns}]).list_learning_policies()) == case.learners


@pytest.mark.parametrize(
    ("recipe", "options", "learners"),
    [
        ("prime", {"prm_update": "none"}, {"generator"}),
        ("prime", {"prm_update": "none", "prm_warmup": 2}, {"generator", "verifier"}),
        ("mars", {"train": "planner", "formats": 0}, {"generator"}),
        ("mars", {"train": "reader", "formats": 0}, {"reader"}),
        ("mars", {"train": "reader", "formats": 2}, {"generator", "reader"}),
        ("search_self_play", {"train": "solver"}, {"generator"}),
        ("search_self_play", {"train": "proposer"}, {"proposer"}),
    ],
)
def test_who_is_left_as_it_was_is_known_before_a_run(recipe: str, options: dict[str, Any], learners: set[str]) -> None:
    plan = resolve([{"recipe": recipe, "binding": "own", "options": options}])
    assert set(plan.list_learning_policies()) == learners


@pytest.mark.parametrize(("recipe", "binding"), DECLARED)
def test_with_every_binding_those_who_learn_move_and_nobody_else(recipe: str, binding: str, tmp_path: Path) -> None:
    if binding == "lora":
        pytest.importorskip("peft")
    with short_loop(recipe, tmp_path, {"binding": binding}) as loop:
        engine, policies = loop.engine, loop.plan.policies
        assert isinstance(engine, LocalEngine)
        base, start = bases(engine), {name: engine.policy(name).clone() for name in policies}
        for _ in range(SHORT[recipe].turns):
            loop.run_turn()
    learners = {loop.plan.agents[agent] for agent in SHORT[recipe].learners}
    # Copies from another policy move weights too: who learns is seen from the steps.
    assert {name for name in policies if any(row.get(f"learn/{name}/steps") for row in loop.rows)} == learners
    assert {name for name in policies if differ(engine.policy(name).clone(), start[name])} == learners
    assert bool(base) == (binding == "lora") and not differ(bases(engine), base)


def bases(engine: LocalEngine) -> list[torch.Tensor]:
    """The weights that adapters share."""
    named = [pair for base in engine.bases.values() for pair in base.named_parameters()]
    return [tensor.detach().clone() for name, tensor in named if "lora_" not in name]


def differ(left: list[torch.Tensor], right: list[torch.Tensor]) -> bool:
    return any(not torch.equal(a, b) for a, b in zip(left, right, strict=True))


ELSEWHERE = {"aprm": {"sft": 0, "warmup": 0, "held_out": []}, "deepseek_math_v2": {"formats": 0}}
"""What a teacher of `chain` alone gives to embedded models, and a recipe does without on other tasks."""


@pytest.mark.parametrize("recipe", sorted(SHORT))
def test_a_recipe_runs_on_another_task_or_refuses_it(recipe: str, tmp_path: Path) -> None:
    other: dict[str, Any] = {"task": {"name": "last_letter"}}
    if recipe in ELSEWHERE:
        with pytest.raises(ConfigError, match="last_letter"):
            resolve([TINY, {"recipe": recipe}, other])
        other["options"] = ELSEWHERE[recipe]
    if known := RECIPES.get(recipe).tasks:
        with pytest.raises(ConfigError, match=f"works only with the tasks {', '.join(known)}, not with 'last_letter'"):
            resolve([TINY, {"recipe": recipe}, other])
        return
    with short_loop(recipe, tmp_path / "run", other) as loop:
        loop.run_turn()
        assert loop.rows and loop.rows[0]["turn"] == 1
