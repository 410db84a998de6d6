"""Keep what `milonga claim` found: its result and plot in docs/, a paragraph in the recipe's page, the table in docs/claims.md.

python scripts/keep_claims.py runs/claim-prime runs/claim-gar      # without folders only the table is made anew
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from milonga.comparing.stats import holm
from milonga.comparing.tables import draw
from milonga.report.sheets import shorten_arm_names
from milonga.runfolder.files import JsonLines
from milonga.systems.index import CLAIMS, SYSTEMS

DOCS = Path(__file__).parent.parent / "docs"
SYSTEM_PAGES = DOCS.parent / "src" / "milonga" / "systems"
KEPT = {
    "generator/accuracy", "generator/sound_accuracy", "generator/plain_accuracy", "generator/ce_plain", "hacking_gap",
    *(f"verifier/{name}" for name in ("auroc", "balanced_accuracy", "f1", "pair_accuracy", "best_of_k", "best_of_k_sound")),
    *(f"verifier/{name}" for name in ("score_accuracy", "defect_precision")), "held_out_auroc", "plain_accuracy", "ce_plain",
    *(f"tester/{name}" for name in ("mu", "validity", "p01", "p00")), "best_of_n", "solver/accuracy", "injector/valid",
    *(f"proposer/{name}" for name in ("valid", "learnable", "solve_rate", "hops")),
    "generator/success", "critic/useful_accuracy", "critic/pair_accuracy",
    "team/over_vote", "team/vote", "reader/exact", "generator/useful_questions", "judge/pair_accuracy", "judge/built_accuracy",
    "collusion", "consensus_wrong", "endorsement", "label_accuracy", "grm/hacking_gap", "pool/malformed", "search/accuracy",
    *(f"{who}/{name}" for who in ("generator", "team") for name in ("first_accuracy", "last_accuracy", "gain", "copy_rate")),
}  # fmt: skip
"""What is kept of every arm, beside the metric of the claim."""
BEGIN, END = "<!-- result: made by scripts/keep_claims.py -->", "<!-- end of the result -->"
HEAD = """\
# Claims

What the papers claim, as comparisons that anyone can run again: `milonga claim NAME --seeds 5`. Arms, metric, direction and
budget of each are in `src/milonga/systems/NAME/claim.py` and were committed before its first result. The interval is
Student's t over paired seeds, 95 %. *Holds*: it lies on the claim's side of zero. *Does not hold*: it leaves no room for a
difference that would matter. *Undecided*: neither; "could see" is the smallest true difference that so many seeds, spread
like these, would have shown in 80 % of all experiments. `p (Holm)` is corrected over all claims of this table. Miniatures: a
1.8M-parameter model on procedural tasks. They test mechanisms, not the papers' numbers.

| recipe | claim | arms | metric | first two | difference | could see | p (Holm) | verdict |
|---|---|---|---|---|---|---|---|---|
"""


def number(value: float | None) -> str:
    return "—" if value is None else f"{value:.3f}"


def change_of(found: dict[str, Any]) -> str:
    if found["interval"] is None:
        return "—"
    low, high = found["interval"]
    return f"{found['difference']:+.3f} [{low:+.3f}, {high:+.3f}]"


def row(found: dict[str, Any], p: float | None) -> str:
    values = list(found["values"].values())
    cells = [
        f"[{found['claim']}](../src/milonga/systems/{page_of(found['claim']).relative_to(SYSTEM_PAGES)})",
        found["says"],
        "<br>".join(f"`{arm}`" for arm in found["arms"]),
        f"`{found['metric'].replace('eval/', '')}`, {found['better']} is better",
        " · ".join(number(value) for value in values[:2]),
        change_of(found),
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
    result = json.loads((folder / "compare.json").read_text())
    # What the pages say about the arms beside the claim's own metric is read off these.
    found["measured"] = {arm: measured(folder / target["folder"]) for arm, target in result["arms"].items()}
    (DOCS / "claims").mkdir(exist_ok=True)
    (DOCS / "claims" / f"{name}.json").write_text(json.dumps(found, indent=1) + "\n")
    draw(result, DOCS / "images" / f"claim-{name}.png")
    page = page_of(name)
    page.write_text(inserted(page.read_text(), paragraph(found), name))


def measured(arm: Path) -> dict[str, dict[str, list[float]]]:
    """Of what was evaluated in every run of an arm: the values at its start and at its end, seed by seed."""
    out: dict[str, dict[str, list[float]]] = {}
    for run in sorted(arm.glob("seed-*")):
        rows = [row for row in JsonLines(run / "metrics.jsonl").rows() if row.get("eval/dropped") is not None]
        for key, value in rows[-1].items():
            if key.startswith("eval/") and key.removeprefix("eval/").partition("@")[0] in KEPT and value is not None:
                both = out.setdefault(key, {"start": [], "end": []})
                both["end"].append(round(float(value), 4))
                if rows[0].get(key) is not None:
                    both["start"].append(round(float(rows[0][key]), 4))
    return out


def page_of(name: str) -> Path:
    """The README of a system; a recipe and its form for reinforcement learning share one."""
    return SYSTEM_PAGES / next(system.page for system in SYSTEMS if system.name == name)


def paragraph(found: dict[str, Any]) -> str:
    change, least = change_of(found), number(found["smallest_effect"])
    short = shorten_arm_names(found["arms"])
    values = ", ".join(f"`{short[arm]}` {number(found['values'][arm])}" for arm in found["arms"])
    verdict, name = found["verdict"].capitalize(), found["claim"]
    return (
        f"**{verdict}** ({len(found['seeds'])} seeds): {change} in `{found['metric']}`, {found['better']} is better; "
        f"a difference of {least} could have been seen. {values}.\n\n![{name}](../../../../docs/images/claim-{name}.png)"
    )


def inserted(page: str, text: str, name: str) -> str:
    """The page with this result: in the old one's place, or at the end of the section on what was found."""
    begin = BEGIN.replace("result:", f"result of {name}:")
    block = f"{begin}\n{text}\n{END}"
    if begin in page:
        before, _, rest = page.partition(begin)
        return before + block + rest.partition(END)[2]
    before, title, rest = page.partition("## What was found")
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
