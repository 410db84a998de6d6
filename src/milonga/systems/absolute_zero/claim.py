"""Claim of Absolute Zero: a proposer rewarded for learnability keeps its tasks at the edge of the solver's ability."""

from milonga.systems.claim import ROOM, Claim, Condition, Measured

CLAIM = Claim(
    "absolute_zero",
    says="Of the valid tasks that a proposer poses in the end, more are solved sometimes and not always where it is paid for "
    "that than where it is paid for their difficulty alone.",
    arms=(
        "absolute_zero",
        "absolute_zero:options.difficulty=plain",
        "absolute_zero:options.proposer=untrained",
    ),
    metric="eval/proposer/learnable",
    # That the second arm's tasks get worse is what is claimed; the first arm's should not.
    conditions=(ROOM, Condition("posing is lost", Measured(arm=0), Measured(arm=0, start=True), least=-0.02)),
    spread=0.082,
    turns=60,
    task={"name": "code", "min_level": 1, "level": 3},
    settings={
        "batch": {"problems": 32, "rollouts": 8},
        "options": {"measured": 64},
        "policies": {"generator": {"lr": 1e-4}},
        "eval": {"problems": 64, "samples": 4, "every": 20, "greedy": False, "bench": 0, "checks": 1},
    },
    more=("absolute_zero:options.proposer=task", "absolute_zero:options.baseline=global"),
    gpu=True,
)
