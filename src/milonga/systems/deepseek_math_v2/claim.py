"""Claim of DeepSeekMath-V2: a verifier rewarded for defects that a meta-verifier confirms reports fewer false ones."""

from milonga.systems.claim import USUAL, Claim, Condition, Measured

CLAIM = Claim(
    "deepseek_math_v2",
    says="A verifier that is paid for its score times the quality of its analysis, as a learned meta-verifier sees it, reports "
    "defects with a higher precision on flawed proofs than one that is paid for its score alone, at no cost in score accuracy.",
    arms=("deepseek_math_v2", "deepseek_math_v2:options.meta=none"),
    metric="eval/verifier/defect_precision",
    conditions=(*USUAL, Condition("the meta-verifier errs", Measured("eval/meta_verifier/accuracy", arm=0), least=0.7)),
    spread=0.118,
    turns=26,
    task={"name": "chain", "ops": 4},
    settings={
        "batch": {"problems": 16, "rollouts": 8},
        "options": {"formats": 140, "n_score": 6, "n_quality": 10, "n_verifier": 20, "n_generator": 0, "audit": 192},
        "policies": {"generator": {"lr": 5e-4}, "verifier": {"lr": 2e-4}, "meta_verifier": {"lr": 2e-4}},
        "eval": {"problems": 24, "samples": 1, "every": 1000, "greedy": False, "bench": 24, "checks": 1},
    },
    more=("deepseek_math_v2:options.meta=oracle", "deepseek_math_v2:options.meta_mode=floor"),
)
