"""The pages of the systems: one skeleton, links that resolve, and names of code and options that exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from milonga.systems.index import RECIPES, SYSTEMS
from milonga.systems.tango.recipe import TangoOptions

PACKAGE = Path(__file__).parents[1] / "src" / "milonga"
PAGES = {page: [s.name for s in SYSTEMS if s.page == page] for page in sorted({s.page for s in SYSTEMS} - {""})}
SKELETON = ("Algorithm", "Differences from", "Options", "How to run", "What was found", "Reward flow", "Files to read")
TREES = [ast.parse(file.read_text(encoding="utf-8")) for file in PACKAGE.rglob("*.py")]
CLASSES: dict[str, set[str]] = {}
for node in (node for tree in TREES for node in tree.body if isinstance(node, ast.ClassDef)):
    CLASSES.setdefault(node.name, set()).update(part.name for part in node.body if isinstance(part, ast.FunctionDef))


def read_page(page: str) -> str:
    return (PACKAGE / "systems" / page).read_text(encoding="utf-8")


def get_section(text: str, title: str) -> str:
    return text.partition(f"\n## {title}")[2].partition("\n## ")[0]


@pytest.mark.parametrize("page", PAGES)
def test_a_page_has_the_skeleton(page: str) -> None:
    titles = re.findall(r"^## (.*)$", read_page(page), re.MULTILINE)
    found = [part for title in titles for part in SKELETON if title.startswith(part)]
    assert found == list(SKELETON)


@pytest.mark.parametrize("page", PAGES)
def test_links_resolve(page: str) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", read_page(page)):
        if not link.startswith(("http", "#")):
            assert (PACKAGE / "systems" / page).parent.joinpath(link.partition("#")[0]).exists(), link


@pytest.mark.parametrize("page", PAGES)
def test_methods_that_are_named_exist(page: str) -> None:
    for name, method in re.findall(r"`([A-Z]\w+)\.([a-z_]\w*)`", read_page(page)):
        assert method in CLASSES.get(name, ()), f"{name}.{method}"


@pytest.mark.parametrize("page", PAGES)
def test_every_option_of_its_own_is_in_the_table(page: str) -> None:
    """What a recipe inherits from Tango is on Tango's page."""
    text = get_section(read_page(page), "Options") + get_section(read_page(page), "Algorithm")
    listed = set(re.findall(r"`(\w+)`", text.replace("`lambda1` … `lambda4`", "`lambda1` `lambda2` `lambda3` `lambda4`")))
    for recipe in PAGES[page]:
        options = RECIPES.get(recipe).Options
        inherited = set(TangoOptions.model_fields) if issubclass(options, TangoOptions) and page != "tango/README.md" else set()
        assert set(options.model_fields) - inherited <= listed, recipe
