"""What APO says of itself: a reward model that is retrained on the policy's own answers does not go stale."""

from milonga.claims.base import claim

claim(
    "apo",
    says="After the rounds, a reward model that was retrained each round on the policy's own answers orders right and wrong "
    "solutions of the current policy better than one that was trained once on human pairs.",
    arms=("apo", "apo:options.rm=fixed", "apo:options.rm=human"),
    metric="eval/verifier/pair_accuracy",
    turns=8,
    task={"name": "chain", "ops": 4},
    settings={
        "batch": {"problems": 32, "rollouts": 4},
        "eval": {"problems": 96, "samples": 8, "every": 1000, "greedy": False, "bench": 16, "checks": 1},
        "keep": {"checkpoint_every": 1000, "traces_every": 0},
    },
    more=("apo:options.rm_restart=continue", "apo:options.weak=any"),
)
