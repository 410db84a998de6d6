"""Claim of Qwen2.5-Math-PRM: labels on which completions and a judge agree, versus completions alone, at equal solutions."""

from milonga.systems.claim import ROOM, Claim, beat_blind_choice

CLAIM = Claim(
    "qwen_prm",
    says="From equally many solutions, labels on which completions and a judge agree make a verifier that finds first errors "
    "better than labels by completions alone.",
    # Modulo 20 answers can be guessed: completions often arrive from wrong steps.
    task={"name": "chain", "ops": 3, "mod": 20},
    arms=(
        "qwen_prm:options.labels=consensus_hard",
        "qwen_prm:options.labels=mc_hard",
        "qwen_prm:options.labels=judge",
    ),
    more=(
        "qwen_prm:options.labels=consensus_soft",
        "qwen_prm:options.labels=mc_soft",
        "qwen_prm:options.labels=truth",
    ),
    metric="eval/verifier/f1",
    conditions=(ROOM, beat_blind_choice("eval/generator/accuracy", picks="eval/verifier/best_of_k")),
    spread=0.162,
    turns=16,
    settings={
        "batch": {"problems": 12, "rollouts": 8},
        "options": {"completions": 8, "solutions": 40},
        "eval": {"problems": 64, "samples": 8, "every": 1000, "bench": 256, "checks": 1},
    },
)
