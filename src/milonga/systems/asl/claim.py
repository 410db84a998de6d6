"""Claim of ASL: a frozen reward model is hacked; one that is trained along with the solver is hacked less."""

from milonga.systems.claim import Claim, Condition, Measured

CLAIM = Claim(
    "asl",
    says="When one model proposes, solves and judges without any truth, the gap between what its judge pays and what is right "
    "stays smaller if the judge is trained along than if it is frozen.",
    arms=("asl", "asl:options.grm=frozen", "asl:options.grm_label_source=pg_answer"),
    metric="eval/grm/hacking_gap",
    higher=False,
    conditions=(
        # Of the arm that is trained along: that the other's judge is hacked is what is claimed.
        Condition(
            "solving is lost",
            Measured("eval/generator/accuracy", arm=0),
            Measured("eval/generator/accuracy", arm=0, start=True),
            least=-0.05,
        ),
    ),
    spread=0.628,
    turns=24,
    task={"name": "chain", "ops": 3, "min_ops": 2},
    settings={
        "batch": {"problems": 16, "rollouts": 8},
        "options": {"formats": 90, "n_proposer": 2, "n_verifier": 4, "n_generator": 8, "attempts": 6, "audit": 256},
        "policies": {"generator": {"lr": 2e-4}},
        "eval": {"problems": 64, "samples": 2, "every": 1000, "greedy": False, "bench": 32, "checks": 1},
    },
    more=("asl:options.grm_label_source=gold_mix",),
)
