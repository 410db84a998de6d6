"""Claim of MAE (Multi-Agent Evolve): without its quality gate, invalid questions fill the pool, and the solver suffers."""

from milonga.systems.claim import USUAL, Claim

CLAIM = Claim(
    "multi_agent_evolve",
    says="When one model proposes, solves and judges without any truth, its solver ends more accurate if only questions that "
    "the judge finds good enough enter the pool.",
    arms=(
        "multi_agent_evolve",
        "multi_agent_evolve:options.gate=0",
        "multi_agent_evolve:options.judge_label_frac=0.1",
    ),
    metric="eval/generator/accuracy",
    conditions=USUAL,
    spread=0.017,
    turns=24,
    task={"name": "chain", "ops": 3, "min_ops": 2},
    settings={
        "batch": {"problems": 16, "rollouts": 8},
        "options": {"formats": 60, "audit": 256},
        "policies": {"generator": {"lr": 1e-4}},
        "eval": {"problems": 128, "samples": 4, "every": 1000, "greedy": False, "bench": 32, "checks": 1},
    },
    more=("multi_agent_evolve:options.difficulty=zero_at_extremes",),
)
