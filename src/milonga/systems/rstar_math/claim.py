"""Claim of rStar-Math: a reward model from preferences among sibling steps, versus outcomes alone, from the same trees."""

from milonga.systems.claim import USUAL, Claim

PRESET = "policies.verifier.objective.preset"

CLAIM = Claim(
    "rstar_math",
    says="From the same trees, a model of preferences among sibling steps finds right solutions by search without answers more "
    "often than a model of the answers; one that regresses the Q of each step stands beside them.",
    # One round: the trees of all arms are the same, and so is the policy that searches at the end.
    arms=("rstar_math", f"rstar_math:{PRESET}=value_bce", f"rstar_math:{PRESET}=value_mse"),
    more=("rstar_math:options.pick=random", "rstar_math:options.wrong_keys=0.0"),
    metric="eval/search/accuracy",
    conditions=USUAL,
    spread=0.151,
    turns=1,
    task={"name": "chain", "min_ops": 2, "ops": 4},
    settings={
        "batch": {"problems": 128, "rollouts": 16},
        # Steps are not checked: of those that compute what they say too few are wrong to learn a preference from.
        "options": {"searches": 4, "check": False, "wrong_keys": 0.05, "measured": 128},
        "policies": {"verifier": {"lr": 3e-4, "minibatches": 32, "epochs": 2}},
        "eval": {"problems": 64, "samples": 8, "every": 1000, "bench": 0},
    },
)
