"""Claim of Self-Taught Evaluators: a judge improves on its own judgements of pairs without human labels."""

from milonga.systems.claim import USUAL, Claim

CLAIM = Claim(
    "self_taught_evaluators",
    says="A judge that is trained from its seed on those of its own judgements that agree with how the pairs were built "
    "prefers the right one of two real solutions more often than a judge trained on as many of them drawn blindly.",
    # The second arm assigns the weights of the kept judgements at random: it stays what the seed model was.
    arms=("self_taught_evaluators", "self_taught_evaluators:control=shuffled", "self_taught_evaluators:options.balance=false"),
    metric="eval/judge/pair_accuracy",
    conditions=USUAL,
    spread=0.04,
    turns=54,
    task={"name": "last_letter", "min_words": 2, "max_words": 3, "test_max_words": 3},
    settings={
        "batch": {"problems": 64, "rollouts": 8},
        "options": {"seed_turns": 24, "iters": 3, "train": 9, "rows": 512, "measured": 256},
        "policies": {"judge": {"lr": 5e-4, "minibatches": 4}},
        "eval": {"problems": 4, "samples": 1, "every": 10, "greedy": False, "bench": 0},
    },
    more=(
        "self_taught_evaluators:options.negatives=digits",
        "self_taught_evaluators:options.restart=continue",
        "self_taught_evaluators:options.answers=sampled",
    ),
)
