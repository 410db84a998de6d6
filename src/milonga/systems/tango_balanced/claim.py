"""Claim of tango_balanced: its verifier ends better than that of Tango, on solutions that no arm's generator wrote."""

from milonga.systems.claim import ROOM, Claim

CLAIM = Claim(
    "tango_balanced",
    says="A verifier that learns from balanced pairs of graded solutions ends with a higher F1 of first errors than that of "
    "Tango, on fixed solutions that are the same for both.",
    arms=("tango_balanced", "tango"),
    metric="eval/verifier/f1",
    conditions=(ROOM,),
    turns=24,
    task={"name": "chain", "ops": 6},
    settings={
        "batch": {"problems": 32, "rollouts": 8},
        "eval": {"problems": 128, "samples": 4, "every": 8, "greedy": False, "bench": 64},
        "keep": {"checkpoint_every": 24, "rollouts_every": 0},
    },
    # As many verifier turns as Tango has in 24 turns of its generator: 6 of the warm-up and 7 after it.
    more=("sequential:options.warmup=13", "grpo"),
)
