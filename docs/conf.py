"""How `make docs` builds the site and the man pages.

Pages under reference/ are written by scripts/make_reference.py. Pages that live beside the code (the README of each system,
CONTRIBUTING, CHANGELOG, benchmarks) are copied into systems/ and project/ here, and links are changed to fit: in the sources
every link is a path in the repository, on the site it leads to the copy.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

from pygments.lexers.special import TextLexer
from sphinx.application import Sphinx
from sphinx.highlighting import lexers

import milonga

project = "Milonga"
version = release = milonga.__version__
extensions = ["myst_parser"]
myst_enable_extensions = ["deflist"]
myst_heading_anchors = 3
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = "Milonga"
html_show_copyright = False
html_show_sphinx = False
html_copy_source = False

DOCS = Path(__file__).parent
ROOT = DOCS.parent
REFERENCE = DOCS / "reference"


def find_pages() -> dict[str, str]:
    """Map pages outside of docs/ (paths in the repository) to their names on the site."""
    beside = {"CONTRIBUTING.md": "contributing", "CHANGELOG.md": "changelog", "benchmarks/README.md": "benchmarks"}
    pages = {page: f"project/{name}" for page, name in beside.items() if (ROOT / page).is_file()}
    for page in sorted((ROOT / "src/milonga/systems").glob("*/*.md")):
        name = page.parent.name if page.stem == "README" else f"{page.parent.name}_{page.stem}"
        pages[str(page.relative_to(ROOT))] = f"systems/{name}"
    return pages


PAGES = find_pages()


def relink(text: str, source: str, name: str) -> str:
    """Change the links of a page so that they lead from its name on the site to where their targets are.

    `source` is the page's path in the repository. A target that is no page (a script, say) is offered as a download.
    """
    here = os.path.dirname(f"docs/{name}")

    def change(found: re.Match[str]) -> str:
        target = os.path.normpath(os.path.join(os.path.dirname(source), found[1]))
        if re.match(r"\w+:", found[1]) or not (ROOT / target).exists():
            return found[0]
        place = f"docs/{PAGES[target]}.md" if target in PAGES else target
        return f"]({os.path.relpath(place, here)}{found[2]})"

    return re.sub(r"\]\(([^)\s#]+)(#[^)\s]*|)\)", change, text)


def copy_pages() -> None:
    for folder in ("systems", "project"):
        shutil.rmtree(DOCS / folder, ignore_errors=True)
    for source, name in PAGES.items():
        copy = DOCS / f"{name}.md"
        copy.parent.mkdir(exist_ok=True)
        copy.write_text(relink((ROOT / source).read_text(encoding="utf-8"), source, name), encoding="utf-8")


copy_pages()


def relink_own_page(app: Sphinx, name: str, text: list[str]) -> None:
    """Change the links of pages of docs/ that lead to pages outside of it."""
    if name not in PAGES.values():
        text[0] = relink(text[0], f"docs/{name}.md", name)


def setup(app: Sphinx) -> None:
    app.connect("source-read", relink_own_page)


def man_page(page: Path) -> tuple[str, str, str, str, int]:
    """Source, name, what it does (the first line of its description), authors, section."""
    described = page.read_text(encoding="utf-8").partition("## Description\n\n")[2]
    return f"reference/{page.stem}", page.stem, described.partition("\n")[0].rstrip("."), "", 1


man_pages = [man_page(page) for page in sorted(REFERENCE.glob("milonga*.md"))]
man_show_urls = False

# Diagrams are shown as their source: drawing them would load a script from the net.
lexers["mermaid"] = TextLexer()
