"""How `make docs` builds the site and the man pages. Those under reference/ are written by scripts/make_reference.py."""

from __future__ import annotations

from pathlib import Path

from pygments.lexers.special import TextLexer
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

REFERENCE = Path(__file__).parent / "reference"


def man_page(page: Path) -> tuple[str, str, str, str, int]:
    """Source, name, what it does (the first line of its description), authors, section."""
    described = page.read_text(encoding="utf-8").partition("## Description\n\n")[2]
    return f"reference/{page.stem}", page.stem, described.partition("\n")[0].rstrip("."), "", 1


man_pages = [man_page(page) for page in sorted(REFERENCE.glob("milonga*.md"))]
man_show_urls = False

# Diagrams are shown as their source: drawing them would load a script from the net.
lexers["mermaid"] = TextLexer()
