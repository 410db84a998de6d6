"""Metrics in words: what `show` calls a curve, whatever a recipe measures."""

from __future__ import annotations

import re

from milonga.report.curves import TITLES

COUNTED = (
    *("steps", "dropped", "judged_right", "judged_wrong", "judged_right_steps", "judged_wrong_steps", "soft_judged"),
    *("bench_judged_right_steps", "bench_judged_wrong_steps", "choice/problems", "f1_low", "f1_high"),
)
"""Metrics of an evaluation that say how much is behind others: no curves that matter."""
OF_AGENT = {
    "reward": "reward",
    "accuracy": "accuracy",
    "entropy": "entropy of a token",
    "invalid_rate": "share of outputs that cannot be read",
    "truncated_rate": "share of outputs that are cut",
    "length": "tokens of an output",
    "surprise": "surprise of a token",
    "majority": "accuracy of a majority vote",
    "accuracy_on_right": "share of right solutions called right",
    "accuracy_on_wrong": "share of wrong solutions called wrong",
    "balanced_accuracy": "balanced accuracy",
    "auroc": "area under ROC",
    "positive_rate": "share of solutions called right",
    "share_right": "share of judged solutions that are right",
    "unparsed_rate": "share of outputs without a verdict",
    "contradiction_rate": "share of verdicts against their steps",
    "soft_auroc": "area under ROC of soft verdicts",
    "soft_brier": "Brier score of soft verdicts",
    "soft_calibration_error": "calibration error of soft verdicts",
    "soft_step_auroc": "area under ROC of soft step verdicts",
    "calibration_error": "calibration error",
    "step_accuracy": "share of step verdicts that are right",
    "step_positive_rate": "share of steps called right",
    "step_auroc": "area under ROC on steps",
    "step_detection_rate": "share of wrong steps called wrong",
    "step_false_alarm_rate": "share of right steps called wrong",
    "greedy_f1": "F1 on first errors, greedy",
    "vote_f1": "F1 on first errors, by vote",
    "detection_f1": "F1 on error or none",
    "error_accuracy": "share of first errors that are named",
    "right_accuracy": "share of sound solutions that are cleared",
    "hidden_error_accuracy": "share of hidden errors that are named",
    "index_shift": "shift of the error that is named",
    "last_is_lowest": "share of lowest scores on a last step",
    "weighted_vote": "accuracy of a vote weighted by scores",
    "choice/verifier": "accuracy of the best by soft verdict",
    "choice/mean": "accuracy of any sample",
    "choice/majority": "accuracy of the most frequent answer",
    "choice/pass": "accuracy of a perfect choice",
    "choice/verifier_minus_majority": "gain of its choice over a majority",
    "trivial/no_knowledge": "F1 that needs no look",
    "trivial/answer_modal": "F1 of knowing the answer alone",
    "trivial/error_modal": "F1 of knowing of an error alone",
    "trivial/answer_last": "F1 of blaming the last step",
    "trivial/all_right": "F1 of calling everything right",
    "trivial/first_wrong": "F1 of blaming the first step",
    "pair_accuracy": "accuracy on pairs",
    "first_accuracy": "accuracy of the first turn",
    "last_accuracy": "accuracy of the last turn",
    "fixed": "share of answers that turn right",
    "broken": "share of answers that turn wrong",
    "copy_rate": "share of outputs that only repeat",
    "disagreement": "share of last answers that differ",
}
"""What may be measured of any agent, in the words that follow its name."""
WHOLE = {
    "deduction/accuracy": "accuracy on outputs of programs",
    "abduction/accuracy": "accuracy on inputs of programs",
    "induction/accuracy": "accuracy on programs from examples",
    "solver/accuracy": "accuracy on questions about programs",
    "buffer/programs": "programs in the buffers",
    "buffer/length": "characters of a program in the buffers",
    "proposer/valid": "proposer: share of proposals that count",
    "proposer/solve_rate": "proposer: solve rate of its tasks",
    "proposer/wrong": "proposer: share of questions with another answer",
    "proposer/ambiguous": "proposer: share of questions with further answers",
    "proposer/hops": "proposer: hops of a question",
    "proposer/well_formed": "proposer: share of well-formed questions",
    "proposer/claim_right": "proposer: share of right answers of its own",
    "pool/size": "questions in the pool",
    "pool/malformed": "share of the pool that is no question",
    "grm/reward": "reward that the judge pays",
    "grm/gold_accuracy": "balanced accuracy of the judge that pays",
    "allowed_accuracy": "verifier: accuracy on corruptions of known kinds",
    "accepts_untouched": "verifier: share of untouched steps accepted",
    "fool_rate": "corruptor: share of wrong steps accepted",
    "invalid_rate": "corruptor: share of rewrites that are not wrong",
    "malformed_rate": "corruptor: share of rewrites that are no steps",
    "best_of_n": "accuracy of the best by written tests",
    "pass_1": "accuracy of any program",
    "label_noise": "share of passing programs that are wrong",
    "tester/validity": "tester: share of tests that are right",
    "tester/p01": "tester: chance that a wrong program passes a right test",
    "tester/p00": "tester: chance that a wrong program passes a wrong test",
    "tester/readable": "tester: share of tests that can be read",
    "chosen_level": "proposer: level that is chosen",
    "chosen_spread": "proposer: spread of its choices",
    "readable_choices": "proposer: share of choices that can be read",
    "hardest_accuracy": "accuracy on the hardest problems",
    "easiest_accuracy": "accuracy on the easiest problems",
    "collusion": "share of problems with an endorsed wrong majority",
    "consensus_wrong": "share of problems with a wrong majority",
    "endorsement": "share of wrong majorities that are endorsed",
    "verdict_consistency": "agreement of verdicts on one solution",
    "majority_share": "share of the most frequent answer",
    "label_accuracy": "accuracy of the most frequent answer",
    "reward_accuracy": "share of pseudo-rewards that are true",
    "known_accuracy": "accuracy on the problems learned from",
    "critic/names_answer": "critic: share of critiques with the right answer",
    "critic/useful_accuracy": "critic: accuracy on useful questions",
    "generator/useful_questions": "generator: share of useful questions",
    "generator/useful_first": "generator: share of useful first questions",
    "generator/outcome": "generator: reward of a dialogue",
    "generator/questions": "generator: questions of a dialogue",
    "simulator/leaked": "simulator: share of replies that give away",
    "generator/blank_accuracy": "generator: accuracy without documents",
    "generator/calls": "generator: requests of a trajectory",
    "generator/no_call": "generator: share of trajectories without a request",
    "reader/exact": "reader: share of exact notes",
    "reader/ignores_purpose": "reader: share of notes that ignore the purpose",
    "generator/ce_thought": "generator: loss after a thought",
    "generator/ce_shuffled": "generator: loss after another's thought",
    "generator/ce_plain": "generator: loss without a thought",
    "generator/ce_baseline": "generator: loss of the baseline",
    "generator/plain_accuracy": "generator: accuracy without a thought",
    "generator/thought_length": "generator: tokens of a thought",
    "generator/data_surprise": "generator: surprise of the data",
    "generator/late_errors": "generator: share of errors after the first step",
    "generator/over_claim": "generator: share of flawed proofs it calls perfect",
    "generator/proof_score": "generator: score of a proof",
    "generator/overfit": "generator: share of repairs that fit tests alone",
    "injector/valid": "injector: share of valid bugs",
    "injector/solved": "injector: share of attempts that repair its bugs",
    "injector/too_easy": "injector: share of bugs that all attempts repair",
    "injector/too_hard": "injector: share of bugs that no attempt repairs",
    "injector/changed_files": "injector: files that a bug changes",
    "judge/built_accuracy": "judge: accuracy on constructed pairs",
    "judge/consistency": "judge: share of pairs judged alike in both orders",
    "judge/first_rate": "judge: share of verdicts for the first",
    "judge/unreadable": "judge: share of verdicts that cannot be read",
    "meta_verifier/accuracy": "meta-verifier: accuracy",
    "meta_verifier/confirmed": "meta-verifier: share of analyses confirmed",
    "verifier/analysis_quality": "verifier: quality of an analysis",
    "verifier/analysis_unreadable": "verifier: share of analyses not readable",
    "verifier/defect_recall": "verifier: recall of defects",
    "verifier/false_alarm_rate": "verifier: share of sound proofs with a report",
    "verifier/score_accuracy": "verifier: accuracy of scores",
    "verifier/score_gap": "verifier: score that it gives less the true one",
    "verifier/score_on_right": "verifier: score of right proofs",
    "verifier/score_on_wrong": "verifier: score of wrong proofs",
    "verifier/own_score": "verifier: points that it gives",
    "verifier/human_accuracy": "verifier: accuracy on human pairs",
    "verifier/length_alone": "verifier: accuracy of length alone",
    "verifier/as_sampler": "verifier: accuracy of what it would write",
    "verifier/rank_by_length": "verifier: correlation of rank and length",
    "search/reached": "share of searches that reach a right answer",
    "slice_f1": "discriminator: F1 on slices",
    "slice_steps": "steps of a slice",
    "slice_length": "characters of a slice",
    "origin_auc": "area under ROC of style alone",
    "yes_on_reference": "discriminator: share of yes on references",
    "yes_on_right": "discriminator: share of yes on right slices",
    "yes_on_wrong": "discriminator: share of yes on wrong slices",
    "yes_on_right_answers": "discriminator: share of yes on right answers",
    "yes_on_wrong_answers": "discriminator: share of yes on wrong answers",
    "team/outcome": "team: accuracy of its answer",
    "team/vote": "team: accuracy of a vote of as many tokens",
}
"""What is not of an agent, or means something of one agent alone."""
WHEN = {"eval": "", "rollouts": ", while training", "learn": ""}
START, BENCH, FAMILY = "start_", "bench_", "accuracy_on_"


def title_metric(metric: str) -> str:
    """The words for a metric, or its name without where it was measured."""
    where, _, name = metric.partition("/")
    plain = metric.removeprefix("eval/")
    if metric in TITLES:
        return TITLES[metric]
    if where == "eval" and name in WHOLE:
        return WHOLE[name]
    if where == "eval" and name.startswith(FAMILY):
        return f"verifier: accuracy on {name.removeprefix(FAMILY).replace('_', ' ')}"
    agent, _, what = name.partition("/")
    said = _describe(what)
    return plain if said is None or where not in WHEN else f"{agent}: {said}{WHEN[where]}"


def _describe(what: str) -> str | None:
    """Say what is measured of an agent."""
    for prefix, of in ((START, ", first solutions"), (BENCH, ", bench")):
        if what.startswith(prefix) and (said := _describe(what.removeprefix(prefix))) is not None:
            return said + of
    if found := re.fullmatch(r"pass@(\d+)", what):
        return "accuracy" if found[1] == "1" else f"chance that one of {found[1]} is right"
    return OF_AGENT.get(what)
