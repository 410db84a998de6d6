"""Claim of GAR: rewards of a discriminator of slices plus the outcome, versus the outcome alone, at equal generator samples."""

from milonga.systems.claim import ROOM, SHARPENING, Claim, Condition, Measured

STAGE_1 = "options.sft=24,options.sft_slices=48,options.disc_group=2,policies.verifier.lr=2e-4"

CLAIM = Claim(
    "gar",
    says="A generator that is also paid for what a jointly trained slice discriminator accepts is more accurate after the same "
    "number of samples than one paid for its answers alone.",
    task={"name": "chain", "ops": 6},
    arms=(f"gar:{STAGE_1}", "grpo", f"gar:{STAGE_1},options.frozen=true"),
    more=(
        f"gar:{STAGE_1},options.lambda3=0",
        f"gar:{STAGE_1},options.lambda4=0",
        f"gar:{STAGE_1},options.ref_source=gold_marked",
        f"gar:{STAGE_1},options.ref_source=gold_marked,options.z0_only_wrong=true",
    ),
    metric="eval/generator/accuracy",
    conditions=(
        ROOM,
        SHARPENING,
        Condition("the discriminator is near chance", Measured("eval/verifier/auroc", arm=0), least=0.7),
    ),
    spread=0.018,
    turns=20,
    settings={
        "batch": {"problems": 8, "rollouts": 8},
        "policies": {"generator": {"lr": 1e-4}},
        "eval": {"problems": 128, "samples": 2, "every": 1000, "greedy": False, "bench": 0, "checks": 1},
    },
)
