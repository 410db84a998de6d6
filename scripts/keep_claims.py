"""Keep what `milonga claim` found: its result and plot in docs/, a paragraph in the recipe's page, the table in docs/claims.md.

python scripts/keep_claims.py runs/claim-prime runs/claim-gar      # without folders only the table is made anew
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Collection
from pathlib import Path
from typing import Any

from milonga.claims import check_conditions, find_deciding_p, judge_claim
from milonga.comparing.arms import add_eval_prefix
from milonga.comparing.stats import holm
from milonga.comparing.tables import draw
from milonga.report.sheets import shorten_arm_names
from milonga.runfolder.files import JsonLines
from milonga.systems.claim import Claim, Measured
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
"""What is kept of every arm, beside what its claim is about: its own metric, and those of its conditions."""
BEGIN, END = "<!-- result: made by scripts/keep_claims.py -->", "<!-- end of the result -->"
HEAD = """\
# Claims

What the papers claim, as comparisons that anyone can run again: `milonga claim NAME`. Arms, metric, direction and budget of
each are in `src/milonga/systems/NAME/claim.py` and were committed before its first result. Miniatures: a 1.8M-parameter model
on procedural tasks. They test mechanisms, not the papers' numbers.

{count}

- *Not testable*: the runs could not have shown what is claimed. Nothing was left to be gained, what the claim rests on did not
  work, or the comparator was worse than blind choice or than its own start. `claim.py` lists these conditions; `milonga claim`
  checks them in a pilot of three seeds before any that is reported: a bound is missed where the mean lies beyond it by more
  than its standard error. **The runs below are older than the conditions**, which are applied here to the reported seeds; one
  on what was not measured then is passed over, and said. So a claim that stands as testable may still fail its pilot.
- *Does not hold*: a difference of the smallest size that would matter (0.05 unless `claim.py` says otherwise) can be ruled out
  at 5 %, one-sided.
- *Holds*: that is not so, and the 95 % interval (Student's t over paired seeds) lies on the claim's side of zero.
- *Undecided*: neither; "could see" is the smallest true difference that so many seeds, spread like these, would have shown in
  80 % of all experiments.

"Then" is the verdict when the runs were made: without conditions, and with 0.01 as what would matter (0.05 for `asl`), so that
"does not hold" could hardly be reached. `p (Holm)` is that of the test which the verdict rests on (where a claim does not hold:
that the difference is as large as what would matter), corrected over all claims of this table, testable or not.

| recipe | claim | arms | metric | first two | difference | could see | p (Holm) | verdict | then |
|---|---|---|---|---|---|---|---|---|---|
"""


def judge_today(found: dict[str, Any]) -> dict[str, Any]:
    """Return the verdict on kept runs. Those that are older than conditions are judged by the conditions and the smallest
    difference that their claim states today; the problems could not be resampled in any of them."""
    if "conditions" in found:
        unknown = ["no pilot has shown that it can be tested"] if found["conditions"] == "not checked" else []
        return {"verdict": found["verdict"], "unmet": found["unmet"], "unknown": unknown}
    claim: Claim = CLAIMS.get(found["claim"])
    measured = [found["measured"].get(arm, {}) for arm in found["arms"]]

    def read(one: Measured) -> list[float]:
        metric = add_eval_prefix(one.metric or claim.metric)
        values: list[float] = measured[one.arm].get(metric, {}).get("start" if one.start else "end", [])
        end = found["values"][found["arms"][one.arm]]
        return [end] if not values and not one.start and metric == found["metric"] and end is not None else values

    unmet, unknown = check_conditions(claim, read)
    interval = None if found["interval"] is None else tuple(found["interval"])
    verdict = "not testable" if unmet else judge_claim(claim, interval, len(found["seeds"]))
    return {"verdict": verdict, "unmet": unmet, "unknown": unknown}


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
        verdict_of(found),
        found["verdict"],
    ]
    return "| " + " | ".join(cells) + " |"


def verdict_of(found: dict[str, Any]) -> str:
    """The verdict of today, with what stands against a test, and what nobody can tell."""
    unknown = found["today"]["unknown"] if not found["today"]["unmet"] else []
    return "; ".join([f"**{found['today']['verdict']}**", *found["today"]["unmet"], *(f"({said})" for said in unknown)])


def keep(folder: Path) -> None:
    """Take over one claim: docs/claims/NAME.json, docs/images/claim-NAME.svg, and the result in the page of its recipe."""
    found = json.loads((folder / "claim.json").read_text())
    name = found["claim"]
    found["out"] = f"runs/claim-{name}"
    result = json.loads((folder / "compare.json").read_text())
    # What the pages say about the arms beside the claim's own metric is read off these.
    wanted = KEPT | list_metrics_of(CLAIMS.get(name))
    found["measured"] = {arm: measured(folder / target["folder"], wanted) for arm, target in result["arms"].items()}
    (DOCS / "images" / f"claim-{name}.svg").write_text(draw(result))
    (DOCS / "images" / f"claim-{name}.png").unlink(missing_ok=True)
    write(found)


def write(found: dict[str, Any]) -> None:
    """Write a kept result, with the verdict of today, and its paragraph in the page of its recipe."""
    found["today"] = judge_today(found)
    name = found["claim"]
    (DOCS / "claims" / f"{name}.json").write_text(json.dumps(found, indent=1) + "\n")
    page = page_of(name)
    page.write_text(inserted(page.read_text(), paragraph(found), name))


def list_metrics_of(claim: Claim) -> set[str]:
    """List the metrics that a claim and its conditions are about."""
    named = [one for condition in claim.conditions for one in (condition.of, condition.minus) if one is not None]
    return {(metric or claim.metric).removeprefix("eval/") for metric in ("", *(one.metric for one in named))}


def measured(arm: Path, wanted: Collection[str]) -> dict[str, dict[str, list[float]]]:
    """Of what was evaluated in every run of an arm: the values at its start and at its end, seed by seed."""
    out: dict[str, dict[str, list[float]]] = {}
    for run in sorted(arm.glob("seed-*")):
        rows = [row for row in JsonLines(run / "metrics.jsonl").rows() if row.get("eval/dropped") is not None]
        for key, value in rows[-1].items():
            if key.startswith("eval/") and key.removeprefix("eval/").partition("@")[0] in wanted and value is not None:
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
    today, name = found["today"]["verdict"], found["claim"]
    before = "" if today == found["verdict"] else f" When it was run, the verdict was “{found['verdict']}”."
    # Plots of the first claims were kept as PNG.
    image = next(f"claim-{name}.{kind}" for kind in ("svg", "png") if (DOCS / "images" / f"claim-{name}.{kind}").exists())
    because = f": {'; '.join(found['today']['unmet'])}" if found["today"]["unmet"] else ""
    because += "".join(f" ({said})" for said in found["today"]["unknown"] if not found["today"]["unmet"])
    pairs = found.get("pairs", len(found["seeds"]))
    measured = f"{pairs} seeds: {change} in `{found['metric']}`, {found['better']} is better; "
    measured += f"a difference of {least} could have been seen. "
    return (
        f"**{today.capitalize()}**{because}.{before} {measured if pairs else 'In the pilot: '}{values}.\n\n"
        f"![{name}](../../../../docs/images/{image})"
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
    for found in results:
        write(found)
    deciding = {f["claim"]: find_deciding_p(CLAIMS.get(f["claim"]), f, f["today"]["verdict"]) for f in results}
    tested = {name: p for name, p in deciding.items() if p is not None}
    adjusted = dict(zip(tested, holm(list(tested.values())), strict=True))
    lines = [row(found, adjusted.get(found["claim"])) for found in results]
    waiting = [name for name in CLAIMS if name not in {found["claim"] for found in results}]
    text = HEAD.format(count=count(results, adjusted)) + "\n".join(lines) + "\n"
    if waiting:
        text += f"\nStated and not yet run: {', '.join(f'`{name}`' for name in waiting)}.\n"
    (DOCS / "claims.md").write_text(text)


def count(results: list[dict[str, Any]], adjusted: dict[str, float]) -> str:
    """Two sentences that count the verdicts, now and then."""
    now, then = (Counter(verdicts) for verdicts in ([f["today"]["verdict"] for f in results], [f["verdict"] for f in results]))
    firm = Counter(f["today"]["verdict"] for f in results if adjusted.get(f["claim"], 1.0) < 0.05)
    return (
        f"**Of {len(results)} claims, {now['not testable']} could not be tested by the runs that were made; of the others "
        f"{now['holds']} hold, {now['does not hold']} do not, {now['undecided']} are undecided**, with Holm's correction "
        f"{firm['holds']} hold and {firm['does not hold']} do not. When they were run, {then['holds']} were said to hold, "
        f"{then['does not hold']} not to, and {then['undecided']} to be undecided."
    )


if __name__ == "__main__":
    main()
