"""Claim of CURE: unit tests rewarded for validity alone become trivial, and separate right from wrong programs less."""

from milonga.systems.claim import LEARNS, ROOM, ROOM_FOR_SOLUTIONS, Claim

CLAIM = Claim(
    "cure",
    says="Unit tests of a model that is paid for them by how well they tell right programs from wrong ones separate these "
    "better, in the end, than tests of one that is paid for validity alone.",
    arms=("cure", "cure:options.reward=validity", "cure:options.train_tester=false"),
    metric="eval/tester/mu",
    conditions=(ROOM, LEARNS, ROOM_FOR_SOLUTIONS),
    spread=0.125,
    turns=60,
    task={"name": "code", "min_level": 2, "level": 3},
    settings={
        "batch": {"problems": 16, "rollouts": 8},
        "options": {"tests": 8, "measured": 128},
        "policies": {"generator": {"lr": 1e-4}},
        "eval": {"problems": 64, "samples": 4, "every": 1000, "greedy": False, "bench": 0, "checks": 1},
    },
    more=("cure:options.all_correct_policy=sign", "cure:options.format_fail_value=0"),
)
