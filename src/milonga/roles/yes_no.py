"""A verifier whose score is the probability of one word: "Yes" after a written check, or at once (GenRM, arXiv 2408.15240).

Both forms write an ordinary verdict, so that both learn by plain imitation. The score is not sampled but
looked up: the probability of one word against the other, after as many sampled checks as `rationales` says.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, NamedTuple

import numpy as np

from milonga.errors import UserError
from milonga.roles.base import ROLES, Dialect, JudgeContext, Role
from milonga.roles.replies import read_yes_no, swap_yes_no
from milonga.roles.verifier import StepVerifier, parse_tagged, render_tagged_prompt, score_verification
from milonga.types import Parsed, Part, Problem, Prompt, Rollout, Rollouts, Segment, Verification

Form = Literal["cot", "direct"]
Voting = Literal["mean_prob", "vote"]

TAGGED_COT = """\
You are given a problem and a solution made of {count} steps. Check the steps one by one; do not trust the result.
Inside <step_verification> and </step_verification> write exactly {count} checks, each inside <step> and </step>, each \
ending in \\boxed{{CORRECT}} or \\boxed{{INCORRECT}}. Then say inside <verdict> and </verdict> whether the final answer is \
right, as the one word Yes or No on a line of its own.

Problem:
"""
QUESTION = "Is the answer correct (Yes/No)?"
"""The question that a verdict in prose follows."""
PLAIN_COT = f"""

Check this solution step by step. Do not trust it: redo every calculation, and ask whether each step follows from the problem \
and from the steps before it. Then say whether its final answer is right. The last line of your reply must be

Verification: {QUESTION} X

with Yes or No in place of X."""
TAGGED_DIRECT = """\
You are given a problem and a solution. Say whether the final answer of the solution is right: answer with the one word Yes \
or No and nothing else.

Problem:
"""


@ROLES.register("yes_no")
class YesNoVerifier(Role):
    """Judges a solution by one word.

    terse: `+` or `-`. The form `cot` is that of the step verifier, whose last line `=+` or `=-` holds the word; the form
    `direct` asks `=` and gets the word alone. tagged: Yes or No, behind checks in tags or alone.
    The word stands on a line of its own, where no tokenizer can join it to what comes before. plain: Yes or No, behind a check
    in prose and the question, or alone.
    """

    name = "yes_no"
    judges = True

    def __init__(
        self,
        dialect: Dialect,
        form: Form = "cot",
        rationales: int = 8,
        voting: Voting = "mean_prob",
        normalise: bool = True,
    ) -> None:
        super().__init__(dialect)
        self.form, self.voting, self.normalise = form, voting, normalise
        self.rationales = rationales if form == "cot" else 1
        self.steps = StepVerifier(dialect)

    @property
    def words(self) -> tuple[str, str]:
        """Right and wrong; each must be one token of the model."""
        return ("+", "-") if self.dialect == "terse" else ("Yes", "No")

    @property
    def stop(self) -> tuple[str, ...]:
        return ("</verdict>",) if self.dialect == "tagged" and self.form == "cot" else ()

    def prompt(self, problem: Problem, target: Rollout | None) -> Prompt:
        """Render the form's prompt. A model trained to check first has no meaningful word probability without the check."""
        if target is None:
            raise ValueError("a verifier needs a solution to judge")
        if self.dialect == "terse":
            asked = self.steps.prompt(problem, target)
            return asked if self.form == "cot" else (*asked[:-1], Part("\n="))
        if self.dialect == "plain":
            wanted = PLAIN_COT if self.form == "cot" else f"\n\n{QUESTION} Reply with the one word Yes or No."
            shown = (Part("Problem:\n"), Part(problem.text, foreign=True), Part("\n\nSolution:\n"))
            return (*shown, Part(target.text, foreign=True), Part(wanted))
        if self.form == "cot":
            return render_tagged_prompt(TAGGED_COT, problem, target, "Verification:")
        return render_tagged_prompt(TAGGED_DIRECT, problem, target, "Is the final answer right?")

    def parse(self, text: str, target: Rollout | None) -> Parsed:
        if target is None:
            raise ValueError("a verification is read against the solution it judges")
        if self.dialect == "plain":
            return self._parse_plain(text, target)
        if self.form == "direct":
            said = self.parse_word(text)
            return Parsed(Verification(None, said), float(said is not None), None if said is not None else "not one word")
        if self.dialect == "terse":
            return self.steps.parse(text, target)
        return score_verification(
            parse_tagged(text, "verdict", self.parse_word), len(target.solution.steps), target.parsed.format
        )

    def _parse_plain(self, text: str, target: Rollout) -> Parsed:
        """Parse a check in prose: its yes or no, and verdicts on all steps where it happens to give them. A word that does not
        follow the question costs half of the format in the form `cot`."""
        found, count = read_yes_no(text), len(target.solution.steps)
        if found is None:
            return Parsed(Verification(None, None), 0.0, "no yes or no at the end")
        steps = self.steps.parse(text, target).get(Verification).steps if self.form == "cot" else None
        steps = steps if steps is not None and len(steps) == count else None
        return Parsed(Verification(steps, found.right), 1.0 if found.plainness == 3 or self.form == "direct" else 0.5)

    def parse_word(self, text: str) -> bool | None:
        found = {self.words[0]: True, self.words[1]: False}
        return found.get(text if self.dialect == "terse" else text.strip())

    def write(self, verdicts: Sequence[bool], final: bool, analyses: Sequence[str] | None = None) -> str:
        """Write the text that parses as these verdicts; in the direct form as the final verdict alone."""
        word = self.words[0] if final else self.words[1]
        if self.form == "direct":
            return word
        text = self.steps.write(verdicts, final, analyses)
        if self.dialect == "terse":
            return text
        if self.dialect == "plain":
            return text[: text.rindex("Final verdict:")] + f"Verification: {QUESTION} {word}"
        return text[: text.rindex("<final_verification>")] + f"<verdict>\n{word}\n</verdict>"

    def judge(self, ctx: JudgeContext, agent: str, solutions: Rollouts, n: int, greedy: bool, tag: str) -> Rollouts:
        """Several sampled checks make one verification, scored by the probability of its word.

        Greedy checks are all alike, so that one is enough; the direct form samples none, and only needs a place for its word.
        """
        each = 1 if greedy else self.rationales
        if self.form == "direct":
            repeated = [solution for solution in solutions for _ in range(n)]
            checks = ctx.write(agent, repeated, [self.write((), True)] * len(repeated))
        else:
            checks = ctx.ask(agent, solutions, n * each, greedy, tag)
        chances = compute_word_chances(ctx, agent, self, checks, tag)
        verifications = []
        for first in range(0, len(checks), each):
            group = slice(first, first + each)
            parsed = self.combine_checks([check.parsed for check in checks[group]], chances[group])
            verifications.append(replace(checks[first], parsed=parsed))
        return Rollouts(verifications)

    def combine_checks(self, all_parsed: Sequence[Parsed], chances: Sequence[float]) -> Parsed:
        """Combine several sampled checks, and the probability of the right word after each, into one verification.

        mean_prob is the mean of the probabilities, vote the share of checks with a positive verdict. Checks without a verdict
        (a probability of NaN) are left out; if none is left, there is no judgement.
        """
        counted = [(r.get(Verification), c) for r, c in zip(all_parsed, chances, strict=True) if not math.isnan(c)]
        form = sum(r.format for r in all_parsed) / len(all_parsed)
        if not counted:
            return Parsed(Verification(None, None), form, "no check ends in a verdict")
        said = [c if self.voting == "mean_prob" else float(v.final is True) for v, c in counted]
        score = sum(said) / len(said)
        judged = [v.steps for v, _ in counted if v.steps is not None]
        shares = tuple(sum(column) / len(judged) for column in zip(*judged, strict=True)) if judged else None
        steps = tuple(share >= 0.5 for share in shares) if shares is not None else None
        wanted = self.form == "cot" and self.dialect != "plain"
        unclear = "no check judges every step" if steps is None and wanted else None
        return Parsed(Verification(steps, score >= 0.5, score=score, step_scores=shares), form, unclear)


def yes_probability(yes: float, no: float, normalise: bool = True) -> float:
    """Return p(yes) from two log-probabilities; `normalise` divides by p(yes) + p(no)."""
    return 1 / (1 + math.exp(min(no - yes, 700.0))) if normalise else math.exp(yes)


def compute_word_chances(ctx: JudgeContext, agent: str, role: YesNoVerifier, checks: Rollouts, tag: str) -> list[float]:
    """Probability of the word for "right" at the final verdict of each check; NaN if it has none.

    The place is found in token space, as the last of the two words (in prose by the characters that each token completes): no
    sampled text is encoded again.
    """
    policy = ctx.policy(agent)
    if role.dialect == "plain":
        found_places = [_find_verdict_in_prose(ctx, agent, check) for check in checks]
    else:
        words = (_encode_one_token(ctx, agent, role.words[0]), _encode_one_token(ctx, agent, role.words[1]))
        found_places = [_find_final_verdict(words, check) for check in checks]
    places = {row: place for row, place in enumerate(found_places) if place is not None}
    # Checks of one solution are often identical, and need to be scored only once.
    before = {row: (checks[row].ids[: place.at].tobytes(), place.words) for row, place in places.items()}
    distinct = {key: row for row, key in before.items()}
    asked = [
        _replace_verdict(checks[row], places[row].at, word, policy) for row in distinct.values() for word in places[row].words
    ]
    found = [float(array[-1]) for array in ctx.compute_logprobs(agent, Rollouts(asked), tag)]
    said = {key: yes_probability(found[2 * i], found[2 * i + 1], role.normalise) for i, key in enumerate(distinct)}
    return [said[before[row]] if row in before else float("nan") for row in range(len(checks))]


def _encode_one_token(ctx: JudgeContext, agent: str, word: str) -> int:
    ids = ctx.engine.encode_completion(ctx.policy(agent), word, end=False).ids
    if len(ids) != 1:
        raise UserError(f"the model of the {agent} writes '{word}' as {len(ids)} tokens: a verdict must be one")
    return int(ids[0])


class _Place(NamedTuple):
    """Where the verdict of a check stands among its ids, and the tokens for right and wrong that could stand there."""

    at: int
    words: tuple[int, int]


def _find_verdict_in_prose(ctx: JudgeContext, agent: str, check: Rollout) -> _Place | None:
    """Find the token in which the yes or no of a check in prose begins, and the token that would begin the other word there,
    written alike; None if there is no verdict, or if both words begin with the same token."""
    found = read_yes_no(check.text)
    if found is None or check.chars is None:
        return None
    at = int(np.searchsorted(check.chars, found.at, side="right"))
    word = check.text[found.at : found.at + (3 if found.right else 2)]
    lead = check.text[int(check.chars[at - 1]) : found.at] if at else ""
    other = ctx.engine.encode_completion(ctx.policy(agent), lead + swap_yes_no(word), end=False).ids
    if not len(other) or other[0] == check.ids[at]:
        return None
    own, swapped = int(check.ids[at]), int(other[0])
    return _Place(at, (own, swapped) if found.right else (swapped, own))


def _find_final_verdict(words: tuple[int, int], check: Rollout) -> _Place | None:
    """Find the position of a check's final verdict: the last of the two words (right, wrong) in its completion; None if it
    has no valid one."""
    start, final = check.segments[-1].start, check.verification.final
    found = np.flatnonzero(np.isin(check.ids[start:], words))
    if final is None or not len(found):
        return None
    at = start + int(found[-1])
    return _Place(at, words) if check.ids[at] == words[0 if final else 1] else None


def _replace_verdict(check: Rollout, at: int, word: int, policy: str) -> Rollout:
    """Copy a check up to a position and put a word there, as the only trained token: its log-probability is to be scored."""
    segments = (Segment("prompt", 0, at), Segment(check.agent, at, at + 1, policy, trained=True))
    ids = np.append(check.ids[:at], word)
    return replace(check, ids=ids, segments=segments, logprobs=np.zeros(at + 1), steps=(), temperature=1.0)
