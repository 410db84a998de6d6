"""MARS, an ablation that its paper lacks: two systems trained together versus one trained beside a frozen one."""

from milonga.systems.claim import USUAL, Claim

CLAIM = Claim(
    "mars",
    says="After the same number of trajectories, a planner and a reader that learn together answer more questions about "
    "held-out haystacks than a planner that learns beside a reader that stays as it was.",
    arms=("mars", "mars:options.train=planner", "mars:options.train=reader"),
    more=("mars:options.s1_balance=none", "mars:options.s1_norm=trajectory"),
    metric="eval/generator/accuracy",
    conditions=USUAL,
    effect=0.1,
    spread=0.093,
    turns=80,
    task={"name": "haystack", "documents": 3, "parts": 2, "ops": 2, "noise": 2, "kinds": "both"},
    settings={
        "binding": "own",
        "batch": {"problems": 16, "rollouts": 8},
        "options": {"formats": 40, "format_lines": 64, "format_notes": 256, "measured": 256, "bin": 9},
        "policies": {agent: {"lr": 1e-4, "minibatches": 4} for agent in ("generator", "reader")},
        "eval": {"every": 10},
        "keep": {"checkpoint_every": 80, "rollouts_every": 0},
    },
    gpu=True,
)
