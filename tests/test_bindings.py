"""Every recipe with every binding it declares: whoever learns moves, and nobody else; under adapters the base stays still."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from cases import TINY
from milonga.api import make_engine
from milonga.engine.local import LocalEngine
from milonga.loop import Loop
from milonga.recipes import RECIPES
from milonga.resolve import resolve
from milonga.run.console import LiveView
from milonga.run.folder import RunFolder

torch.set_num_threads(1)


@dataclass(frozen=True)
class Short:
    """So few turns of a recipe that every seat that learns has learned, and which seats these are."""

    turns: int
    learners: tuple[str, ...]
    options: dict[str, Any] = field(default_factory=dict)
    state: dict[str, Any] = field(default_factory=dict)
    """What earlier turns would have left to these."""


GENERATOR, VERIFIER = ("generator",), ("verifier",)
BOTH = (*GENERATOR, *VERIFIER)
SHORT: dict[str, Short] = {
    "tango": Short(2, BOTH, {"warmup": 0, "n_generator": 1}),
    "grpo": Short(1, GENERATOR),
    "frozen": Short(1, GENERATOR),
    "oracle": Short(1, GENERATOR),
    "verifier_only": Short(1, VERIFIER),
    "prime": Short(1, BOTH, {"accuracy_low": 0.0, "accuracy_high": 1.0}),
    "genrm": Short(1, VERIFIER, {"rationales": 1}),
    "lets_verify": Short(1, VERIFIER),
    "math_shepherd": Short(1, VERIFIER, {"completions": 1}),
    "math_shepherd_rl": Short(2, BOTH, {"completions": 1, "warmup": 1}),
    "qwen_prm": Short(1, VERIFIER, {"completions": 1}),
    "gar": Short(2, BOTH, {"sft": 1, "sft_slices": 8, "disc_group": 2}),
    "apo": Short(2, BOTH, {"rm_turns": 1, "llm_turns": 1}),
    "aprm": Short(3, ("corruptor", "verifier"), {"sft": 1, "sft_steps": 8, "warmup": 1, "measured": 4}),
    "rlp": Short(2, GENERATOR, {"format_turns": 1, "format_lines": 8, "measured": 4}),
    # To pose problems that can be read takes longer to learn than a test may: the judge learns from what is remembered.
    "asl": Short(
        4,
        ("proposer", *BOTH),
        {"formats": 1, "n_proposer": 1, "n_verifier": 1, "n_generator": 1, "attempts": 2, "self_checks": 1, "audit": 4},
        {
            "pairs": [
                ["3+4*5%100", "35", "earlier", work, work.endswith("#35")]
                for work in ("3+4=7\n7*5=35\n#35", "3+4=8\n8*5=40\n#40")
            ]
        },
    ),
    "deepseek_math_v2": Short(
        5,
        (*BOTH, "meta_verifier"),
        {"formats": 1, "n_score": 1, "n_quality": 1, "n_verifier": 1, "n_generator": 1, "audit": 4},
    ),
}
DECLARED = [(name, binding) for name in RECIPES for binding, why in RECIPES.get(name).bindings.items() if not why]


def test_every_recipe_is_short() -> None:
    assert set(SHORT) == set(RECIPES)


@pytest.mark.parametrize(("recipe", "binding"), DECLARED)
def test_with_every_binding_those_who_learn_move_and_nobody_else(recipe: str, binding: str, tmp_path: Path) -> None:
    if binding == "lora":
        pytest.importorskip("peft")
    short = SHORT[recipe]
    plan = resolve([TINY, {"recipe": recipe, "binding": binding, "turns": 100, "options": short.options}])
    plan.recipe.state |= deepcopy(short.state)
    engine = make_engine(plan)
    base, start = bases(engine), {name: engine.policy(name).clone() for name in plan.policies}
    with RunFolder(tmp_path, 1) as folder, LiveView("", None, quiet=True) as view:
        loop = Loop(plan, engine, folder, view)
        for _ in range(short.turns):
            loop.turn()
    learners = {plan.seats[seat] for seat in short.learners}
    # Copies from another policy move weights too: who learns is seen from the steps.
    assert {policy for policy in plan.policies if any(row.get(f"learn/{policy}/steps") for row in loop.rows)} == learners
    assert {policy for policy in plan.policies if differ(engine.policy(policy).clone(), start[policy])} == learners
    assert bool(base) == (binding == "lora") and not differ(bases(engine), base)


def bases(engine: LocalEngine) -> list[torch.Tensor]:
    """The weights that adapters share."""
    named = [pair for base in engine.bases.values() for pair in base.named_parameters()]
    return [tensor.detach().clone() for name, tensor in named if "lora_" not in name]


def differ(left: list[torch.Tensor], right: list[torch.Tensor]) -> bool:
    return any(not torch.equal(a, b) for a, b in zip(left, right, strict=True))
