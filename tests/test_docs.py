"""The docs: they build without a warning, work offline, and say something of every key and every command."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from runpy import run_path
from typing import Any
from urllib.parse import unquote

import pytest
from pydantic import BaseModel
from typer.main import get_command

from milonga.cli.app import app
from milonga.config import Config, find_section
from milonga.interrupts import SIGNALS, Interrupted, get_exit_code
from milonga.objectives import ObjectiveSection
from milonga.systems.index import RECIPES
from milonga.tasks import TASKS

ROOT = Path(__file__).parents[1]
MADE = ("_build", "reference", "systems", "project")
"""Folders of docs/ that are made when the site is built."""
PAGES = sorted(
    page
    for pattern in ("*.md", "benchmarks/*.md", "docs/**/*.md", "src/milonga/systems/*/*.md")
    for page in ROOT.glob(pattern)
    if page.relative_to(ROOT).parts[:2] not in [("docs", name) for name in MADE]
)
NEIGHBOURS = ("scripts", "examples", "benchmarks", "tests", "src", "README.md", "CONTRIBUTING.md", "CHANGELOG.md")
"""What pages of the docs link to, or are copied from, outside of them."""
CATALOGUE = run_path(str(ROOT / "scripts" / "make_catalogue.py"))
GROUP: Any = get_command(app)
REFERENCE = run_path(str(ROOT / "scripts" / "make_reference.py"))
read_field_docs = REFERENCE["read_field_docs"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_between_pages_resolve(page: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if not re.match(r"https?://|#", link):
            assert (page.parent / unquote(link.partition("#")[0])).exists(), f"{page.name}: {link}"


def test_generated_parts_are_up_to_date() -> None:
    stale = [str(page.relative_to(ROOT)) for page, _ in CATALOGUE["find_stale"]()]
    assert not stale, "run scripts/make_catalogue.py"


def test_costs_that_were_not_measured_are_explained() -> None:
    page = (ROOT / "docs" / "choosing.md").read_text(encoding="utf-8")
    (why,) = re.findall(r"^\*Not measured\*: (.*)$", page, re.MULTILINE)
    assert set(re.findall(r"`(\w+)`", why)) == set(re.findall(r"^\| \[`(\w+)`\].*\| not measured \|", page, re.MULTILINE))


def test_the_exit_codes_of_all_signals_are_listed() -> None:
    listed = {int(code) for code in re.findall(r"^\d+$", REFERENCE["EXIT"], re.MULTILINE)}
    assert listed == {0, 1, 2} | {get_exit_code(Interrupted(number)) for number in SIGNALS}


def test_the_readme_has_every_system_and_quotes_tango_as_it_is() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    table = text.partition("<!-- catalogue -->")[2].partition("<!-- end -->")[0]
    assert re.findall(r"^\| \[`(\w+)`\]", table, re.MULTILINE) == [system.name for system in CATALOGUE["SYSTEMS"]]
    (quoted,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    source = (ROOT / "src" / "milonga" / "systems" / "tango" / "recipe.py").read_text(encoding="utf-8")
    assert textwrap.indent(quoted, "    ") in source and {"def rollout", "def credit"} <= set(re.findall(r"def \w+", quoted))


def test_the_readme_is_short() -> None:
    """About 600 words, without code and the catalogue."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    text = re.sub(r"<!-- catalogue -->.*?<!-- end -->|```.*?```", "", text, flags=re.DOTALL)
    assert len(re.findall(r"[^\W\d_]{2,}", re.sub(r"\]\([^)]*\)", "]", text))) <= 650


def build(place: Path, builder: str) -> subprocess.CompletedProcess[str]:
    """As `make docs` does it."""
    command = ["-m", "sphinx", "--quiet", "--fail-on-warning", "--builder", builder, "docs", f"out/{builder}"]
    return subprocess.run([sys.executable, *command], cwd=place, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the docs, with its reference written and its site built."""
    place = tmp_path_factory.mktemp("site")
    shutil.copytree(ROOT / "docs", place / "docs", ignore=shutil.ignore_patterns(*MADE))
    for name in NEIGHBOURS:
        (place / name).symlink_to(ROOT / name)
    subprocess.run([sys.executable, str(ROOT / "scripts" / "make_reference.py"), "docs/reference"], cwd=place, check=True)
    done = build(place, "html")
    assert done.returncode == 0 and done.stderr == "", done.stderr
    return place


def html(site: Path) -> Iterator[tuple[Path, str]]:
    for page in (site / "out" / "html").rglob("*.html"):
        yield page, page.read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_site_has_no_broken_link_and_needs_no_net(site: Path) -> None:
    for page, text in html(site):
        for link in re.findall(r'(?:href|src)="([^"]*)"', text):
            if not re.match(r"https?:|#|data:", link):
                target = page.parent / unquote(re.split(r"[#?]", link)[0])
                assert target.is_file(), f"{page.name}: {link}"
        assets = re.findall(r'<(?:script|img)[^>]*src="([^"]*)"|<link[^>]*rel="stylesheet"[^>]*href="([^"]*)"', text)
        assert not [asset for pair in assets for asset in pair if asset.startswith(("http", "//"))]
    for sheet in (site / "out" / "html" / "_static").rglob("*.css"):
        assert not re.search(r"url\(\s*[\"']?(?:https?:)?//|@import", sheet.read_text(encoding="utf-8")), sheet.name


@pytest.mark.slow
def test_every_page_is_two_clicks_from_the_first(site: Path) -> None:
    """By what stands in the pages themselves, not in the sidebar."""
    root = site / "out" / "html"
    found, last = {root / "index.html"}, {root / "index.html"}
    for _ in range(2):
        last = {target for page in last for target in linked(page)} - found
        found |= last
    pages = {page for page in root.rglob("*.html") if page.name not in ("genindex.html", "search.html")}
    assert {str(page.relative_to(root)) for page in pages - found} == set()


def linked(page: Path) -> Iterator[Path]:
    """The pages that the body of a page links to."""
    body = re.search(r"<article.*?</article>", page.read_text(encoding="utf-8"), re.DOTALL)
    for link in re.findall(r'href="([^"#?]+\.html)', body[0] if body else ""):
        if not link.startswith("http"):
            yield (page.parent / unquote(link)).resolve()


@pytest.mark.slow
def test_the_site_can_be_searched(site: Path) -> None:
    index = (site / "out" / "html" / "searchindex.js").read_text(encoding="utf-8")
    assert "tango" in index
    assert all(page in index for page in ("quickstart", "reference/config", "reference/milonga-run", "systems/prime"))


@pytest.mark.slow
def test_every_command_has_a_man_page(site: Path) -> None:
    done = build(site, "man")
    assert done.returncode == 0 and done.stderr == "", done.stderr
    pages = {page.stem: page for page in (site / "out" / "man").glob("*.1")}
    assert set(pages) == {"milonga", *(f"milonga-{name}" for name in GROUP.commands)}
    for name, page in pages.items():
        text = page.read_text(encoding="utf-8")
        sections = re.findall(r"^\.SH \"?(.*?)\"?$", text, re.MULTILINE)
        assert [s.upper() for s in sections[:3]] == ["NAME", "SYNOPSIS", "DESCRIPTION"], name
        assert {s.upper() for s in sections} >= {"EXAMPLES", "FILES", "EXIT STATUS"}, name
        if shutil.which("groff"):
            command = ["groff", "-man", "-Tutf8", "-ww", str(page)]
            groff = subprocess.run(command, capture_output=True, text=True, check=False)
            assert groff.returncode == 0 and groff.stderr == "", groff.stderr


@pytest.mark.slow
def test_a_broken_link_fails_the_build(site: Path, tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    for name in ("conf.py", "metrics.md"):
        shutil.copy(site / "docs" / name, tmp_path / "docs")
    (tmp_path / "docs" / "index.md").write_text("# Here\n\n[there](metrics.md) [nowhere](none.md)\n")
    done = build(tmp_path, "html")
    assert done.returncode != 0 and "none.md" in done.stderr


def undescribed(model: type[BaseModel]) -> Iterator[str]:
    """The keys of a model, and of the tables within it, that nobody has described."""
    meanings = read_field_docs(model)
    for name, field in model.model_fields.items():
        if not meanings.get(name):
            yield f"{model.__name__}.{name}"
        section = find_section(field.annotation)
        if section is not None:
            yield from undescribed(section)


def test_every_key_is_described() -> None:
    models = [Config, ObjectiveSection, *(RECIPES.get(n).Options for n in RECIPES), *(TASKS.get(n).Options for n in TASKS)]
    assert [key for model in models for key in undescribed(model)] == []
