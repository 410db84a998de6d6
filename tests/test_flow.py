"""The reward flow on each recipe's page is that of the recipe: the same nodes and edges as in a real run of it."""

from __future__ import annotations

import re
from pathlib import Path
from runpy import run_path

import pytest

from milonga.recipes import RECIPES
from milonga.run.flow import flow_of, mermaid
from short import SHORT, short_loop

ROOT = Path(__file__).parent.parent
PAGES = {path.stem: path.read_text() for path in sorted((ROOT / "docs" / "recipes").glob("*.md"))}
SCRIPT = run_path(str(ROOT / "scripts" / "draw_flow.py"))
NOT_YET = {
    "genrm": "drawn from the runs of its claim, which are not there yet",
    "asl": "drawn from the runs of its claim, which are not there yet: a short run poses no problem that can be read",
    "deepseek_math_v2": "drawn from the runs of its claim, which are not there yet: short runs only touch its phases",
}
PARTS = {"math_shepherd": "math_shepherd_rl"}
"""Pages of two recipes whose graph is that of the first: the second has these edges too, and more."""


def drawn(page: str) -> set[str]:
    """The lines of a page's graph, without the shares, which differ from run to run."""
    return lines(page.partition(SCRIPT["BEGIN"])[2].partition(SCRIPT["END"])[0].replace("```mermaid", "").replace("```", ""))


def lines(graph: str) -> set[str]:
    return {re.sub(r"\|[\d.]+\|", "", line).strip() for line in graph.splitlines()} - {""}


def real(recipe: str, folder: Path) -> set[str]:
    with short_loop(recipe, folder) as loop:
        for _ in range(SHORT[recipe].turns):
            loop.turn()
    return lines(mermaid(flow_of(loop.rows)))


def test_every_page_is_of_a_recipe_and_has_its_graph_unless_it_says_why_not() -> None:
    assert set(PAGES) <= set(RECIPES)
    assert {name for name, page in PAGES.items() if not drawn(page)} == set(NOT_YET)


@pytest.mark.parametrize("recipe", [name for name in PAGES if name not in NOT_YET])
def test_the_graph_of_a_page_is_the_flow_of_a_real_run(recipe: str, tmp_path: Path) -> None:
    shown = drawn(PAGES[recipe])
    assert "graph LR" in shown and any("-->" in line for line in shown)
    assert real(recipe, tmp_path / "run") == shown
    if recipe in PARTS:
        assert real(PARTS[recipe], tmp_path / "more") > shown
