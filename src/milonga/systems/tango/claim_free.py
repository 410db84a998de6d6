"""Claim of tango_free: a verifier trained on agreement helps its generator more than the agreement itself does."""

from milonga.systems.claim import USUAL, Claim

CLAIM = Claim(
    "tango_free",
    says="Without any answers, a generator paid by a verifier that learns from agreement among solutions and with itself "
    "becomes more accurate than one that is paid for agreeing with the majority.",
    arms=("tango_free", "ttrl", "tango"),
    metric="eval/generator/accuracy",
    conditions=USUAL,
    spread=0.186,
    turns=24,
    task={"name": "chain", "ops": 4},
    settings={
        "batch": {"problems": 16, "rollouts": 8},
        "eval": {"problems": 128, "samples": 4, "every": 8, "greedy": False, "bench": 64, "checks": 1},
        "keep": {"checkpoint_every": 24, "rollouts_every": 0},
    },
    more=(
        "tango_free:options.labelled=16",
        "tango_free:options.anchors=3",
        "tango_free_adversary",
        "multi_agent_evolve",
        "tango_free:options.self_consistency=0",
    ),
)
