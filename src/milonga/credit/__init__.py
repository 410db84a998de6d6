"""Credit: pure functions from rewards to per-token advantages."""

from milonga.credit.balance import ClassBalance
from milonga.credit.baselines import mixed, normalise, normalise_each
from milonga.credit.labels import balanced, outcome_targets, step_targets, until_first_error
from milonga.credit.mixing import decay, mix, shares
from milonga.credit.shaping import overlong_penalty
from milonga.credit.tokens import StepCredit, kl_penalties, outcome_advantages, spread

__all__ = [
    "ClassBalance",
    "StepCredit",
    "balanced",
    "decay",
    "kl_penalties",
    "mix",
    "mixed",
    "normalise",
    "normalise_each",
    "outcome_advantages",
    "outcome_targets",
    "overlong_penalty",
    "shares",
    "spread",
    "step_targets",
    "until_first_error",
]
