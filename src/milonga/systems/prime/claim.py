"""Claim of PRIME: the reward model must be trained online, along with the generator."""

from milonga.systems.claim import ROOM, Claim

CLAIM = Claim(
    "prime",
    says="An implicit reward model that learns online tells right from wrong rollouts of the generator it meets; one that was "
    "frozen after the same warm-up loses that as the generator moves away.",
    arms=("prime", "prime:options.prm_update=none"),
    more=("prime:options.process_weight=0.0",),
    metric="eval/verifier/pair_accuracy",
    # That the frozen one gets worse is what is claimed.
    conditions=(ROOM,),
    spread=0.07,
    turns=20,
    task={"name": "chain", "ops": 4},
    settings={
        "batch": {"problems": 12, "rollouts": 4},
        "options": {"prm_warmup": 10},
        "policies": {"generator": {"lr": 1e-4}, "verifier": {"lr": 2e-4}},
        "eval": {"problems": 128, "samples": 4, "every": 10, "greedy": False, "bench": 0},
        "keep": {"checkpoint_every": 20, "rollouts_every": 0},
    },
)
