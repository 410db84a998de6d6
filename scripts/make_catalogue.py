"""Fill the generated parts of README.md and the docs: the catalogue of systems, quoted code, the map of layers.

    python scripts/make_catalogue.py            # writes; with --check it only says which pages are out of date

A generated part stands between two comments. The first one says what it is made from:

    <!-- catalogue -->                           systems/index.py and docs/claims/*.json
    <!-- choices: SYSTEM... -->                  the same of these systems, what each needs, and kept results (`find_cost`)
    <!-- code: SYSTEM METHOD... -->              the class of a system's recipe, or these methods of it, as they stand there
    <!-- layers -->                              the import contract in pyproject.toml
    <!-- end -->

Invariant: what stands between the comments follows from the sources alone, so that a test can compare the two.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import re
import sys
import textwrap
import tomllib
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

from milonga.systems.index import CLAIMS, RECIPES, SYSTEMS, System

ROOT = Path(__file__).parent.parent
PAGES = ("README.md", "docs/systems.md", "docs/choosing.md", "docs/concepts.md", "docs/writing-a-recipe.md")
FIRST, SECOND = "docs/results/real/h200.json", "docs/results/real/h200-2.json"
"""The two series on real data; `grpo` made turns in the first alone."""
MARKED = (
    "† Seconds of the second series, in which `grpo` was cut off, beside those of `grpo` in the first: of the systems that ran "
    "in both, a turn took from {low:.1f} to {high:.1f} times as long in the second."
)
PART = re.compile(r"(<!-- (catalogue|choices|code|layers)(?:: ([^>]*?))? -->\n).*?(<!-- end -->)", re.DOTALL)


def make_catalogue(page: Path) -> str:
    """Return the table of all systems, with links as they must be on this page."""
    rows = ["| system | paper | what it does | its claim |", "|---|---|---|---|"]
    for family, systems in groupby(SYSTEMS, key=lambda system: system.family):
        rows.append(f"| **{family}** | | | |")
        rows += [make_row(system, page) for system in systems]
    return "\n".join(rows)


def make_choices(page: Path, names: list[str]) -> str:
    """Return what choosing among these systems needs: the truth each wants, its cost, its claim and the verdict on that."""
    rows = ["| system | truth that it needs | a turn, beside `grpo`'s | its claim | verdict |", "|---|---|---|---|---|"]
    for system in (find_system(name) for name in names):
        says = CLAIMS.get(system.name).says if system.claim else "—"
        cells = (link_page(system, page), RECIPES.get(system.name).truth, find_cost(system.name), says, find_verdict(system))
        rows.append(f"| {' | '.join(cells)} |")
    low, high = find_spread()
    return "\n".join([*rows, "", MARKED.format(low=low, high=high)])


def find_system(name: str) -> System:
    (system,) = (each for each in SYSTEMS if each.name == name)
    return system


def find_cost(name: str) -> str:
    """Return what a turn of a system was measured to cost beside one of GRPO; "not measured" where nothing kept says so.

    FLOPs are those of whole runs of a comparison in which both had as many turns of the generator. Where there is none, the
    seconds of a turn are taken, on the data on which GRPO's were: of the first series, or else marked of the second.
    """
    kept = read_json("docs/results/tango/easy.json")["arms"]
    claim = ROOT / "docs" / "claims" / f"{name}.json"
    for flops in (kept, read_json(f"docs/claims/{name}.json")["compute"] if claim.exists() else {}):
        if name in flops and "grpo" in flops:
            return f"{flops[name]['flops'] / flops['grpo']['flops']:.1f} × FLOPs"
    grpo = read_series(FIRST)["grpo"]
    for series, mark in ((FIRST, ""), (SECOND, " †")):
        run = read_series(series).get(name)
        if run is not None and run["task"] == grpo["task"]:
            return f"{run['seconds'] / grpo['seconds']:.1f} × seconds{mark}"
    return "not measured"


def find_spread() -> tuple[float, float]:
    """Find how many times as long as in the first series a turn took in the second: the least and the most of all systems."""
    first, second = read_series(FIRST), read_series(SECOND)
    ratios = [second[name]["seconds"] / first[name]["seconds"] for name in first.keys() & second.keys()]
    return min(ratios), max(ratios)


def read_series(file: str) -> dict[str, Any]:
    """Read the runs of a series on real data that made a turn, by system."""
    return {run["recipe"]: run for run in read_json(file) if run["seconds"]}


def read_json(path: str) -> Any:
    return json.loads((ROOT / path).read_text(encoding="utf-8"))


def make_row(system: System, page: Path) -> str:
    return f"| {link_page(system, page)} | {link_paper(system.paper)} | {system.line} | {find_verdict(system)} |"


def link_page(system: System, page: Path) -> str:
    """Return a system's name as a link from a page to the system's own."""
    place = ROOT / "src/milonga/systems" / (system.page or system.recipe.partition(":")[0].replace(".", "/") + ".py")
    return f"[`{system.name}`]({os.path.relpath(place, page.parent)})"


def link_paper(paper: str) -> str:
    """Return a link to where a system was published; "ours" where it was not."""
    place, _, number = paper.partition(" ")
    address = {"arXiv": f"https://arxiv.org/abs/{number}", "OpenReview": f"https://openreview.net/forum?id={number}"}
    return f"[{paper}]({address[place]})" if paper else "ours"


def find_verdict(system: System) -> str:
    """Return what testing the system's claim gave; a dash where there is no claim, or no result yet."""
    kept = ROOT / "docs" / "claims" / f"{system.name}.json"
    verdict = str(json.loads(kept.read_text(encoding="utf-8"))["today"]["verdict"]) if system.claim and kept.exists() else "—"
    return f"**{verdict}**" if verdict == "holds" else verdict


def quote_code(name: str, methods: list[str]) -> str:
    """Return the class of a system's recipe, or some of its methods: verbatim, but for their common indentation."""
    module, _, class_name = find_system(name).recipe.partition(":")
    source = (ROOT / "src/milonga/systems" / (module.replace(".", "/") + ".py")).read_text(encoding="utf-8")
    (recipe,) = (node for node in ast.parse(source).body if isinstance(node, ast.ClassDef) and node.name == class_name)
    found = {node.name: node for node in recipe.body if isinstance(node, ast.FunctionDef)}
    nodes = [found[method] for method in methods] or [recipe]
    pieces = ["\n".join(source.splitlines()[node.lineno - 1 : node.end_lineno]) for node in nodes]
    return "```python\n" + textwrap.dedent("\n\n".join(pieces)) + "\n```"


def map_layers() -> str:
    """Return the layers of the import contract, the highest first."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    (layers,) = (c["layers"] for c in settings["tool"]["importlinter"]["contracts"] if c["type"] == "layers")
    return "```\n" + "\n".join(re.sub(r" *[|:] *", " · ", layer.replace("milonga.", "")) for layer in layers) + "\n```"


def fill_parts(page: Path, text: str) -> str:
    """Return a page's text with every generated part made anew."""

    def make(found: re.Match[str]) -> str:
        begin, kind, words, end = found.groups()
        if kind == "catalogue":
            made = make_catalogue(page)
        elif kind == "choices":
            made = make_choices(page, words.split())
        elif kind == "layers":
            made = map_layers()
        else:
            name, *methods = words.split()
            made = quote_code(name, methods)
        return f"{begin}{made}\n{end}"

    return PART.sub(make, text)


def find_stale() -> Iterator[tuple[Path, str]]:
    """Yield the pages that are out of date, each with the text that it should have."""
    for name in PAGES:
        page = ROOT / name
        text = page.read_text(encoding="utf-8")
        if (made := fill_parts(page, text)) != text:
            yield page, made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit code 1 if a page is out of date")
    check = parser.parse_args().check
    stale = list(find_stale())
    for page, text in stale:
        print(page.relative_to(ROOT), "is out of date" if check else "written")
        if not check:
            page.write_text(text, encoding="utf-8")
    sys.exit(1 if check and stale else 0)


if __name__ == "__main__":
    main()
