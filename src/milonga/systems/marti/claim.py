"""Claim of MARTI: a multi-agent workflow is worth its tokens only with agents that were trained inside it."""

from milonga.systems.claim import CEILING, Claim, Condition, Measured

CLAIM = Claim(
    "marti",
    says="A chain of generator, critic and refiner that are all trained in it does better, against a vote of its generator's "
    "solutions for as many sampled tokens, than one in which the generator alone is trained.",
    arms=("marti", "marti:options.train=generator", "marti:options.shaping=quality"),
    more=("marti:options.shaping=none", "marti:options.verifier_reward=checker", "marti:options.labels=majority"),
    metric="eval/team/over_vote",
    conditions=(Condition("a vote leaves nothing to be gained", Measured("eval/team/vote"), most=CEILING),),
    turns=60,
    task={"name": "chain", "ops": 4},
    settings={
        "batch": {"problems": 16, "rollouts": 8},
        "options": {"formats": 15, "format_lines": 128, "measured": 256},
        "policies": {"generator": {"lr": 1e-4}, "verifier": {"lr": 1e-4}, "refiner": {"lr": 2e-4, "minibatches": 8}},
        "eval": {"every": 10},
        "keep": {"checkpoint_every": 60, "rollouts_every": 0},
    },
    gpu=True,
)
