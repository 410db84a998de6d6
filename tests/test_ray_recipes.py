"""Recipes run on the engine `ray` unchanged: those that ask different things of an engine, each for its shortest run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray")
pytest.importorskip("peft")


from milonga.runfolder.files import JsonLines
from ray_helpers import one_cluster
from short import SHORT, short_loop

RECIPES = {
    "prime": 0,  # a judge read by its log-ratio to its start
    "math_shepherd_rl": 0,  # a judge with a value head, which also learns
    "asl": 1,  # samplers, which are asked for a snapshot
}
"""With so many samplers for each policy."""


@pytest.fixture(scope="module", autouse=True)
def joined() -> Iterator[None]:
    with one_cluster():
        yield


def rows(recipe: str, folder: Path, settings: dict[str, Any]) -> list[dict[str, Any]]:
    with short_loop(recipe, folder, settings) as loop:
        try:
            for _ in range(SHORT[recipe].turns):
                loop.run_turn()
        finally:
            loop.engine.close()
    return JsonLines(folder / "metrics.jsonl").rows()


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_does_there_what_it_does_here(recipe: str, tmp_path: Path) -> None:
    """The same numbers, to the last bit: what was sampled, credited, learned and used."""
    placement = {"cpus": 0.1, "samplers": RECIPES[recipe]}
    found = rows(recipe, tmp_path / "ray", {"engine": "ray", "placement": placement})
    assert found == rows(recipe, tmp_path / "local", {}) and len(found) == SHORT[recipe].turns
