"""Claim of APRM: a process reward model trained against a learned corruptor, versus one trained on random corruptions."""

from milonga.systems.claim import USUAL, Claim

PLAIN = ",".join(
    f"policies.{agent}.{setting}"
    for agent in ("corruptor", "verifier")
    for setting in ("optimism=false", "objective.kl_coef=0", "objective.entropy_coef=0")
)

CLAIM = Claim(
    "aprm",
    says="A step scorer trained against a corruptor, with optimism, KL and entropy, tells steps corrupted in two held-out ways "
    "from right ones better than one trained on as many random corruptions of the other four.",
    task={"name": "chain", "ops": 3},
    arms=("aprm", "aprm:options.attack=random", f"aprm:{PLAIN}"),
    more=("aprm:options.updates=alternating", "aprm:options.replay=0"),
    metric="eval/held_out_accuracy",
    conditions=USUAL,
    spread=0.062,
    turns=30,
    settings={
        "batch": {"problems": 48, "rollouts": 4},
        "options": {"sft": 20, "sft_steps": 64, "warmup": 10, "measured": 128},
        "eval": {"problems": 32, "samples": 8, "every": 1000, "bench": 64, "checks": 1, "greedy": False},
    },
)
