"""Claim of APO: a reward model that is retrained on the policy's own answers does not go stale."""

from milonga.systems.claim import ROOM, Claim, Condition

CLAIM = Claim(
    "apo",
    says="After the rounds, a reward model that was retrained each round on the policy's own answers orders right and wrong "
    "solutions of the current policy better than one that was trained once on human pairs.",
    arms=("apo", "apo:options.rm=fixed", "apo:options.rm=human"),
    metric="eval/verifier/pair_accuracy",
    conditions=(ROOM, Condition("reward models are near chance", least=0.7)),
    spread=0.251,
    turns=4,
    task={"name": "chain", "ops": 2},
    settings={
        "batch": {"problems": 128, "rollouts": 4},
        "options": {"rm_turns": 4, "llm_turns": 1},
        "policies": {"generator": {"lr": 2e-4}, "verifier": {"lr": 2e-4, "minibatches": 8}},
        "eval": {"problems": 128, "samples": 8, "every": 1000, "greedy": False, "bench": 0},
    },
    more=("apo:options.own_weight=1.0", "apo:options.rm_restart=continue", "apo:options.weak=any"),
)
