"""Claim of MAPoRL: collaboration must be trained jointly; training beside an untrained partner teaches less of it."""

from milonga.systems.claim import CEILING, Claim, Condition, Measured

CLAIM = Claim(
    "maporl",
    says="After the same number of debates, two agents that are trained together gain more accuracy from the first turn of a "
    "debate to its last than when one is trained beside a partner that stays as it was.",
    arms=("maporl", "maporl:options.train=lead", "maporl:options.gamma=0"),
    more=("maporl:options.train_first=false", "maporl:options.leading=1"),
    metric="eval/team/gain",
    conditions=(
        Condition("the first turn leaves nothing to be gained", Measured("eval/team/first_accuracy", arm=0), most=CEILING),
    ),
    turns=60,
    task={"name": "chain", "ops": 3},
    settings={
        "batch": {"problems": 16, "rollouts": 8},
        "options": {"formats": 10, "format_lines": 128, "talk": 2, "measured": 256},
        "policies": {agent: {"lr": 2e-4, "minibatches": 4} for agent in ("generator", "partner")},
        "eval": {"every": 10},
        "keep": {"checkpoint_every": 60, "rollouts_every": 0},
    },
    gpu=True,
)
