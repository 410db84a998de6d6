"""A plan as plain data: what the command prints, and what `--json` gives.

Invariant: every number that comes from the model stands in a table whose `standing` says whether it is calibrated or model.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from milonga.planning import memory
from milonga.planning.calibrate import Calibration
from milonga.planning.hardware import FAR_S, LINK_SHARE, NEAR_S
from milonga.planning.model import sum_parts
from milonga.planning.plan import ClusterPlan, Group, Placement
from milonga.planning.shapes import TOGETHER
from milonga.planning.simulate import Simulation
from milonga.planning.workload import AROUND

HOUR = 3600.0


def describe(
    plan: ClusterPlan, calibration: Calibration, rollouts: Simulation | None, turns: int, price: float | None
) -> dict[str, Any]:
    """Describe a plan for a run of so many turns; `price` is that of an hour of one GPU, assumed if it is not given."""
    assumed = price is None
    hourly = plan.machine.gpu.price if price is None else price
    load = plan.workload
    return {
        "recipe": load.recipe,
        "models": {
            policy: {"name": shape.name, "parameters": shape.parameters, "active": shape.active, "source": shape.source}
            for policy, shape in plan.shapes.items()
        },
        "gpu": {"name": plan.machine.gpu.name, "memory": plan.machine.gpu.memory, "count": plan.gpus},
        "workload": {
            "problems": load.problems,
            "rollouts": load.rollouts,
            "prompt": load.prompt,
            "solution": asdict(load.solution),
            "verification": asdict(load.verification),
            "turns": turns,
        },
        "price": {"hour": hourly, "assumed": assumed},
        "best": _describe_placement(plan, plan.best, calibration, turns, hourly),
        "other": None if plan.other is None else _describe_placement(plan, plan.other, calibration, turns, hourly),
        "simulation": None
        if rollouts is None
        else {"turn_s": rollouts.turn_s, "turns": rollouts.turns, "difference": rollouts.difference},
        "assumptions": _list_assumptions(plan),
        "calibration": _describe_calibration(calibration),
    }


def _describe_placement(
    plan: ClusterPlan, placed: Placement, calibration: Calibration, turns: int, hourly: float
) -> dict[str, Any]:
    hours = turns * placed.turn_s / HOUR
    group, part = placed.bottleneck
    return {
        "kind": placed.kind,
        "standing": plan.classify_standing(placed, calibration),
        "staleness": placed.staleness,
        "turn_s": placed.turn_s,
        "turns_s": {
            f"{turn.study.policy} learns": sum(sum_parts(group.times[kind]) for group in placed.groups) + placed.driver[kind]
            for kind, turn in enumerate(plan.workload.turns())
        },
        "gpus": placed.gpus,
        "sampling_gpus": placed.sampling_gpus,
        "busy": placed.busy_share,
        "bound": {"group": group, "part": part},
        "hours": hours,
        "gpu_hours": hours * placed.gpus,
        "cost": hours * placed.gpus * hourly,
        "groups": [_describe_group(one, placed) for one in placed.groups],
    }


def _describe_group(group: Group, placed: Placement) -> dict[str, Any]:
    turns = sum(placed.counts)
    return {
        "name": group.name,
        "gpus": group.gpus,
        "tensor": group.tensor,
        "rows": group.slots or None,
        "pass_tokens": group.tokens or None,
        "recompute": group.recompute,
        "turn_s": sum_parts(placed.loads[group.name]) / turns,
        "parts_s": {name: seconds / turns for name, seconds in placed.loads[group.name].items()},
        "memory": group.memory,
        "memory_total": sum_parts(group.memory),
    }


def _describe_calibration(calibration: Calibration) -> dict[str, Any]:
    return {
        "gpu": calibration.gpu.name,
        "reached": asdict(calibration.reached),
        "range": calibration.measured_range(),
        "errors": calibration.errors(),
        "checks": [
            {
                "name": check.one.name,
                "source": check.one.source,
                "measured_s": check.one.seconds,
                "unseen_s": check.unseen,
                "error": check.error(check.unseen),
                "error_from_smallest": None if check.foreign is None else check.error(check.foreign),
            }
            for check in calibration.checks
        ],
        "memory": [
            {"name": one.name, "source": one.source, "measured": one.size, "predicted": one.predicted_bytes}
            for one in calibration.held
        ],
    }


def _list_assumptions(plan: ClusterPlan) -> list[str]:
    """List the assumptions of the numbers besides measurements."""
    gpu, load = plan.machine.gpu, plan.workload
    solution, check = load.solution, load.verification
    said = [
        f"other GPUs reach the same shares of their data sheets as the one that was measured; {gpu.name}: "
        f"{gpu.flops / 1e12:,.0f} TFLOP/s, {gpu.bandwidth / 1e12:.2f} TB/s, {gpu.memory / 1e9:.0f} GB",
        f"links reach {LINK_SHARE:.0%} of {gpu.link / 1e9:.0f} GB/s within a node of {gpu.node} and of "
        f"{gpu.network / 1e9:g} GB/s for each GPU between nodes; a collective takes {NEAR_S * 1e6:.0f} or {FAR_S * 1e6:.0f} "
        "microseconds besides",
        f"solutions are log-normal, of mean {solution.mean:g} and spread {solution.spread:g}, cut at {solution.limit}; "
        f"verifications of mean {check.mean:g}, cut at {check.limit}, after prompts that hold the question, the solution and "
        f"{AROUND} tokens more",
        "learners shard weights, gradients and moments over their group, and gather them twice for each pass; "
        f"{memory.KEPT:.0%} of the memory stays free",
        "an engine holds all weights over its GPUs (tensor parallel), with the kernels that were measured on one",
        "the engine 'ray' as it is does less: a sampler has one GPU, every policy has learners of its own, and sharded ones "
        "gather float32 and do not recompute (docs/cluster.md)",
        "one thread samples turns and another learns from them; with staleness they overlap within the turns of one learner; "
        "a turn is learned in one step, which corrects older samples in passing",
        "evaluations, checkpoints, warm-up turns, failures and what staleness costs in quality are not counted",
    ]
    if plan.offload:
        said.append(
            f"moments are on the host: they come and go at every step, over {LINK_SHARE:.0%} of "
            f"{gpu.host / 1e9:.0f} GB/s for each GPU; the host has room for them"
        )
    if any(shape.experts for shape in plan.shapes.values()):
        said.append(
            "experts are chosen evenly, cut like other weights (no expert parallelism), and gathered to learn "
            f"{TOGETHER} at a time"
        )
    return said
