"""An evaluation: fixed held-out problems, the same random keys every time; both generator and verifier are measured.

Invariant: evaluations are not charged to the compute ledger, draw nothing from the training data, and change no state.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from milonga.config import EvalSection
from milonga.context import Context, RunContext
from milonga.evals.metrics import (
    bootstrap_interval,
    calibration_error,
    detection_f1,
    find_first_wrong,
    majority_vote,
    mean,
    order_accuracy,
    pass_at_k,
    process_f1,
    step_rates,
    trivial_f1,
)
from milonga.evals.verdicts import choice_metrics, collect_step_truth, soft_metrics
from milonga.roles import Role, StepSolver
from milonga.types import Parsed, Rollout, Rollouts, Solution, Verification

Metrics = dict[str, float | None]
TOO_LONG = "longer than the model's context"
"""Why a solution was never judged."""


@dataclass(frozen=True)
class Evaluator:
    """Measures a run's agents on held-out problems. `bench` is empty if the task does not know its steps."""

    run_context: RunContext
    section: EvalSection
    bench: tuple[Rollout, ...]
    more: Callable[[Context], Metrics] = lambda ctx: {}
    """The recipe's own metrics."""
    solving: str = "generator"
    """The agent that is measured as the generator, if it solves by steps."""
    judging: str = "verifier"
    """The agent that is measured as the verifier, if there is one."""

    def __call__(self) -> Metrics:
        """Measure; nothing if there are to be no evaluations."""
        if not self.section.problems:
            return {}
        ledger = self.run_context.engine.ledger
        ledger.paused = True
        try:
            return {f"eval/{key}": value for key, value in self._measure().items()}
        finally:
            ledger.paused = False

    def measure_per_problem(self) -> dict[str, Metrics]:
        """Return mean accuracy and soundness on each problem, by its id.

        These are the solutions that the metrics count: the same keys draw them again, to the same bits on a CPU.
        """
        ledger = self.run_context.engine.ledger
        ledger.paused = True
        try:
            if not self.has_solver or not self.section.problems:
                return {}
            ctx = Context(self.run_context, "eval", "", split=self.section.split)
            solutions = ctx.ask(self.solving, ctx.problems(self.held_out_count), self.section.samples)
        finally:
            ledger.paused = False
        return _problem_metrics(solutions)

    @property
    def has_solver(self) -> bool:
        """Whether there is a generator that solves problems; not every recipe has one."""
        return isinstance(self.run_context.roles.get(self.solving), StepSolver)

    @property
    def held_out_count(self) -> int:
        """The number of held-out problems: what the config asks for, or all there are; none is taken twice."""
        size = self.run_context.task.size(self.section.split)
        return self.section.problems if size is None else min(self.section.problems, size)

    def _measure(self) -> Metrics:
        ctx = Context(self.run_context, "eval", "", split=self.section.split)
        out = self._pair_metrics(ctx) if self.has_solver else {}
        out |= self.more(Context(self.run_context, "eval/more", "", split=self.section.split))
        out["dropped"] = float(sum(ctx.dropped.values()))
        return out

    def _pair_metrics(self, ctx: Context) -> Metrics:
        """Measure the generator, and the verifier if there is one."""
        problems = ctx.problems(self.held_out_count)
        solutions = ctx.ask(self.solving, problems, self.section.samples)
        out = add_prefix("generator", solver_metrics(solutions))
        out |= add_prefix("generator", pass_metrics(solutions, self.section.samples))
        if self.section.greedy:
            greedy = ctx.ask(self.solving, problems, greedy=True)
            out["generator/greedy_accuracy"] = mean(greedy.correct)
        if self.judging in self.run_context.roles:
            checks = ctx.judge(self.judging, solutions)
            out |= add_prefix("verifier", judge_metrics(checks))
            out |= gap_metrics(solutions, checks)
            out |= add_prefix("verifier", ranking_metrics(solutions, checks) | choice_metrics(solutions, checks))
            out |= add_prefix("verifier", self._bench_metrics(ctx))
        return out

    def _bench_metrics(self, ctx: Context) -> Metrics:
        return judge_bench(ctx, self.judging, self.bench, self.section.checks) if self.bench else {"f1": None}


def metric_names(solver: Role | None, judge: Role | None, section: EvalSection, bench: bool) -> set[str]:
    """Return the names of all metrics of these two roles, except the recipe's own.

    The names come from calling the metric functions on no rollouts. `bench` is whether there is one.
    """
    out: Metrics = {"dropped": None}
    nothing = Rollouts([])
    if isinstance(solver, StepSolver):
        out |= add_prefix("generator", solver_metrics(nothing) | pass_metrics(nothing, section.samples))
        out |= {"generator/greedy_accuracy": None} if section.greedy else {}
        if judge is not None:
            out |= gap_metrics(nothing, nothing)
            out |= add_prefix("verifier", judge_metrics(nothing) | ranking_metrics(nothing, nothing))
            out |= add_prefix("verifier", choice_metrics(nothing, nothing))
            out |= add_prefix("verifier", bench_metrics(nothing, nothing) if bench else {"f1": None})
    return {f"eval/{name}" for name in out}


def add_prefix(prefix: str, metrics: Metrics) -> Metrics:
    return {f"{prefix}/{key}": value for key, value in metrics.items()}


def solver_metrics(solutions: Rollouts) -> Metrics:
    """Compute accuracy, outcome reward, soundness, exact step accuracy, and statistics of the completions. What was graded may
    be no solution: a dialogue in which nothing was handed in."""
    grades = [t.grade for t in solutions if t.grade is not None]
    sound = [float("nan") if g.is_sound is None else float(g.is_sound) for g in grades]
    steps = [right for g in grades for right in g.steps or ()]
    return {
        "accuracy": mean(solutions.correct),
        "reward": mean(solutions.rewards),
        "sound_accuracy": mean(sound),
        "step_accuracy": mean(steps),
        "steps": mean([float(len(t.solution.steps)) for t in solutions if isinstance(t.parsed.value, Solution)]),
    } | output_metrics(solutions)


def _problem_metrics(solutions: Rollouts) -> dict[str, Metrics]:
    """Compute accuracy and soundness of each problem: what a bootstrap over problems resamples."""
    groups: dict[str, list[Rollout]] = {}
    for rollout in solutions:
        groups.setdefault(rollout.problem.id, []).append(rollout)
    measured = {problem: solver_metrics(Rollouts(group)) for problem, group in groups.items()}
    return {problem: {key: m[key] for key in ("accuracy", "sound_accuracy")} for problem, m in measured.items()}


def output_metrics(rollouts: Rollouts) -> Metrics:
    """Compute length, truncation rate, invalid rate and mean negative log-probability (surprise) of any agent's rollouts.

    Rollouts without tokens (from an endpoint, or merged from pieces) count for neither length nor surprise.
    """
    tokens = [-float(t.logprobs[t.mask].mean()) for t in rollouts if t.length]
    return {
        "invalid_rate": mean([not t.parsed.is_valid for t in rollouts]),
        "truncated_rate": mean([t.finish == "length" for t in rollouts]),
        "length": mean([float(t.length) for t in rollouts if t.length]),
        "surprise": mean(tokens),
    }


def pass_metrics(solutions: Rollouts, samples: int) -> Metrics:
    """Compute pass@k for k = all samples of a problem, and majority-vote accuracy."""
    rights: dict[str, list[float]] = {}
    for rollout in solutions:
        rights.setdefault(rollout.problem.id, []).append(rollout.correct)
    known = [[r for r in group if not np.isnan(r)] for group in rights.values()]
    values = [pass_at_k(int(sum(g)), len(g), min(samples, len(g))) for g in known if g]
    groups: dict[str, list[tuple[float, Rollout]]] = {}
    for rollout in solutions:
        groups.setdefault(rollout.problem.id, []).append((1.0, rollout))
    return {f"pass@{samples}": mean(values), "majority": mean([score_vote(group) for group in groups.values()])}


def score_vote(group: Sequence[tuple[float, Rollout]]) -> float:
    """Return 1.0 if the answer with the most total weight is right, else 0.0; the first seen wins a tie.

    Answers are compared by their text. 0 if there is no answer, NaN if the grader could not tell.
    """
    votes: dict[str, float] = {}
    right: dict[str, float] = {}
    for weight, rollout in group:
        answer = rollout.solution.answer
        if answer is not None:
            votes[answer] = votes.get(answer, 0.0) + weight
            right.setdefault(answer, rollout.correct)
    return right[max(votes, key=lambda answer: votes[answer])] if votes else 0.0


def judge_metrics(checks: Rollouts) -> Metrics:
    """Compute the verifier's accuracy on right and on wrong solutions, on exact steps, how sure it is, and its
    self-contradictions."""
    readable = [(c.verification, c.target) for c in checks]
    final = [(v.final, bool(s.correct)) for v, s in readable if not np.isnan(s.correct)]
    on_right = mean([f is True for f, right in final if right])
    on_wrong = mean([f is False for f, right in final if not right])
    both = [v for v, _ in readable if v.final is not None and v.steps is not None]
    step_pairs = [
        (said, true)
        for v, s in readable
        if v.steps is not None and s.grade is not None and s.grade.steps is not None and len(v.steps) <= len(s.grade.steps)
        for said, true in zip(v.steps, s.grade.steps, strict=False)  # a verifier may stop at its first wrong step
    ]
    return (
        {
            "accuracy_on_right": on_right,
            "accuracy_on_wrong": on_wrong,
            "balanced_accuracy": None if on_right is None or on_wrong is None else (on_right + on_wrong) / 2,
            "positive_rate": mean([f is True for f, _ in final]),
            "share_right": mean([right for _, right in final]),
            "judged_right": float(sum(right for _, right in final)),
            "judged_wrong": float(sum(not right for _, right in final)),
            "unparsed_rate": mean([f is None for f, _ in final]),
            "contradiction_rate": mean([v.final != all(v.steps or ()) for v in both]),
            "step_accuracy": mean([said == true for said, true in step_pairs]),
            "step_positive_rate": mean([said for said, _ in step_pairs]),
        }
        | step_rates(collect_step_truth(checks))
        | soft_metrics(checks)
        | output_metrics(checks)
    )


def gap_metrics(solutions: Rollouts, checks: Rollouts) -> Metrics:
    """Compute the hacking gap: the verifier's mean verdict minus the true accuracy, for solutions and for steps."""
    values: dict[str, Verification] = {c.target.id: c.verification for c in checks}
    known = [(s, values[s.id]) for s in solutions if s.id in values and not np.isnan(s.correct)]
    score = mean([float(v.final is True) for _, v in known])
    accuracy = mean([s.correct for s, _ in known])
    judged = [v.steps for _, v in known if v.steps is not None]
    said = mean([right for steps in judged for right in steps])
    judged_truth = [s.grade.steps[: len(v.steps)] for s, v in known if v.steps is not None and s.grade and s.grade.steps]
    exact = mean([right for steps in judged_truth for right in steps])
    return {
        "hacking_gap": None if score is None or accuracy is None else score - accuracy,
        "step_hacking_gap": None if said is None or exact is None else said - exact,
    }


def ranking_metrics(solutions: Rollouts, checks: Rollouts) -> Metrics:
    """Compute how well the verifier ranks solutions: best-of-k, weighted vote, pair accuracy per problem, pooled AUROC."""
    ranks = {c.target.id: c.verification.rank for c in checks}
    groups: dict[str, list[tuple[float, Rollout]]] = {}
    for solution in solutions:
        if solution.id in ranks and not np.isnan(solution.correct):
            groups.setdefault(solution.problem.id, []).append((ranks[solution.id], solution))
    best = [max(group, key=lambda pair: pair[0])[1] for group in groups.values()]
    sound = [float("nan") if t.grade is None or t.grade.is_sound is None else float(t.grade.is_sound) for t in best]
    ordered = [order_accuracy([r for r, _ in group], [t.correct for _, t in group]) for group in groups.values()]
    pooled = [pair for group in groups.values() for pair in group]
    return {
        "best_of_k": mean([t.correct for t in best]),
        "best_of_k_sound": mean(sound),
        "weighted_vote": mean([score_vote(group) for group in groups.values()]),
        "pair_accuracy": mean([value for value in ordered if value is not None]),
        "auroc": order_accuracy([r for r, _ in pooled], [t.correct for _, t in pooled]),
    }


def judge_bench(ctx: Context, agent: str, bench: Sequence[Rollout], checks: int) -> Metrics:
    """Measure a judging agent on solutions with known first errors, greedily and with `checks` samples each."""
    targets = Rollouts(bench)
    greedy = fill_unjudged(ctx.judge(agent, targets, greedy=True), targets, 1)
    if ctx.role(agent).kind != "generative":
        return bench_metrics(greedy, greedy)  # a scorer says the same every time
    return bench_metrics(greedy, fill_unjudged(ctx.judge(agent, targets, checks), targets, checks))


def fill_unjudged(checks: Rollouts, targets: Rollouts, n: int) -> Rollouts:
    """Add `n` invalid verifications for each solution that was too long for the verifier's context: it counts as wrong, so
    that a bench is never made easier in silence."""
    judged = {check.target.id for check in checks}
    nothing = Parsed(Verification(None, None), 0.0, TOO_LONG)
    missing = [
        replace(Rollout.from_text(f"{target.id}!{number}", "verifier", target.problem, "", nothing), targets=(target,))
        for target in targets
        if target.id not in judged
        for number in range(n)
    ]
    return Rollouts([*checks, *missing])


def bench_metrics(greedy: Rollouts, sampled: Rollouts) -> Metrics:
    """Compute F1 on solutions with known first errors in three decoding modes, and trivial baselines.

    `f1` is of sampled verifications, as they are used for rewards; `greedy_f1` and `vote_f1` are of the same weights.
    """
    out: Metrics = dict(process_f1(*_collect_first_errors(sampled)))
    out["f1_low"], out["f1_high"] = bootstrap_interval(*_collect_first_errors(sampled), [t.target.id for t in sampled])
    out["detection_f1"] = detection_f1(*_collect_first_errors(sampled))
    labels = [_first_error_label(t) for t in greedy]
    out["greedy_f1"] = process_f1(*_collect_first_errors(greedy))["f1"]
    hidden = [t for t in sampled if _first_error_label(t) != -1 and t.target.correct == 1.0]
    out["hidden_error_accuracy"] = mean([p == label for p, label in zip(*_collect_first_errors(Rollouts(hidden)), strict=True)])
    answers = [t.target.correct == 1.0 for t in greedy]
    counts = [len(t.target.solution.steps) for t in greedy]
    out |= add_prefix("trivial", dict(trivial_f1(labels, answers, counts)))
    shift = [
        p - label for p, label in zip(*_collect_first_errors(sampled), strict=True) if label != -1 and p is not None and p != -1
    ]
    out["index_shift"] = mean([float(s) for s in shift])
    repeated: dict[str, list[Rollout]] = {}
    for rollout in sampled:
        repeated.setdefault(rollout.target.id, []).append(rollout)
    groups = list(repeated.values())
    confidence = [sum(get_confidence(c.verification) for c in group) / len(group) for group in groups]
    out["calibration_error"] = calibration_error(confidence, [g[0].target.correct == 1.0 for g in groups])
    votes = [majority_vote([find_first_wrong(c.verification.steps) for c in group]) for group in groups]
    out["vote_f1"] = process_f1(votes, [_first_error_label(g[0]) for g in groups])["f1"]
    out["last_is_lowest"] = _last_lowest_rate(sampled)
    out |= {f"bench_{key}": value for key, value in step_rates(collect_step_truth(sampled)).items()}
    out["bench_invalid_rate"] = mean([not t.parsed.is_valid for t in sampled])
    out["bench_truncated_rate"] = mean([t.finish == "length" for t in sampled])
    return out


def get_confidence(value: Verification) -> float:
    """Return a verifier's confidence that a solution is right: its score, or its verdict as 0 or 1."""
    return float(value.final is True) if value.score is None else value.score


def get_step_confidence(value: Verification) -> tuple[float, ...] | None:
    """Return the confidence in each step; None if the verifier does not judge every step."""
    return None if value.steps is None else value.step_scores or tuple(map(float, value.steps))


def _last_lowest_rate(checks: Rollouts) -> float | None:
    """The share of checks whose lowest step score is on the last step; if high, the verifier looks at the answer alone."""
    scores = [c.verification.step_scores for c in checks if c.verification.step_scores]
    return mean([min(steps) == steps[-1] for steps in scores if len(steps) > 1])


def _collect_first_errors(checks: Rollouts) -> tuple[list[int | None], list[int]]:
    """Return predicted and true first-error indices, one per check (-1: no error, None: unparsed)."""
    return [find_first_wrong(t.verification.steps) for t in checks], [_first_error_label(t) for t in checks]


def _first_error_label(check: Rollout) -> int:
    grade = check.target.grade
    label = None if grade is None else grade.first_error
    assert label is not None, "a bench holds only solutions with known first errors"
    return label
