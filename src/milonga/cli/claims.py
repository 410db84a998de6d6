"""The body of `milonga claim`: list the claims, or test one and print the verdict."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from milonga.cli.show import print_text
from milonga.report.curves import TITLES
from milonga.text import format_number


def list_claims(console: Console, name: str | None = None) -> dict[str, Any]:
    """List all claims with what they say; or one, with its arms, metric, seeds and conditions."""
    from milonga.claims import describe_condition, find_visible, list_seeds
    from milonga.systems.custom import find_claim
    from milonga.systems.index import CLAIMS

    claims = {each: find_claim(each) for each in ([name] if name is not None else CLAIMS)}
    rows: list[dict[str, Any]] = [
        {
            "claim": each,
            "says": claim.says,
            "arms": list(claim.arms),
            "metric": claim.metric,
            "turns": claim.turns,
            "seeds": list(list_seeds(claim)),
            "matters": claim.matters,
            "visible": find_visible(claim, len(list_seeds(claim))),
            "conditions": [describe_condition(claim, condition) for condition in claim.conditions],
            "more": list(claim.more),
            "gpu": claim.gpu,
        }
        for each, claim in claims.items()
    ]
    if name is not None:
        for label, said in _describe_claim(rows[0]):
            print_text(console, (label, "bold"), f": {said}", wrap=True)
        return {"claims": rows}
    table = Table("claim", "says", "turns", box=None)
    table.columns[0].min_width = max(len(each) for each in claims)
    for row in rows:
        table.add_row(row["claim"], escape(row["says"]), f"{row['turns']}" + (" *" if row["gpu"] else ""))
    console.print(table)
    console.print("* wants a GPU. Arms and metric of one: milonga claim NAME --list", highlight=False)
    return {"claims": rows}


def _describe_claim(row: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Say what is to be known of one claim, in labels and words. What it does not have is left out."""
    seeds, metric = row["seeds"], row["metric"]
    words = "" if metric not in TITLES else f" ({TITLES[metric]})"
    shown = "cannot be told before a run" if row["visible"] is None else f"{format_number(row['visible'])} or more"
    return [
        ("claim", row["claim"]),
        ("says", row["says"]),
        ("arms", ", ".join(row["arms"])),
        *([("more arms with --full", ", ".join(row["more"]))] if row["more"] else []),
        ("metric", f"{metric}{words}"),
        ("turns", str(row["turns"])),
        ("seeds", f"{seeds[0]} to {seeds[-1]}"),
        ("difference that would matter", format_number(row["matters"])),
        (f"difference that {len(seeds)} seeds show in 80 % of all experiments", shown),
        *(("condition", said) for said in row["conditions"]),
        ("wants a GPU", "yes" if row["gpu"] else "no"),
    ]


def try_claim(
    name: str,
    seeds: str | None,
    full: bool,
    anyway: bool,
    out: Path | None,
    device: str | None,
    sampler: str | None,
    jobs: int | None,
    console: Console,
) -> dict[str, Any]:
    """Check the claim's conditions in a pilot run, beside the folder of its own runs; then test it, if they are met."""
    from milonga.claims import check_claim, find_visible, plan_claim, plan_pilot, run_claim
    from milonga.comparing.arms import check_folder
    from milonga.systems.custom import find_claim

    claim = find_claim(name)
    comparison, pilot = plan_claim(claim, seeds, full, device, sampler), plan_pilot(claim, device, sampler)
    if claim.gpu and comparison.reference.plan.config.device == "cpu":
        console.print(f"the claim of '{claim.recipe}' wants a GPU: on a CPU it takes hours")
    visible = find_visible(claim, len(comparison.seeds))
    if visible is not None and visible > claim.matters:
        console.print(
            f"{len(comparison.seeds)} seeds show a difference of {format_number(visible)} or more in 80 % of all experiments; "
            f"{claim.matters:g} would matter.",
            highlight=False,
            soft_wrap=True,
        )
    folder = out if out is not None else Path("runs") / f"claim-{claim.recipe}"
    folder = folder if folder.name not in ("", "..") else folder.resolve()  # a folder beside it needs a name
    check_folder(folder)  # before hours of a pilot
    found = None
    if pilot is not None and not anyway:
        found = check_claim(claim, pilot, folder.with_name(f"{folder.name}-pilot"), jobs)
    if found is None:
        found = run_claim(claim, comparison, folder, jobs, checked=not anyway)
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
            f"{found['pairs']} seeds; {found['better']} is better; "
            f"could be seen: {format_number(found['smallest_effect'])}",
            soft_wrap=True,
            markup=False,
        )
    if found["reached"] is not None:
        first, second = (format_number(share) for share in found["reached"]["shares"])
        limit = f"ended on the better side of {found['reached']['threshold']:g}"
        console.print(f"{first} and {second} of the seeds {limit}: p = {found['p']:.3f}", highlight=False, soft_wrap=True)
    for said in found["unmet"]:
        console.print(f"- {said}", markup=False, highlight=False, soft_wrap=True)
    console.print(f"verdict: [bold]{found['verdict']}[/bold]")
    if found["conditions"] == "not checked":
        console.print("No pilot has shown that it can be tested.", highlight=False)
    if found["unmet"]:
        console.print("Only a pilot was run; `--anyway` runs the seeds all the same.", highlight=False, soft_wrap=True)
