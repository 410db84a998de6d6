"""Claim of V-STaR: solutions collected in several rounds are worth more than as many collected in one."""

from milonga.systems.claim import USUAL, Claim

CLAIM = Claim(
    "v_star",
    says="From as many sampled solutions of as many problems, three rounds of sampling and learning let the verifier pick a "
    "right solution out of eight more often than one round.",
    # The third arm ranks by the log-ratio, from which the verifier's initial policy is divided out.
    arms=(
        "v_star:options.rounds=3,options.collect=1",
        "v_star:options.rounds=1,options.collect=3",
        "v_star:options.rounds=3,options.collect=1,options.rank=logratio",
    ),
    metric="eval/verifier/best_of_k",
    conditions=USUAL,
    turns=12,
    # Eight steps: at the start few samples are right, so that there is something for the generator to gain.
    task={"name": "chain", "ops": 8},
    settings={
        "batch": {"problems": 32, "rollouts": 16},
        "options": {"train": 6, "demonstrations": False},
        "policies": {"generator": {"lr": 1e-4}, "verifier": {"lr": 1e-4}},
        "eval": {"problems": 128, "samples": 8, "every": 1000, "greedy": False, "bench": 0},
    },
    more=(
        "v_star:options.rounds=3,options.collect=1,options.restart=continue",
        "v_star:options.rounds=3,options.collect=1,policies.verifier.objective.beta=0.5",
    ),
)
