"""Claim of tango_balanced: its verifier ends better than that of Tango."""

from milonga.systems.claim import Claim

CLAIM = Claim(
    "tango_balanced",
    says="A verifier that learns from balanced pairs of graded solutions ends with a higher AUROC of its soft verdicts than "
    "that of Tango, on solutions of its own generator.",
    arms=("tango_balanced", "tango"),
    metric="eval/verifier/soft_auroc",
    turns=24,
    task={"name": "chain", "ops": 6},
    settings={
        "batch": {"problems": 32, "rollouts": 8},
        "eval": {"problems": 128, "samples": 4, "every": 8, "greedy": False, "bench": 64},
        "keep": {"checkpoint_every": 24, "rollouts_every": 0},
    },
    matters=0.05,
    more=("sequential", "grpo"),
)
