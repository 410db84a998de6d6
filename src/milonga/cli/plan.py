"""The body of `milonga plan`: predict what a run would need on other hardware, and print it as tables."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from milonga.config import Config
from milonga.errors import UserError, suggest_name
from milonga.planning import (
    PLANNABLE,
    Lengths,
    Machine,
    Workload,
    calibrate,
    describe,
    find_accelerator,
    find_shape,
    make_plan,
    simulate,
)
from milonga.planning.simulate import MOST_ROWS

GIB = 2**30


def plan_hardware(
    generator: str,
    verifier: str | None,
    *,
    recipe: str,
    gpus: int,
    gpu: str,
    problems: int | None,
    rollouts: int | None,
    prompt: int,
    tokens: int,
    mean: float | None,
    check_tokens: int | None,
    spread: float,
    staleness: int,
    turns: int | None,
    price: float | None,
    offload: bool = False,
) -> dict[str, Any]:
    """Make the hardware plan as data. Batch and run settings that are not given are the defaults of the config."""
    if recipe not in PLANNABLE:
        raise UserError(f"recipe '{recipe}' cannot be planned: {suggest_name(recipe, PLANNABLE)}")
    solution = _make_lengths(tokens, mean, spread)
    verification = _make_lengths(check_tokens or tokens, None if check_tokens else mean, spread)
    usual = Config(recipe=recipe)
    batch = usual.batch.model_copy(update={k: v for k, v in (("problems", problems), ("rollouts", rollouts)) if v})
    load = Workload(recipe, batch.problems, batch.rollouts, prompt, solution, verification)
    if verifier is not None and "verifier" not in load.policies:
        raise UserError(f"recipe '{recipe}' has no verifier: leave out --verifier, or take tango or frozen")
    named = {"generator": generator, "verifier": verifier or generator}
    shapes = {policy: find_shape(named[policy]) for policy in load.policies}
    calibration = calibrate()
    machine = Machine(find_accelerator(gpu), calibration.reached)
    plan = make_plan(machine, load, shapes, gpus, staleness, offload)
    return describe(plan, calibration, simulate(plan), turns or usual.turns, price)


def _make_lengths(limit: int, mean: float | None, spread: float) -> Lengths:
    if mean is not None and mean > limit:
        raise UserError(f"a mean length of {mean:g} is beyond the limit of {limit} tokens: lower --mean or raise --tokens")
    return Lengths(mean if mean is not None else limit / 2, limit, spread)


def print_plan(data: dict[str, Any], console: Console, all_: bool = False) -> None:
    """Print what a run would take; with `all_` also what each group does, what is assumed, and how good the model is."""
    models = " and ".join(
        f"{policy} {one['name']} ({one['parameters'] / 1e9:.3g}B, {one['source']})" for policy, one in data["models"].items()
    )
    load = data["workload"]
    console.print(f"[bold]{data['recipe']}[/bold]: {escape(models)}", highlight=False)
    console.print(
        f"{load['problems']} problems x {load['rollouts']} rollouts a turn, on at most {data['gpu']['count']} x "
        f"{data['gpu']['name']}",
        highlight=False,
    )
    _print_placements(data, console)
    console.print(_describe_simulation(data), highlight=False)
    if not all_:
        errors = data["calibration"]["errors"]
        console.print(
            f"error of the model: median {errors['median']:.1%}, worst {errors['worst']:.1%}; groups, assumptions and all "
            "that was measured: --all",
            highlight=False,
        )
        return
    _print_groups(data, console)
    console.print("assumptions:")
    for line in data["assumptions"]:
        console.print(f"  - {escape(line)}", highlight=False)
    _print_errors(data["calibration"], console)


def _describe_simulation(data: dict[str, Any]) -> str:
    rollouts = data["simulation"]
    if rollouts is None:
        return f"not simulated: a turn has more than {MOST_ROWS:,} rows"
    return (
        f"simulated, {rollouts['turns']} turns with drawn lengths: {format_duration(rollouts['turn_s'])} a turn, "
        f"{rollouts['difference']:+.1%} of the closed form, [italic]{data['best']['standing']}[/italic]"
    )


def _print_placements(data: dict[str, Any], console: Console) -> None:
    found = [one for one in (data["best"], data["other"]) if one is not None]
    names = {"colocated": "in turns on all", "split": "split"}
    table = Table("", *(names[one["kind"]] + (" (best)" if one is found[0] else "") for one in found), box=None)
    price = data["price"]

    def row(label: str, *values: str) -> None:
        table.add_row(label, *(f"{value} [italic]{one['standing']}[/italic]" for value, one in zip(values, found, strict=True)))

    row("a turn, in the mean", *(format_duration(one["turn_s"]) for one in found))
    for kind in found[0]["turns_s"]:
        row(f"  from start to end, {kind}", *(format_duration(one["turns_s"][kind]) for one in found))
    row("GPUs used", *(str(one["gpus"]) for one in found))
    row("  sampling : learning", *(_format_shares(one) for one in found))
    table.add_row("staleness", *(str(one["staleness"]) for one in found))
    row("GPUs busy", *(f"{one['busy']:.0%}" for one in found))
    row("bound by", *(f"{one['bound']['group']}: {one['bound']['part']}" for one in found))
    row(f"{data['workload']['turns']} turns", *(format_duration(3600 * one["hours"]) for one in found))
    row("GPU-hours", *(f"{one['gpu_hours']:,.1f}" for one in found))
    said = f"cost at {price['hour']:g} an hour" + (", an assumption: see --price" if price["assumed"] else "")
    row(said, *(f"{one['cost']:,.2f}" for one in found))
    console.print(table)


def _format_shares(one: dict[str, Any]) -> str:
    if one["kind"] == "colocated":
        return "the same in turns"
    return f"{one['sampling_gpus']} : {one['gpus'] - one['sampling_gpus']}"


def _print_groups(data: dict[str, Any], console: Console) -> None:
    best = data["best"]
    room = data["gpu"]["memory"] / GIB
    table = Table(
        "group", "GPUs", "each engine or pass", "s a turn", "most of it", f"GiB of {room:.0f} on each GPU", "most of them"
    )
    for group in best["groups"]:
        way = f"{group['tensor']} GPUs, {group['rows']} rows" if group["rows"] else f"{group['pass_tokens']} tokens"
        way += ", recomputing" if group["recompute"] else ""
        part, kind = (max(group[key], key=group[key].get) for key in ("parts_s", "memory"))
        mark = f" [italic]{best['standing']}[/italic]"
        most = f"{part} {group['parts_s'][part] / group['turn_s']:.0%}{mark}"
        held = f"{kind} {group['memory'][kind] / GIB:.1f}{mark}"
        used = f"{group['memory_total'] / GIB:.1f}{mark}"
        table.add_row(group["name"], str(group["gpus"]), way, f"{group['turn_s']:.3g}{mark}", most, used, held)
    console.print(table)


def _print_errors(calibration: dict[str, Any], console: Console) -> None:
    """Print the error of every calibration measurement, including the bad ones."""
    table = Table("measured on one " + calibration["gpu"], "seconds", "predicted unseen", "error", "from the smallest model")
    for check in calibration["checks"]:
        other = check["error_from_smallest"]
        table.add_row(
            escape(check["name"]), f"{check['measured_s']:.4g}", f"{check['unseen_s']:.4g}", f"{check['error']:+.1%}",
            "" if other is None else f"{other:+.1%}",
        )  # fmt: skip
    for one in calibration["memory"]:
        sizes = (f"{one[key] / GIB:.1f} GiB" for key in ("measured", "predicted"))
        table.add_row(f"{escape(one['name'])}, memory", *sizes, f"{one['predicted'] / one['measured'] - 1:+.1%}", "")
    console.print(table)
    errors, (least, most) = calibration["errors"], calibration["range"]["parameters"]
    console.print(
        f"error on what a fit did not see: median {errors['median']:.1%}, worst {errors['worst']:.1%}. Measured were models of "
        f"{least / 1e9:.2g}B to {most / 1e9:.2g}B on one {calibration['gpu']}: links, larger models and other GPUs are "
        "[italic]model[/italic].",
        highlight=False,
    )


def format_duration(seconds: float) -> str:
    """Format a duration in the unit that reads best."""
    for size, unit in ((86400.0, "days"), (3600.0, "h"), (60.0, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds:.3g} s"
