"""Claim of Let's Verify Step by Step: process supervision (step labels) versus outcome supervision, on the same solutions."""

from milonga.systems.claim import ROOM, Claim, beat_blind_choice

CLAIM = Claim(
    "lets_verify",
    says="A verifier trained on the truth of steps picks sound solutions out of 16 better than one trained on the same "
    "solutions' answers.",
    # Answers modulo 20 can be guessed: more than half of the right ones come from wrong steps.
    task={"name": "chain", "ops": 3, "mod": 20},
    arms=(
        "lets_verify:options.labels=process",
        "lets_verify:options.labels=outcome",
        # The same number of labelled solutions, half of what is sampled: mostly wrong ones that convince.
        "lets_verify:options.convincing_fraction=0.8,batch.rollouts=16",
    ),
    more=(
        "lets_verify:options.convincing_fraction=0.0,batch.rollouts=16",
        "lets_verify:options.stop_at_error=false",
        "lets_verify:options.aggregate=min",
        "lets_verify:options.aggregate=geometric",
    ),
    metric="eval/verifier/best_of_k_sound",
    conditions=(ROOM, beat_blind_choice("eval/generator/sound_accuracy")),
    spread=0.046,
    turns=30,
    settings={
        "batch": {"problems": 16, "rollouts": 8},
        "options": {"label_budget": 8},
        "eval": {"problems": 64, "samples": 16, "every": 1000, "bench": 128, "checks": 1},
    },
)
