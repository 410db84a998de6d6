"""Claim of Self-Rewarding: a judge that is updated with the policy is worth more than a frozen one."""

from milonga.systems.claim import ROOM, Claim, Condition, Measured

CLAIM = Claim(
    "self_rewarding",
    says="After four rounds a model that grades its own answers with the judge it has become solves more held-out problems "
    "than one that is graded by the judge it was after the seed.",
    # The third arm is graded by the truth: what the judge's mistakes cost.
    arms=("self_rewarding", "self_rewarding:options.judge=frozen", "self_rewarding:options.judge=oracle"),
    metric="eval/generator/accuracy",
    conditions=(ROOM, Condition("the judge is near chance", Measured("eval/verifier/auroc"), least=0.75)),
    spread=0.147,
    turns=16,
    task={"name": "chain", "ops": 3},
    settings={
        "batch": {"problems": 48, "rollouts": 4},
        "options": {"seed_turns": 16, "round_turns": 4},
        "policies": {"generator": {"lr": 2e-4}},
        "eval": {"problems": 128, "samples": 4, "every": 4, "greedy": False, "bench": 0},
    },
    more=(
        "self_rewarding:options.length_bonus=1",
        "self_rewarding:options.length_bonus=1,options.pair_rule=tier",
        "self_rewarding:binding=own",
    ),
)
