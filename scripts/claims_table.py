"""Write docs/claims.md from the results in docs/claims/*.json (each an OUT/claim.json of `milonga claim`).

python scripts/claims_table.py
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from milonga.claims import CLAIMS
from milonga.comparing.stats import holm

DOCS = Path(__file__).parent.parent / "docs"
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


def main() -> None:
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
