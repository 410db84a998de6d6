"""Claim of SSP (Search Self-Play): proposer and solver trained together versus a solver with a frozen proposer."""

from milonga.systems.claim import USUAL, Claim

CLAIM = Claim(
    "search_self_play",
    says="From answers alone, a searching solver that learns together with the proposer of its questions ends more accurate on "
    "held-out questions than one whose proposer stays as it was at the start.",
    arms=(
        "search_self_play",
        "search_self_play:options.train=solver",
        "search_self_play:options.train=proposer",
    ),
    more=(
        "search_self_play:options.reader=none,options.unique=false",
        "search_self_play:options.unique=false",
        "search_self_play:options.invalid=-0.1,options.baseline=none",
        "search_self_play:options.invalid=-0.1",
        "search_self_play:options.reward=window",
    ),
    metric="eval/generator/accuracy",
    conditions=USUAL,
    turns=100,
    task={"name": "search"},
    settings={
        "binding": "own",
        "batch": {"problems": 64, "rollouts": 5},
        "options": {"measured": 256},
        "policies": {agent: {"lr": 1e-4} for agent in ("proposer", "generator")},
        "eval": {"problems": 256, "samples": 4, "every": 20, "greedy": False},
        "keep": {"checkpoint_every": 100, "rollouts_every": 0},
    },
    gpu=True,
)
