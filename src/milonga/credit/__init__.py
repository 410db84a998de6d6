"""Credit: pure functions from rewards to per-token advantages."""

from milonga.credit.attacks import AttackReward, balanced_accuracy
from milonga.credit.balance import ClassBalance
from milonga.credit.baselines import mixed, normalise, normalise_each
from milonga.credit.debates import TransitionBonus, influence_rewards
from milonga.credit.implicit import ImplicitCredit, accuracy_within, contributions, rescaled, weighed
from milonga.credit.labels import balanced, label_agreement, outcome_targets, step_targets, until_first_error
from milonga.credit.mixing import decay, mix, shares
from milonga.credit.reach import after_zero, first_zero, hard_labels, step_reward_credit
from milonga.credit.selection import agreed, best_solutions, convincing_wrong, evened, extremes, half_pairs
from milonga.credit.shaping import overlong_penalty
from milonga.credit.slices import SliceReward, approval, by_solution, is_reference, step_votes
from milonga.credit.tokens import StepCredit, kl_penalties, outcome_advantages, spread
from milonga.credit.turns import progress_reward, turn_advantages, turn_alone, turn_factors, turn_sums
from milonga.credit.weights import balanced_within, best_rows, term_weights

__all__ = [
    "AttackReward",
    "ClassBalance",
    "ImplicitCredit",
    "SliceReward",
    "StepCredit",
    "TransitionBonus",
    "accuracy_within",
    "after_zero",
    "agreed",
    "approval",
    "balanced",
    "balanced_accuracy",
    "balanced_within",
    "best_rows",
    "best_solutions",
    "by_solution",
    "contributions",
    "convincing_wrong",
    "decay",
    "evened",
    "extremes",
    "first_zero",
    "half_pairs",
    "hard_labels",
    "influence_rewards",
    "is_reference",
    "kl_penalties",
    "label_agreement",
    "mix",
    "mixed",
    "normalise",
    "normalise_each",
    "outcome_advantages",
    "outcome_targets",
    "overlong_penalty",
    "progress_reward",
    "rescaled",
    "shares",
    "spread",
    "step_reward_credit",
    "step_targets",
    "step_votes",
    "term_weights",
    "turn_advantages",
    "turn_alone",
    "turn_factors",
    "turn_sums",
    "until_first_error",
    "weighed",
]
