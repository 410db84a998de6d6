"""The reward flow on each recipe's page is that of the recipe: the same nodes and edges as in a real run of it."""

from __future__ import annotations

import re
from pathlib import Path
from runpy import run_path

import pytest

from milonga.runfolder.flow import compute_reward_flow, to_mermaid
from milonga.systems.index import SYSTEMS
from short import SHORT, short_loop

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "src" / "milonga" / "systems"
FIRST = {system.page: system.name for system in reversed(SYSTEMS) if system.page}
"""Each page, with the recipe whose graph it has: the first of those that share it."""
PAGES = {name: (FOLDER / page).read_text(encoding="utf-8") for page, name in FIRST.items()}
SCRIPT = run_path(str(ROOT / "scripts" / "draw_flow.py"))
LONGER = {
    "absolute_zero": "in a short run no inputs for an induction may count",
    "asl": "a short run poses no problem that can be read",
    "self_rewarding": "a short run gives no points that can be read",
}
"""Recipes whose graph is drawn from the longer runs of their claim, and why: a short run shows a part of it."""
OTHERWISE = {"self_rewarding": {"options": {"judge": "self"}}, "cure": {"binding": "own"}}
"""Settings of the page, where they are not those of the short run: the recipe's own, or what the page says of its graph."""
PARTS = {"math_shepherd": "math_shepherd_rl", "tango_free": "tango_free_adversary"}
"""Pages of two recipes whose graph is that of the first: the second has these edges too, and more."""


def drawn(page: str) -> set[str]:
    """The lines of a page's graph, without the shares, which differ from run to run."""
    return lines(page.partition(SCRIPT["BEGIN"])[2].partition(SCRIPT["END"])[0].replace("```mermaid", "").replace("```", ""))


def lines(graph: str) -> set[str]:
    return {re.sub(r"\|[\d.]+\|", "", line).strip() for line in graph.splitlines()} - {""}


def real(recipe: str, folder: Path) -> set[str]:
    with short_loop(recipe, folder, OTHERWISE.get(recipe)) as loop:
        for _ in range(SHORT[recipe].turns):
            loop.run_turn()
    return lines(to_mermaid(compute_reward_flow(loop.rows)))


def test_every_page_is_in_the_catalogue_and_has_its_graph() -> None:
    assert {FOLDER / page for page in FIRST} == set(FOLDER.glob("*/*.md"))
    assert not [name for name, page in PAGES.items() if not drawn(page)]


@pytest.mark.parametrize("recipe", PAGES)
def test_the_graph_of_a_page_is_the_flow_of_a_real_run(recipe: str, tmp_path: Path) -> None:
    shown = drawn(PAGES[recipe])
    assert "graph LR" in shown and any("-->" in line for line in shown)
    found = real(recipe, tmp_path / "run")
    assert found <= shown if recipe in LONGER else found == shown
    if recipe in PARTS:
        assert real(PARTS[recipe], tmp_path / "more") > shown
