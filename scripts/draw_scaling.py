"""The tables and the picture of docs/scaling.md, from the model behind `milonga plan`.

    python scripts/draw_scaling.py        # writes them into docs/scaling.md, and docs/images/scaling.svg

A table stands between `<!-- NAME -->` and `<!-- end -->`; the words around it are written by hand.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from milonga.charts import Series, line_chart, make_standalone
from milonga.cli.plan import format_duration
from milonga.planning import (
    ACCELERATORS,
    ClusterPlan,
    Lengths,
    Machine,
    Shape,
    Workload,
    calibrate,
    find_shape,
    make_plan,
    make_plans,
    simulate,
)
from milonga.planning.plan import Planner, find_fewest_gpus

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "scaling.md"
PICTURE = ROOT / "docs" / "images" / "scaling.svg"
ADAPTER = ROOT / "benchmarks" / "results" / "learn-lora.json"
TURNS = ROOT / "benchmarks" / "results" / "turn.json"
MODELS = ("1.5b", "7b", "32b", "72b", "671b")
COUNTS = tuple(2**power for power in range(11))
STALENESS = 1
LENGTHS = Lengths(2048, 8192)
PROBLEMS, ROLLOUTS, PROMPT = 512, 16, 512
EFFICIENT = 0.5
"""From this share of the best use of a GPU on it is called efficient."""
WORDS = {
    "cache": "reading the cache",
    "weights": "reading weights",
    "layers": "the time a layer takes at least",
    "tensor links": "links within an engine",
    "products": "products",
    "learner links": "links between learners",
    "parsing and grading": "the driver",
}


def machine() -> Machine:
    return Machine(ACCELERATORS["h200"], calibrate().reached)


def workload(problems: int = PROBLEMS, recipe: str = "tango") -> Workload:
    return Workload(recipe, problems, ROLLOUTS, PROMPT, LENGTHS, LENGTHS)


def both(model: str) -> dict[str, Shape]:
    return dict.fromkeys(("generator", "verifier"), find_shape(model))


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


class Scaling:
    """All plans of the page: for each model, on each number of GPUs."""

    def __init__(self) -> None:
        self.plans: dict[str, list[ClusterPlan | None]] = {
            model: make_plans(machine(), workload(), both(model), COUNTS, STALENESS) for model in MODELS
        }

    def efficiency(self, model: str) -> list[float | None]:
        """GPU-seconds of a turn at best, over those here."""
        spent = [None if plan is None else plan.best.gpus * plan.best.turn_s for plan in self.plans[model]]
        least = min(cost for cost in spent if cost is not None)
        return [None if cost is None else least / cost for cost in spent]

    def tables(self) -> dict[str, str]:
        return {
            "turns": self.grid(lambda plan, _: format_duration(plan.best.turn_s)),
            "placement": self.grid(lambda plan, _: placed(plan)),
            "efficiency": self.grid(lambda _, share: f"{share:.0%}"),
            "bounds": self.grid(lambda plan, _: bound(plan)),
            "limits": self.limits(),
            "staleness": staleness(),
            "growing": growing(),
            "whole": whole(),
            "simulation": self.simulated(),
            "reached": reached(),
            "errors": errors(),
            "adapters": adapters(),
        }

    def grid(self, cell: Callable[[ClusterPlan, float | None], str]) -> str:
        head = ["GPUs", *(f"{model.upper()}, *model*" for model in MODELS)]
        rows = []
        shares = {model: self.efficiency(model) for model in MODELS}
        for at, count in enumerate(COUNTS):
            found = [(self.plans[model][at], shares[model][at]) for model in MODELS]
            rows.append([f"{count:,}", *("" if plan is None else cell(plan, share) for plan, share in found)])
        return table(head, rows)

    def limits(self) -> str:
        head = ["model", "fits on", "cheapest on", "GPU-hours of a turn there, *model*", "efficient up to", "then bound by"]
        rows = []
        for model in MODELS:
            shares = self.efficiency(model)
            best = max(range(len(COUNTS)), key=lambda at: shares[at] or 0.0)
            last = max(at for at, share in enumerate(shares) if share is not None and share >= EFFICIENT)
            cheap, after = self.plans[model][best], self.plans[model][last + 1 :]
            assert cheap is not None
            hours = cheap.best.gpus * cheap.best.turn_s / 3600
            least = find_fewest_gpus(Planner(machine(), workload(), both(model), near=False))
            then = bound(after[0]) if after and after[0] else ""
            row = [f"{least:,}", f"{cheap.best.gpus:,}", f"{hours:.3g}", f"{COUNTS[last]:,}" + " or more" * (not after), then]
            rows.append([model.upper(), *row])
        return table(head, rows)

    def simulated(self) -> str:
        head = ["model", "GPUs", "closed form, *model*", "simulated, *model*", "difference"]
        rows = []
        for model in ("7b", "72b", "671b"):
            plan = self.plans[model][COUNTS.index(512)]
            assert plan is not None
            rollouts = simulate(plan)
            assert rollouts is not None
            times = (format_duration(rollouts.closed_s), format_duration(rollouts.turn_s))
            rows.append([model.upper(), "512", *times, f"{rollouts.difference:+.1%}"])
        return table(head, rows)

    def picture(self) -> str:
        series = [Series(model.upper(), [float(c) for c in COUNTS], self.efficiency(model)) for model in MODELS]
        title = "Use made of a GPU, over the best (model)"
        return line_chart(title, series, x_label="GPUs", y_label="efficiency", log_x=True, y_range=(0.0, 1.0), width=640)


def placed(plan: ClusterPlan) -> str:
    best = plan.best
    if best.kind == "colocated":
        return f"{best.gpus:,} in turns"
    return f"{best.sampling_gpus:,} : {best.gpus - best.sampling_gpus:,}"


def bound(plan: ClusterPlan) -> str:
    group, part = plan.best.bottleneck
    return f"{group.split()[-1]}: {WORDS.get(part, part)}"


def staleness() -> str:
    """On 256 GPUs."""
    head = ["recipe", "model", "in turns, *model*", *(f"split, k = {k}, *model*" for k in (0, 1))]
    rows = []
    for recipe in ("grpo", "tango"):
        for model in ("7b", "72b"):
            load = workload(recipe=recipe)
            shapes = {policy: find_shape(model) for policy in load.policies}
            planners = [Planner(machine(), load, shapes, near=False, staleness=k) for k in (0, 1)]
            placed = [
                planners[0].place_colocated(256),
                *(planner.place_split(planner.list_group_options(256), 256) for planner in planners),
            ]
            rows.append([recipe, model.upper(), *("" if one is None else format_duration(one.turn_s) for one in placed)])
    return table(head, rows)


def growing() -> str:
    """As many problems for each GPU, on any number of them."""
    counts = (8, 64, 1024)
    head = ["model", *(f"{count:,} GPUs, *model*" for count in counts)]
    rows = []
    for model in ("7b", "72b"):
        row = [model.upper()]
        for count in counts:
            (plan,) = make_plans(machine(), workload(8 * count), both(model), [count], STALENESS)
            row.append("" if plan is None else f"{format_duration(plan.best.turn_s)} ({bound(plan)})")
        rows.append(row)
    return table(head, rows)


def whole() -> str:
    """Whole turns as they were measured, beside plans of the same work."""
    found = json.loads(TURNS.read_text(encoding="utf-8"))
    alike = Lengths(found["new"], found["new"], spread=0.0)
    rows = []
    for recipe, names in (("grpo", ["grpo"]), ("tango", ["tango", "tango, the verifier's turn"])):
        load = Workload(recipe, found["problems"], found["rollouts"], 125, alike, alike)
        shapes = dict.fromkeys(load.policies, find_shape(found["model"]))
        best = make_plan(machine(), load, shapes, 1, 0).best
        for kind, name in enumerate(names):
            seconds = sum(sum(group.times[kind].values()) for group in best.groups) + best.driver[kind]
            measured = found["seconds"][name]["median"]
            rows.append([name, f"{measured:.2f} s", f"{seconds:.2f} s", f"{seconds / measured - 1:+.1%}"])
    return table(["turn", "measured", "*calibrated*", "error"], rows)


def reached() -> str:
    found = calibrate().reached
    rows = [
        ["memory bandwidth while decoding", f"{found.bandwidth:.0%} of the data sheet"],
        ["a layer in a decoding step, besides bytes", f"{found.layer_s * 1e6:.0f} µs"],
        ["products while prompts are read", f"{found.prefill:.0%} of the data sheet"],
        ["an engine's host, for each new token", f"{found.token_s * 1e6:.2f} µs"],
        ["products while learning", f"{found.products:.0%} of the data sheet"],
        ["how often a learner moves its activations", f"{found.traffic:.1f} times"],
        ["a learner's host, for each token", f"{found.read_s * 1e6:.2f} µs"],
        ["the driver, for each rollout", f"{found.rollout_s * 1e3:.2f} ms"],
    ]
    return table(["fitted", "*calibrated*"], rows)


def errors() -> str:
    head = ["measured on one H200", "seconds", "predicted unseen", "error", "from the 135M model alone"]
    rows = []
    for check in calibrate().checks:
        other = "" if check.foreign is None else f"{check.error(check.foreign):+.1%}"
        numbers = [f"{check.one.seconds:.4g}", f"{check.unseen:.4g}", f"{check.error(check.unseen):+.1%}", other]
        rows.append([check.one.name, *numbers])
    return table(head, rows)


def adapters() -> str:
    """What the formulas, which know nothing of adapters, would say of learning one."""
    found, reached, gpu = json.loads(ADAPTER.read_text(encoding="utf-8")), calibrate().reached, calibrate().gpu
    tokens, shape = 16384, find_shape("1.5b")
    moved = reached.traffic * tokens * shape.activation_bytes / gpu.bandwidth
    rows = []
    for name, key, passes, share in (("learn", "seconds", 2, 1.0), ("score", "score_seconds", 1, 1 / 3)):
        products = passes / 2 * found["tflop"]["strict"] * 1e12 / (gpu.flops * reached.products)
        predicted, measured = products + share * moved, found[key]["median"]
        label = f"{shape.name}, {tokens} tokens, LoRA of rank 16: {name}"
        rows.append([label, f"{measured:.4g}", f"{predicted:.4g}", f"{predicted / measured - 1:+.1%}"])
    return table(["measured, not fitted", "seconds", "predicted", "error"], rows)


def written(page: str, tables: dict[str, str]) -> str:
    """The page with its tables in place; a name without a place, or a place without a table, is an error."""
    places = set(re.findall(r"<!-- (\w+) -->", page)) - {"end"}
    if places != set(tables):
        raise ValueError(f"tables and places differ: {sorted(places ^ set(tables))}")
    for name, text in tables.items():
        page = re.sub(rf"(<!-- {name} -->\n).*?(<!-- end -->)", lambda m, t=text: f"{m[1]}{t}\n{m[2]}", page, flags=re.DOTALL)
    return page


def main() -> None:
    scaling = Scaling()
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8"), scaling.tables()), encoding="utf-8")
    PICTURE.write_text(make_standalone(scaling.picture()), encoding="utf-8")


if __name__ == "__main__":
    main()
