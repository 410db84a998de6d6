"""Claim of SCoRe: two stages and a progress bonus teach self-correction; plain two-turn RL teaches copying."""

from milonga.systems.claim import CEILING, Claim, Condition, Measured

CLAIM = Claim(
    "score",
    says="After the same number of conversations, two-stage reinforcement with a bonus for progress makes the second turn gain "
    "more over the first than plain two-turn reinforcement does.",
    arms=("score", "score:options.stage1=0,options.alpha=0", "score:options.alpha=0"),
    more=("score:options.first_only=true,options.stage1=0",),
    metric="eval/generator/gain",
    conditions=(
        Condition("the first turn leaves nothing to be gained", Measured("eval/generator/first_accuracy"), most=CEILING),
    ),
    turns=80,
    task={"name": "chain", "ops": 3},
    settings={
        "batch": {"problems": 16, "rollouts": 8},
        "options": {"formats": 10, "format_lines": 128, "stage1": 30, "measured": 256},
        "policies": {"generator": {"lr": 2e-4, "minibatches": 4}},
        "eval": {"every": 10},
        "keep": {"checkpoint_every": 80, "rollouts_every": 0},
    },
)
