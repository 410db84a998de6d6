"""The body of `milonga claim`: list the claims, or test one and print the verdict."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from milonga.text import format_number


def list_claims(console: Console) -> dict[str, Any]:
    from milonga.systems.index import CLAIMS

    table = Table("claim", "says", "arms", "metric", "turns", "wants a GPU")
    for column in table.columns:
        column.overflow = "fold"  # a truncated name is useless
    table.columns[0].min_width = max(len(name) for name in CLAIMS)
    rows = []
    for name in CLAIMS:
        claim = CLAIMS.get(name)
        row = {"claim": name, "says": claim.says, "arms": list(claim.arms), "metric": claim.metric, "turns": claim.turns}
        rows.append(row | {"more": list(claim.more), "gpu": claim.gpu})
        arms = "\n".join(claim.arms)
        table.add_row(name, claim.says, escape(arms), claim.metric, str(claim.turns), "yes" if claim.gpu else "")
    console.print(table)
    return {"claims": rows}


def try_claim(
    name: str,
    seeds: str,
    full: bool,
    out: Path | None,
    device: str | None,
    sampler: str | None,
    jobs: int | None,
    console: Console,
) -> dict[str, Any]:
    from milonga.claims import plan_claim, run_claim
    from milonga.systems.custom import find_claim

    claim = find_claim(name)
    comparison = plan_claim(claim, seeds, full, device, sampler)
    if claim.gpu and comparison.reference.plan.config.device == "cpu":
        console.print(f"the claim of '{claim.recipe}' wants a GPU: on a CPU it takes hours")
    found = run_claim(claim, comparison, out if out is not None else Path("runs") / f"claim-{claim.recipe}", jobs)
    _print_claim(found, console)
    return found


def _print_claim(found: dict[str, Any], console: Console) -> None:
    console.print(f"[bold]{escape(found['claim'])}[/bold]: {escape(found['says'])}")
    table = Table("arm", found["metric"], "turns", "tokens", "FLOPs")
    for arm in found["arms"]:
        used = found["compute"][arm]
        costs = ["—" if used[cost] is None else f"{used[cost]:,.3g}" for cost in ("turns", "tokens", "flops")]
        table.add_row(escape(arm), format_number(found["values"][arm]), *costs)
    console.print(table)
    if found["interval"] is not None:
        low, high = found["interval"]
        console.print(
            f"difference of the first two: {found['difference']:+.3f} [{low:+.3f}, {high:+.3f}], "
            f"{len(found['seeds'])} seeds; {found['better']} is better; "
            f"could be seen: {format_number(found['smallest_effect'])}",
            soft_wrap=True,
            markup=False,
        )
    console.print(f"verdict: [bold]{found['verdict']}[/bold]")
