"""Claims of Math-Shepherd: step labels by completions (Monte Carlo) versus outcome labels, on the same solutions."""

from milonga.systems.claim import ROOM, SHARPENING, Claim, Condition, Measured, beat_blind_choice

CLAIM = Claim(
    "math_shepherd",
    says="A verifier trained on labels by completions picks sound solutions out of 16 better than one trained on the same "
    "solutions' answers.",
    # Modulo 100 lucky answers are rare, so that what a prefix can still reach says much about whether it is right.
    task={"name": "chain", "ops": 3, "mod": 100},
    arms=(
        "math_shepherd:options.completions=4,options.drop_unsolved=false",
        "lets_verify:options.labels=outcome,options.label_budget=8",
        # What labels could give at most: the truth of the steps of the same solutions.
        "lets_verify:options.labels=process,options.label_budget=8,options.aggregate=min",
    ),
    more=(
        "math_shepherd:options.completions=4,options.drop_unsolved=false,options.labels=soft",
        "math_shepherd:options.completions=4,options.drop_unsolved=false,options.aggregate=last_step",
    ),
    metric="eval/verifier/best_of_k_sound",
    conditions=(ROOM, beat_blind_choice("eval/generator/sound_accuracy")),
    spread=0.26,
    turns=30,
    settings={
        "batch": {"problems": 16, "rollouts": 8},
        "eval": {"problems": 64, "samples": 16, "every": 1000, "bench": 128, "checks": 1},
    },
)

RL_CLAIM = Claim(
    "math_shepherd_rl",
    says="Step rewards of a verifier trained on completions, beside the outcome, teach the generator faster than the outcome "
    "alone.",
    # Eight steps: few answers are right at the start, so that steps can say what answers do not.
    task={"name": "chain", "ops": 8},
    arms=(
        "math_shepherd_rl:options.completions=4",
        "math_shepherd_rl:options.completions=4,options.alpha=0.0",
        "math_shepherd_rl:options.completions=4,options.step_reward=difference",
    ),
    more=("math_shepherd_rl:options.completions=4,options.step_reward=raw",),
    metric="eval/generator/accuracy",
    area=True,
    conditions=(ROOM, SHARPENING, Condition("the verifier is near chance", Measured("eval/verifier/auroc", arm=0), least=0.6)),
    turns=40,
    settings={
        "batch": {"problems": 16, "rollouts": 8},
        "eval": {"problems": 128, "samples": 4, "every": 5, "bench": 64, "checks": 1},
    },
    gpu=True,
)
