"""Claim of SPIN: where more supervised fine-tuning on the data no longer helps, self-play against the previous policy does."""

from milonga.systems.claim import ROOM, Claim, Condition, Measured

CLAIM = Claim(
    "spin",
    says="From the same worked solutions and after as many turns, a model that learned to prefer them to its own answers of "
    "the round before solves more held-out problems than one that went on imitating them.",
    # The third arm wins by length alone: its own answers end early, and it has nothing else to learn.
    arms=("spin", "sft:options.n_verifier=0", "spin:options.shorten=0.3"),
    metric="eval/generator/accuracy",
    conditions=(ROOM, Condition("imitation still teaches", minus=Measured(start=True), most=0.05)),
    spread=0.013,
    turns=12,
    task={"name": "chain", "ops": 6},
    settings={
        "batch": {"problems": 64, "rollouts": 2},
        "policies": {"generator": {"lr": 1e-4}},
        "eval": {"problems": 128, "samples": 4, "every": 4, "greedy": False, "bench": 0},
    },
    more=("spin:policies.generator.objective.beta=0.1", "spin:policies.generator.objective.beta=5", "spin:options.replay=0"),
)
