"""Labelled proofs: derivations of known score, a generator's proofs labelled by votes; and the audit of verifiers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from milonga.context import Context
from milonga.evals.metrics import mean
from milonga.systems.deepseek_math_v2.credit import LEVELS, analysis_quality, auto_label, has_majority
from milonga.systems.deepseek_math_v2.roles import Analysis, Proof, make_graded_proof
from milonga.tasks.derivations import Examination, find_flaws, is_exact, score_from_flaws
from milonga.types import Problem, Rollout, Rollouts

Labelled = list[tuple[Rollout, float]]


def _examine_proof(proof: Rollout) -> Examination:
    """Examine a proof exactly: its flaws and its true score."""
    return find_flaws(proof.problem, proof.solution.steps, proof.solution.answer)


def get_score(rollout: Rollout) -> float:
    """Return the score of an analysis, or of a judgement of one, that could be parsed."""
    score = rollout.verification.score
    assert score is not None  # whatever is valid has one
    return score


def true_quality(analysis: Rollout) -> float:
    """Return the quality of an analysis by the exact rubric."""
    judged = analysis.parsed.get(Analysis)
    return analysis_quality(judged.defects, judged.score or 0.0, _examine_proof(analysis.target).flaws)


def make_graded_proofs(ctx: Context, problems: Sequence[Problem]) -> Labelled:
    """Make a derivation of each problem, with equally many of each score, and the score that an expert would give it."""
    out = []
    for number, problem in enumerate(problems):
        rng = ctx.rng("derivation", problem.id)
        score = LEVELS[number % len(LEVELS)]
        dialect = ctx.role("verifier").dialect
        proof = make_graded_proof(ctx.task, problem, rng, score, dialect, f"{ctx.turn}/proof/{problem.id}")
        out.append((proof, score))
    return out


def knows_flaws(ctx: Context) -> bool:
    """Whether the flaws of the generator's proofs are known exactly: the rubric is about steps in the task's own form, not
    about prose."""
    return is_exact(ctx.task) and ctx.role("generator").dialect != "plain"


def has_wrong_answer(proof: Rollout) -> bool:
    """Whether a proof gives an answer, in a box, that is wrong; without a box it may still be right."""
    return proof.correct == 0.0 and bool(proof.solution.answer)


def label_by_votes(ctx: Context, problems: Sequence[Problem], votes: tuple[int, int, int], confirm_at: float) -> Labelled:
    """Sample proofs of the generator and label them by `n` analyses, with `m` judgements of each that found something.

    See `auto_label`. Proofs without a clear vote are dropped, and counted. Where flaws are not known exactly, a wrong answer
    is worth 0, and nobody votes on it.
    """
    n, m, k = votes
    sampled = ctx.ask("generator", problems)
    wrong = {} if knows_flaws(ctx) else {proof.id: proof for proof in sampled if has_wrong_answer(proof)}
    proofs = sampled.select(lambda proof: proof.id not in wrong)
    analyses = filter_readable(ctx.ask("verifier", proofs, n))
    judged = filter_readable(ctx.ask("meta_verifier", analyses.select(lambda a: get_score(a) < 1), m))
    confirms: dict[str, list[bool]] = {}
    for judgement in judged:
        confirms.setdefault(judgement.target.id, []).append(get_score(judgement) >= confirm_at)
    out: Labelled = [(proof, 0.0) for proof in wrong.values()]
    for proof in proofs:
        mine = [a for a in analyses if a.target is proof]
        label = auto_label([get_score(a) for a in mine], [has_majority(confirms.get(a.id, [])) for a in mine], k)
        if label is None:
            ctx.dropped["generator: no label by votes"] += 1
        else:
            out.append((proof, label))
    return out


def filter_readable(rollouts: Rollouts) -> Rollouts:
    """Keep the rollouts that could be parsed."""
    return rollouts.select(lambda rollout: rollout.parsed.is_valid)


def mean_scores(rollouts: Rollouts) -> dict[str, float]:
    """Return target id to the mean of its parsable scores; targets without any are missing."""
    found: dict[str, list[float]] = {}
    for rollout in filter_readable(rollouts):
        found.setdefault(rollout.target.id, []).append(get_score(rollout))
    return {target: sum(scores) / len(scores) for target, scores in found.items()}


def vote_qualities(judged: Rollouts) -> dict[str, float]:
    """Return analysis id to the quality that most of its judgements give it; those that are tied, or unread, are missing."""
    found: dict[str, Counter[float]] = {}
    for judgement in filter_readable(judged):
        found.setdefault(judgement.target.id, Counter())[get_score(judgement)] += 1
    ranked = {analysis: scores.most_common(2) for analysis, scores in found.items()}
    return {analysis: top[0][0] for analysis, top in ranked.items() if len(top) == 1 or top[0][1] > top[1][1]}


class Finding(NamedTuple):
    """One analysis and the truth. `said` is its score, None if the analysis could not be parsed."""

    reported: Collection[int]
    said: float | None
    flaws: Mapping[int, float]


def defect_metrics(findings: Sequence[Finding]) -> dict[str, float | None]:
    """Compute precision and recall of reported defects, pooled over flawed proofs, quality by the rubric, and the scores.

    A verifier that reports nothing has no precision, and a recall of 0: the two are read together.
    """
    flawed = [f for f in findings if f.flaws]
    readable = [f for f in findings if f.said is not None]
    reported = [k in f.flaws for f in flawed for k in f.reported]
    true = [k in f.reported for f in flawed for k in f.flaws]
    return {
        "defect_precision": mean(reported),
        "defect_recall": mean(true),
        "false_alarm_rate": mean([bool(f.reported) for f in findings if not f.flaws]),
        "analysis_quality": mean([analysis_quality(f.reported, f.said or 0.0, f.flaws) for f in readable]),
        "score_accuracy": mean([f.said == score_from_flaws(f.flaws.values()) for f in findings]),
        "analysis_unreadable": mean([f.said is None for f in findings]),
    }


AUDITED = (
    *(f"verifier/{name}" for name in (*defect_metrics([]), "score_gap")),
    "meta_verifier/accuracy",
    "generator/proof_score",
    "generator/over_claim",
)
ANSWERED = ("verifier/score_on_right", "verifier/score_on_wrong", "verifier/analysis_unreadable", "meta_verifier/confirmed")


def audit(ctx: Context, count: int, generator: bool) -> dict[str, float | None]:
    """Compare verifier and meta-verifier with the exact truth of `count` derivations. For a generator that grades itself, also
    measure whether it claims more than its proofs are worth, and whether the verifier scores them too high."""
    problems = ctx.problems(count)
    checks = ctx.ask("verifier", Rollouts(proof for proof, _ in make_graded_proofs(ctx, problems)))
    findings = [(check.parsed.get(Analysis), check.parsed.is_valid, _examine_proof(check.target).flaws) for check in checks]
    found = defect_metrics([Finding(value.defects, value.score if valid else None, flaws) for value, valid, flaws in findings])
    judged = mean_scores(ctx.ask("meta_verifier", filter_readable(checks)))
    out = {f"verifier/{name}": value for name, value in found.items()}
    out["meta_verifier/accuracy"] = mean([judged.get(check.id) == true_quality(check) for check in filter_readable(checks)])
    if not generator:
        return out
    proofs = ctx.ask("generator", problems)
    given = mean_scores(ctx.ask("verifier", proofs))
    flawed = filter_readable(proofs).select(lambda proof: _examine_proof(proof).score < 1)
    return out | {
        "generator/proof_score": mean([_examine_proof(proof).score for proof in proofs]),
        "generator/over_claim": mean([proof.parsed.get(Proof).analysis.get(Analysis).score == 1 for proof in flawed]),
        "verifier/score_gap": mean([given[proof.id] - _examine_proof(proof).score for proof in proofs if proof.id in given]),
    }


def audit_by_answers(ctx: Context, count: int, confirm_at: float) -> dict[str, float | None]:
    """Compare the verifier's scores of the generator's proofs, and the generator's own, with their answers; and see how many
    analyses that found something the meta-verifier confirms."""
    proofs = ctx.ask("generator", ctx.problems(count))
    checks = ctx.ask("verifier", proofs)
    given, found = mean_scores(checks), filter_readable(checks).select(lambda check: get_score(check) < 1)
    judged, wrong = mean_scores(ctx.ask("meta_verifier", found)), filter_readable(proofs).select(has_wrong_answer)
    read = proofs.select(lambda proof: proof.id in given)
    by_answer = [mean([given[p.id] for p in read if of(p)]) for of in (lambda p: p.correct == 1.0, has_wrong_answer)]
    rates = (mean([not check.parsed.is_valid for check in checks]), mean([score >= confirm_at for score in judged.values()]))
    claims = mean([proof.parsed.get(Proof).analysis.get(Analysis).score == 1 for proof in wrong])
    return dict(zip(ANSWERED, (*by_answer, *rates), strict=True)) | {"generator/over_claim": claims}
