"""Judging solutions by a verifier of any kind. There are four kinds:

- a generative verifier of the whole solution is sampled, and its completion is parsed;
- a generative verifier of pieces is sampled for each piece, and its verdicts are joined;
- a yes/no verifier is sampled, and its score is the probability of the word for "right";
- a scorer writes nothing: it is evaluated on the solution once, and its values are taken at the ends of the steps.

Invariant: each gives rollouts whose targets are the solutions and whose parsed values are verifications. The entry point is
`Context.judge`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from milonga.errors import UserError
from milonga.roles import Role, Scorer, YesNoVerifier
from milonga.roles.yes_no import yes_probability
from milonga.types import Rollout, Rollouts, Segment

if TYPE_CHECKING:
    from milonga.context import Context


def judge(ctx: Context, agent: str, solutions: Rollouts, n: int, greedy: bool, tag: str) -> Rollouts:
    """Make `n` verifications of each solution by policy@tag of the agent; a scorer, which is deterministic, makes one."""
    role = ctx.role(agent)
    if isinstance(role, Scorer):
        return judge_by_scorer(ctx, agent, role, solutions, tag)
    if isinstance(role, YesNoVerifier):
        return judge_by_probability(ctx, agent, role, solutions, n, greedy, tag)
    pieces = [parts for solution in solutions if (parts := role.split_solution(solution)) is not None]
    if len(pieces) < len(solutions):
        return ctx.ask(agent, solutions, n, greedy, tag)
    verdicts = ctx.ask(agent, Rollouts(piece for parts in pieces for piece in parts), n, greedy, tag)
    return join_verdicts(ctx, agent, role, solutions, pieces, verdicts, n)


def judge_by_scorer(ctx: Context, agent: str, role: Scorer, solutions: Rollouts, tag: str) -> Rollouts:
    written = ctx.write(agent, solutions, [t.text for t in solutions])
    if role.kind == "implicit":
        live = ctx.compute_logprobs(agent, written, tag)
        numbers = ctx.compute_log_ratios(agent, written, live)
        written = Rollouts(replace(t, logprobs=found) for t, found in zip(written, live, strict=True))
    else:
        numbers = ctx.score_tokens(agent, written, tag)
    return Rollouts(replace(t, parsed=role.judge(t, found)) for t, found in zip(written, numbers, strict=True))


def join_verdicts(
    ctx: Context, agent: str, role: Role, solutions: Rollouts, pieces: Sequence[list[Rollout]], verdicts: Rollouts, n: int
) -> Rollouts:
    """Join verdicts on pieces into `n` verifications of each whole solution. These are not trained on."""
    found: dict[str, list[Rollout]] = {}
    for verdict in verdicts:
        found.setdefault(verdict.target.id, []).append(verdict)
    out = []
    for solution, parts in zip(solutions, pieces, strict=True):
        for number in range(n):
            said = [found[part.id][number] for part in parts if part.id in found]
            text, parsed = "\n".join(verdict.text for verdict in said), role.merge_verdicts(solution, said)
            one = Rollout.from_text(f"{ctx.turn}/{agent}/{solution.id}*{number}", agent, solution.problem, text, parsed)
            out.append(replace(one, targets=(solution,)))
    return Rollouts(out)


def judge_by_probability(
    ctx: Context, agent: str, role: YesNoVerifier, solutions: Rollouts, n: int, greedy: bool, tag: str
) -> Rollouts:
    """Judge by a yes/no verifier: several sampled checks make one verification, scored by the probability of its word.

    Greedy checks are all alike, so that one is enough; the direct form samples none, and only needs a place for its word.
    """
    each = 1 if greedy else role.rationales
    if role.form == "direct":
        repeated = [solution for solution in solutions for _ in range(n)]
        checks = ctx.write(agent, repeated, [role.write((), True)] * len(repeated))
    else:
        checks = ctx.ask(agent, solutions, n * each, greedy, tag)
    found = compute_word_chances(ctx, agent, role, checks, tag)
    out = []
    for first in range(0, len(checks), each):
        group = slice(first, first + each)
        parsed = role.combine_checks([t.parsed for t in checks[group]], found[group])
        out.append(replace(checks[first], parsed=parsed))
    return Rollouts(out)


def compute_word_chances(ctx: Context, agent: str, role: YesNoVerifier, checks: Rollouts, tag: str) -> list[float]:
    """Probability of the word for "right" at the final verdict of each check; NaN if it has none.

    The place is found in token space, as the last of the two words: no sampled text is encoded again.
    """
    policy = ctx.policy(agent)
    words = [encode_one_token(ctx, agent, word) for word in role.words]
    places = {row: at for row, check in enumerate(checks) if (at := find_final_verdict(words, check)) is not None}
    # Checks of one solution are often identical, and need to be scored only once.
    before = {row: checks[row].ids[:at].tobytes() for row, at in places.items()}
    distinct = {key: row for row, key in before.items()}
    asked = [replace_verdict(checks[row], places[row], word, policy) for row in distinct.values() for word in words]
    found = [float(array[-1]) for array in ctx.compute_logprobs(agent, Rollouts(asked), tag)]
    said = {key: yes_probability(found[2 * i], found[2 * i + 1], role.normalise) for i, key in enumerate(distinct)}
    return [said[before[row]] if row in before else float("nan") for row in range(len(checks))]


def encode_one_token(ctx: Context, agent: str, word: str) -> int:
    ids = ctx.engine.encode_completion(ctx.policy(agent), word, end=False).ids
    if len(ids) != 1:
        raise UserError(f"the model of the {agent} writes '{word}' as {len(ids)} tokens: a verdict must be one")
    return int(ids[0])


def find_final_verdict(words: Sequence[int], check: Rollout) -> int | None:
    """Find the position of a check's final verdict: the last of the two words (right, wrong) in its completion; None if it
    has no valid one."""
    start, final = check.segments[-1].start, check.parsed.value.final
    found = np.flatnonzero(np.isin(check.ids[start:], words))
    if final is None or not len(found):
        return None
    at = start + int(found[-1])
    return at if check.ids[at] == words[0 if final else 1] else None


def replace_verdict(check: Rollout, at: int, word: int, policy: str) -> Rollout:
    """Copy a check up to a position and put a word there, as the only trained token: its log-probability is to be scored."""
    segments = (Segment("prompt", 0, at), Segment(check.agent, at, at + 1, policy, trained=True))
    ids = np.append(check.ids[:at], word)
    return replace(check, ids=ids, segments=segments, logprobs=np.zeros(at + 1), steps=(), temperature=1.0)
