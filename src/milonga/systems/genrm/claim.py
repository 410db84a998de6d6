"""Claim of GenRM: a verifier that writes out its checks and is scored by the probability of Yes ranks solutions better."""

from milonga.systems.claim import ROOM, Claim, beat_blind_choice

CLAIM = Claim(
    "genrm",
    says="Of eight solutions of a frozen generator, a verifier that writes checks and is scored by the mean chance of Yes over "
    "eight of them picks a right one more often than a value head trained on the same problems.",
    arms=("genrm", "lets_verify:options.labels=outcome,options.label_budget=8", "genrm:options.form=direct"),
    metric="eval/verifier/best_of_k",
    conditions=(ROOM, beat_blind_choice("eval/generator/accuracy")),
    spread=0.106,
    turns=16,
    task={"name": "chain", "ops": 4},
    settings={
        "batch": {"problems": 16, "rollouts": 8},
        "eval": {"problems": 64, "samples": 8, "every": 1000, "greedy": False, "bench": 16, "checks": 1},
    },
    more=("genrm:options.rationales=1", "genrm:options.generation=0", "genrm:options.voting=vote"),
)
