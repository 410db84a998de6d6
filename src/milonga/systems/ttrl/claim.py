"""Claim of TTRL: the majority answer as a label is worth nearly as much as the truth, and more than any one sample."""

from milonga.systems.claim import USUAL, Claim

CLAIM = Claim(
    "ttrl",
    says="Where errors are scattered, a generator that is paid for agreeing with the majority of its own answers becomes more "
    "accurate on new problems than one that is paid for agreeing with one of its answers drawn at random.",
    arms=("ttrl", "ttrl:options.label=random", "ttrl:options.label=truth"),
    metric="eval/generator/accuracy",
    conditions=USUAL,
    spread=0.092,
    turns=20,
    task={"name": "chain", "ops": 6},
    settings={
        "batch": {"problems": 16, "rollouts": 8},
        "policies": {"generator": {"lr": 1e-4}},
        "eval": {"problems": 128, "samples": 4, "every": 10, "greedy": False, "bench": 0},
        "keep": {"checkpoint_every": 20, "rollouts_every": 0},
    },
    more=("ttrl:options.label=format", "ttrl:options.examples=1,options.label=truth", "ttrl:options.examples=1"),
)
