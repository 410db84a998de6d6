"""The docs: they build without a warning, work offline, and say something of every key and every command."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
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
from milonga.objectives import ObjectiveSection
from milonga.systems.index import RECIPES
from milonga.tasks import TASKS

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *(ROOT / "benchmarks").glob("*.md"), *sorted((ROOT / "docs").rglob("*.md"))]
NEIGHBOURS = ("scripts", "examples", "benchmarks", "tests")
"""What pages of the docs link to outside of them."""
GROUP: Any = get_command(app)
field_docs = run_path(str(ROOT / "scripts" / "make_reference.py"))["field_docs"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_between_pages_resolve(page: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if not re.match(r"https?://|#", link):
            assert (page.parent / unquote(link.partition("#")[0])).exists(), f"{page.name}: {link}"


def build(place: Path, builder: str) -> subprocess.CompletedProcess[str]:
    """As `make docs` does it."""
    command = ["-m", "sphinx", "--quiet", "--fail-on-warning", "--builder", builder, "docs", f"out/{builder}"]
    return subprocess.run([sys.executable, *command], cwd=place, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the docs, with its reference written and its site built."""
    place = tmp_path_factory.mktemp("site")
    shutil.copytree(ROOT / "docs", place / "docs", ignore=shutil.ignore_patterns("_build", "reference"))
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
def test_the_site_can_be_searched(site: Path) -> None:
    index = (site / "out" / "html" / "searchindex.js").read_text(encoding="utf-8")
    assert all(page in index for page in ("quickstart", "reference/config", "reference/milonga-run")) and "tango" in index


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
    meanings = field_docs(model)
    for name, field in model.model_fields.items():
        if not meanings.get(name):
            yield f"{model.__name__}.{name}"
        section = find_section(field.annotation)
        if section is not None:
            yield from undescribed(section)


def test_every_key_is_described() -> None:
    models = [Config, ObjectiveSection, *(RECIPES.get(n).Options for n in RECIPES), *(TASKS.get(n).Options for n in TASKS)]
    assert [key for model in models for key in undescribed(model)] == []
