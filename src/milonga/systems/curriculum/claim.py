"""Claim of curriculum: difficulty chosen by an agent that is rewarded for learnability beats an even mix."""

from milonga.systems.claim import ROOM, SHARPENING, Claim

CLAIM = Claim(
    "curriculum",
    says="On the hardest problems, Tango's generator ends more accurate where a proposer that is paid for learnability chooses "
    "the difficulty than where all levels come alike.",
    arms=("curriculum", "curriculum:options.choose=fixed", "curriculum:options.choose=easy_to_hard"),
    metric="eval/generator/accuracy",
    conditions=(ROOM, SHARPENING),
    matters=0.03,
    spread=0.033,
    turns=24,
    task={"name": "chain", "ops": 8},
    settings={
        "batch": {"problems": 24, "rollouts": 8},
        "eval": {"problems": 128, "samples": 4, "every": 8, "greedy": False, "bench": 0},
        "keep": {"checkpoint_every": 24, "rollouts_every": 0},
    },
    more=("tango",),
)
