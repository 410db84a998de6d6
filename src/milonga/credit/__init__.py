"""Credit: pure functions from rewards to per-token advantages."""

from milonga.credit.baselines import has_both_outcomes, normalise
from milonga.credit.labels import compute_class_weights, label_agreement, mask_after_error, outcome_targets, step_targets
from milonga.credit.mixing import contribution_stats, decay, mix_advantages
from milonga.credit.reach import fill_after_zero, find_first_zero, hard_labels, step_reward_advantages
from milonga.credit.selection import (
    downsample_to_balance,
    filter_right_rows,
    sample_half_pairs,
    select_best_solutions,
    select_best_worst,
    select_convincing_wrong,
)
from milonga.credit.shaping import overlong_penalty
from milonga.credit.slices import SliceReward, approval_rate, average_step_verdicts, group_verdicts, is_reference
from milonga.credit.tokens import StepCredit, broadcast_to_tokens, kl_penalties, outcome_advantages
from milonga.credit.turns import isolate_turn, make_token_factors, progress_reward, sum_turns, turn_advantages
from milonga.credit.weights import compute_group_class_weights, mark_best_rows, term_weights

__all__ = [
    "SliceReward",
    "StepCredit",
    "approval_rate",
    "average_step_verdicts",
    "broadcast_to_tokens",
    "compute_class_weights",
    "compute_group_class_weights",
    "contribution_stats",
    "decay",
    "downsample_to_balance",
    "fill_after_zero",
    "filter_right_rows",
    "find_first_zero",
    "group_verdicts",
    "hard_labels",
    "has_both_outcomes",
    "is_reference",
    "isolate_turn",
    "kl_penalties",
    "label_agreement",
    "make_token_factors",
    "mark_best_rows",
    "mask_after_error",
    "mix_advantages",
    "normalise",
    "outcome_advantages",
    "outcome_targets",
    "overlong_penalty",
    "progress_reward",
    "sample_half_pairs",
    "select_best_solutions",
    "select_best_worst",
    "select_convincing_wrong",
    "step_reward_advantages",
    "step_targets",
    "sum_turns",
    "term_weights",
    "turn_advantages",
]
