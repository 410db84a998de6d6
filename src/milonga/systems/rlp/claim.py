"""Claim of RLP: thoughts rewarded for predicting the next token are worth more than further training on that token."""

from milonga.systems.claim import USUAL, Claim

CLAIM = Claim(
    "rlp",
    says="On plain lines of text, rewarding thoughts for the next token makes the answers behind them right more often than "
    "continued next-token training on the same lines does, and than the same rewards handed to the wrong thoughts.",
    arms=("rlp", "rlp:options.next_token=only", "rlp:control=shuffled"),
    metric="eval/generator/accuracy",
    conditions=USUAL,
    spread=0.021,
    turns=30,
    task={"name": "chain", "ops": 3},
    settings={
        "batch": {"problems": 24, "rollouts": 4},
        "options": {"pick": "answer", "target_span": 2, "format_turns": 2, "format_lines": 32, "measured": 256},
        "policies": {"generator": {"lr": 1e-4}},
        "eval": {"every": 10},
        "keep": {"checkpoint_every": 30, "rollouts_every": 0},
    },
)
