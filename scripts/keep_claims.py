"""Keep what `milonga claim` found: its result and plot in docs/, a paragraph in the recipe's page, the table in docs/claims.md.

python scripts/keep_claims.py runs/claim-prime runs/claim-gar      # without folders only the table is made anew
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from milonga.claims import CLAIMS
from milonga.comparing.report import draw, short_names
from milonga.comparing.stats import holm

DOCS = Path(__file__).parent.parent / "docs"
BEGIN, END = "<!-- result: made by scripts/keep_claims.py -->", "<!-- end of the result -->"
HEAD = """\
# Claims

What the papers claim, as comparisons that anyone can run again: `milonga claim NAME --seeds 5`. Arms, metric, direction and
budget of each are in `src/milonga/claims/` and were committed before its first result. The interval is Student's t over
paired seeds, 95 %. *Holds*: it lies on the claim's side of zero. *Does not hold*: it leaves no room for a difference that
would matter. *Undecided*: neither; "could see" is the smallest true difference that so many seeds, spread like these, would
have shown in 80 % of all experiments. `p (Holm)` is corrected over all claims of this table. Miniatures: a 1.8M-parameter
model on procedural tasks. They test mechanisms, not the papers' numbers.

| recipe | claim | arms | metric | first two | difference | could see | p (Holm) | verdict |
|---|---|---|---|---|---|---|---|---|
"""


def number(value: float | None) -> str:
    return "—" if value is None else f"{value:.3f}"


def row(found: dict[str, Any], p: float | None) -> str:
    low, high = found["interval"] or (None, None)
    change = "—" if found["difference"] is None else f"{found['difference']:+.3f} [{low:+.3f}, {high:+.3f}]"
    values = list(found["values"].values())
    cells = [
        f"[{found['claim']}](recipes/{found['claim']}.md)",
        found["says"],
        "<br>".join(f"`{arm}`" for arm in found["arms"]),
        f"`{found['metric'].replace('eval/', '')}`, {found['better']} is better",
        " · ".join(number(value) for value in values[:2]),
        change,
        number(found["smallest_effect"]),
        number(p),
        f"**{found['verdict']}**",
    ]
    return "| " + " | ".join(cells) + " |"


def keep(folder: Path) -> None:
    """Take over one claim: docs/claims/NAME.json, docs/images/claim-NAME.png, and the result in the page of its recipe."""
    found = json.loads((folder / "claim.json").read_text())
    name = found["claim"]
    found["out"] = f"runs/claim-{name}"
    (DOCS / "claims").mkdir(exist_ok=True)
    (DOCS / "claims" / f"{name}.json").write_text(json.dumps(found, indent=1) + "\n")
    draw(json.loads((folder / "compare.json").read_text()), DOCS / "images" / f"claim-{name}.png")
    page = DOCS / "recipes" / f"{name.removesuffix('_rl')}.md"
    page.write_text(inserted(page.read_text(), paragraph(found), name))


def paragraph(found: dict[str, Any]) -> str:
    low, high = found["interval"]
    change, least = f"{found['difference']:+.3f} [{low:+.3f}, {high:+.3f}]", number(found["smallest_effect"])
    short = short_names(found["arms"])
    values = ", ".join(f"`{short[arm]}` {number(found['values'][arm])}" for arm in found["arms"])
    verdict, name = found["verdict"].capitalize(), found["claim"]
    return (
        f"**{verdict}** ({len(found['seeds'])} seeds): {change} in `{found['metric']}`, {found['better']} is better; "
        f"a difference of {least} could have been seen. {values}.\n\n![{name}](../images/claim-{name}.png)"
    )


def inserted(page: str, text: str, name: str) -> str:
    """The page with this result: in the old one's place, or at the end of the section on its claim."""
    begin = BEGIN.replace("result:", f"result of {name}:")
    block = f"{begin}\n{text}\n{END}"
    if begin in page:
        before, _, rest = page.partition(begin)
        return before + block + rest.partition(END)[2]
    before, title, rest = page.partition("## Its claim")
    section, following, after = rest.partition("\n## ")
    return f"{before}{title}{section.rstrip()}\n\n{block}\n{following}{after}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="*", type=Path)
    for folder in parser.parse_args().folders:
        keep(folder)
    write_table()


def write_table() -> None:
    results = [json.loads(path.read_text()) for path in sorted((DOCS / "claims").glob("*.json"))]
    tested = [found for found in results if found["p"] is not None]
    adjusted = dict(zip([f["claim"] for f in tested], holm([f["p"] for f in tested]), strict=True))
    lines = [row(found, adjusted.get(found["claim"])) for found in results]
    waiting = [name for name in CLAIMS if name not in {found["claim"] for found in results}]
    text = HEAD + "\n".join(lines) + "\n"
    if waiting:
        text += f"\nStated and not yet run: {', '.join(f'`{name}`' for name in waiting)}.\n"
    (DOCS / "claims.md").write_text(text)


if __name__ == "__main__":
    main()
