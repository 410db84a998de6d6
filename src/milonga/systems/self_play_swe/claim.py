"""Claim of SSR (self-play SWE-RL): learning to inject bugs along with repairing them beats learning to repair alone."""

from milonga.systems.claim import USUAL, Claim

CLAIM = Claim(
    "self_play_swe",
    says="From as many attempts, a model that goes on injecting bugs and is paid for those that are sometimes repaired ends up "
    "repairing more held-out bugs of two files than one that learns from a fixed pool of its early bugs.",
    arms=(
        "self_play_swe",
        "self_play_swe:options.learn=repair",
        "self_play_swe:options.reward=consistency",
    ),
    metric="eval/generator/accuracy",
    conditions=USUAL,
    spread=0.029,
    turns=60,
    task={"name": "bugs", "min_changed": 2, "changed": 2},
    settings={
        "batch": {"problems": 4, "rollouts": 8},
        "options": {"injections": 8, "bugs": 16, "gather": 4, "measured": 64},
        "policies": {"generator": {"lr": 5e-5}},
        "eval": {"problems": 128, "samples": 4, "every": 1000, "greedy": False, "bench": 0, "checks": 1},
    },
    more=("self_play_swe:options.learn=inject",),
)
