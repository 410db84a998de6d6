"""Claim of tango_code: verdicts on the pieces of a program teach more than the tests alone."""

from milonga.systems.claim import ROOM, SHARPENING, Claim, Condition, Measured

CLAIM = Claim(
    "tango_code",
    says="At equal turns of the generator, programs pass their hidden tests more often where a verifier that learns along also "
    "pays for each piece than where the tests pay alone.",
    arms=("tango_code", "grpo", "oracle"),
    metric="eval/generator/accuracy",
    conditions=(ROOM, SHARPENING, Condition("exact rewards gain nothing either", Measured(arm=2), Measured(), least=0.1)),
    turns=40,
    task={"name": "code", "min_level": 2, "level": 3},
    settings={
        "batch": {"problems": 16, "rollouts": 8},
        "eval": {"problems": 128, "samples": 4, "every": 10, "greedy": False, "bench": 0, "checks": 1},
    },
    more=("frozen", "tango_code:options.reward=share"),
)
