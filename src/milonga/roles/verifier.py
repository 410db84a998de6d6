"""The generative step verifier: from a problem and a solution, it writes one verdict per step and a final verdict."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import takewhile
from typing import NamedTuple

import numpy as np

from milonga.roles.base import ROLES, Dialect, Role
from milonga.roles.solver import NEXT_EXAMPLE, StepSolver, demonstration_to_rollout
from milonga.roles.tags import cut_tags, find_frame, find_loose_frame, find_tags
from milonga.roles.templates import load_packaged_prompt
from milonga.roles.verdicts import Verdict, read_verdicts
from milonga.tasks.base import Task
from milonga.types import Parsed, Part, Problem, Prompt, Rollout, Solution, Verification

VERIFIER_PROMPT = """\
You are given a problem and a solution made of {count} steps. Check the steps one by one; do not trust the result.
Inside <step_verification> and </step_verification> write exactly {count} checks, each inside <step> and </step>, each \
ending in \\boxed{{CORRECT}} or \\boxed{{INCORRECT}}. Then judge whether the final answer is right, inside \
<final_verification> and </final_verification>, as one \\boxed{{CORRECT}} or \\boxed{{INCORRECT}}.

Problem:
"""
VERDICT = re.compile(r"\\boxed\{\s*(CORRECT|INCORRECT)\s*\}[\s.]*", re.IGNORECASE)
READABLE_SOLUTION = 0.6
"""A wrong number of verdicts is the verifier's fault only if the solution's own format score reaches this."""


class _Verdicts(NamedTuple):
    """The common result of parsing both dialects, before the format is scored."""

    framed: bool
    """Whether the output is nothing but its frame."""
    verdicts: list[bool | None]
    """One for each check; None where a check has no single verdict at its end."""
    ends: list[int]
    final: bool | None
    clean: bool


class _Mark(NamedTuple):
    """A verdict in a form that models are trained in: what it says, and where its word begins in the text."""

    right: bool
    at: int


@ROLES.register("verifier")
class StepVerifier(Role):
    """Judges each step of a solution and then the whole.

    plain: a line for each step that ends in CORRECT or INCORRECT, and a last one for the whole; it may stop after the first
    wrong step. tagged: boxed verdicts in two tags. terse: a line per step, `analysis` then `+` or `-`, and `=+` or `=-`.
    `noise` is how often the teacher of demonstrations is wrong about one step.
    """

    name = "verifier"
    judges = True

    def __init__(self, dialect: Dialect, noise: float = 0.0) -> None:
        super().__init__(dialect)
        self.noise = noise

    @property
    def stop(self) -> tuple[str, ...]:
        if self.dialect == "plain":
            return (NEXT_EXAMPLE,) if self.example else ()
        return () if self.dialect == "terse" else ("</final_verification>",)

    def prompt(self, problem: Problem, target: Rollout | None) -> Prompt:
        if target is None:
            raise ValueError("a verifier needs a solution to judge")
        if self.dialect == "terse":
            return (
                Part("?"),
                Part(problem.text, foreign=True),
                Part("\n"),
                Part(target.text, foreign=True),
                Part("\n!"),
            )
        if self.dialect == "plain":
            steps = target.solution.steps
            foreign = {"problem": problem.text, "steps": steps}
            return load_packaged_prompt("verifier").render(foreign, count=len(steps), example=self.example)
        return render_tagged_prompt(VERIFIER_PROMPT, problem, target, "Verification:")

    def parse(self, text: str, target: Rollout | None) -> Parsed:
        if target is None:
            raise ValueError("a verification is read against the solution it judges")
        if self.dialect == "plain":
            return parse_plain(text, len(target.solution.steps))
        found = parse_terse(text) if self.dialect == "terse" else parse_tagged(text)
        return score_verification(found, len(target.solution.steps), target.parsed.format)

    def soften(self, rollout: Rollout) -> Parsed:
        """Add how sure the verdicts are, from the probabilities of their words: as scores in prose, else as soft verdicts, by
        which nothing is ranked. No further pass through the model is needed. Other roles that judge something else than
        solutions have none."""
        value = rollout.verification
        if value.final is None or not isinstance(rollout.target.parsed.value, Solution):
            return rollout.parsed
        if self.dialect != "plain":
            return _add_soft_verdicts(rollout, find_marks(rollout.text, value, self.dialect))
        found = read_verdicts(rollout.text, len(rollout.target.solution.steps))
        steps = tuple(_compute_soft_verdict(rollout, found.steps[n]) for n in range(1, len(value.steps or ()) + 1)) or None
        whole = math.prod(steps or ()) if found.final is None else _compute_soft_verdict(rollout, found.final)
        return replace(rollout.parsed, value=replace(value, score=whole, step_scores=steps))

    def write(self, verdicts: Sequence[bool], final: bool, analyses: Sequence[str] | None = None) -> str:
        """Write the text that parses as these verdicts."""
        notes = analyses or [""] * len(verdicts)
        if self.dialect == "terse":
            lines = [f"{note}{'+' if right else '-'}\n" for note, right in zip(notes, verdicts, strict=True)]
            return "".join(lines) + ("=+" if final else "=-")
        if self.dialect == "plain":
            return _write_plain(verdicts, final, notes) + (NEXT_EXAMPLE if self.example else "")
        word = {True: "\\boxed{CORRECT}", False: "\\boxed{INCORRECT}"}
        steps = "\n".join(f"<step>{note} {word[right]}</step>" for note, right in zip(notes, verdicts, strict=True))
        return f"<step_verification>\n{steps}\n</step_verification>\n<final_verification>{word[final]}</final_verification>"

    def demonstrate(self, task: Task, problem: Problem, rng: random.Random) -> tuple[Rollout | None, str]:
        """Demonstrate on a solution with one wrong step in half of the cases: redo and judge each step; the final verdict
        follows. Rare errors would teach the model to say "correct" to everything."""
        flawed = task.demonstrate_flawed(problem, rng) if rng.random() < 0.5 else None
        shown = flawed or task.demonstrate(problem, rng)
        verdicts = list(shown.truth)
        if rng.random() < self.noise:
            turned = rng.randrange(len(verdicts))
            verdicts[turned] = not verdicts[turned]
        solution = demonstration_to_rollout(shown, problem, StepSolver(self.dialect), f"demonstration/{problem.id}")
        return solution, self.write(verdicts, all(verdicts), shown.checks)


def _compute_soft_verdict(rollout: Rollout, verdict: Verdict) -> float:
    """Compute how sure a verdict is, from 0 (surely wrong) to 1 (surely right), by the probability of the token in which its
    word begins. What else could have stood there need not be the other word: it counts as undecided, one half."""
    chance = _get_chance(rollout, verdict.at)
    return 0.5 + chance / 2 if verdict.right else 0.5 - chance / 2


def find_marks(text: str, value: Verification, dialect: Dialect) -> list[_Mark]:
    """Find the marks of these verdicts in a terse or tagged text: those of the steps, then the final one. Empty where the text
    has others too."""
    said = [*(value.steps or ()), value.final is True]
    if dialect == "terse":  # a mark before the end of each line, and at the end of the text
        places = [*(end - 2 for end in value.ends), len(text) - 1]
        rights = [text[at] == "+" for at in places if text[at] in "+-"]
    else:
        boxes = list(VERDICT.finditer(text))
        places, rights = [box.start(1) for box in boxes], [box[1].upper() == "CORRECT" for box in boxes]
    return [_Mark(*pair) for pair in zip(rights, places, strict=True)] if rights == said else []


def _add_soft_verdicts(rollout: Rollout, marks: Sequence[_Mark]) -> Parsed:
    """Add soft verdicts by these marks. The final verdict mostly follows from those of the steps that were sampled before it,
    and has no doubt of its own: that of the solution is the chance that all steps are right."""
    if not marks:
        return rollout.parsed
    value = rollout.verification
    *steps, final = [_compute_mark_probability(rollout, mark) for mark in marks]
    return replace(
        rollout.parsed, value=replace(value, soft=math.prod(steps) if steps else final, soft_steps=tuple(steps) or None)
    )


def _compute_mark_probability(rollout: Rollout, mark: _Mark) -> float:
    """Compute the probability of "right" where a mark was sampled: where models are trained in the form, what else could have
    stood there is the other mark."""
    chance = _get_chance(rollout, mark.at)
    return chance if mark.right else 1 - chance


def _get_chance(rollout: Rollout, at: int) -> float:
    """Return the probability that the token had in which this character of the text was sampled."""
    assert rollout.chars is not None
    return min(1.0, math.exp(rollout.logprobs[int(np.searchsorted(rollout.chars, at, side="right"))]))


def _write_plain(verdicts: Sequence[bool], final: bool, notes: Sequence[str]) -> str:
    word = {True: "CORRECT", False: "INCORRECT"}
    lines = [
        " ".join(filter(None, (f"Step {number}:", note, word[right])))
        for number, (right, note) in enumerate(zip(verdicts, notes, strict=True), 1)
    ]
    return "\n".join([*lines, f"Final verdict: {word[final]}"])


def parse_plain(text: str, count: int) -> Parsed:
    """Parse the verdicts on `count` steps from prose. Verdicts may end at the first wrong step; a missing final verdict follows
    from the steps. The format score is the share of the needed verdicts that can be read, the final one counted as one."""
    found = read_verdicts(text, count)
    said = [found.steps[number].right for number in takewhile(found.steps.__contains__, range(1, count + 1))]
    if len(said) < count and False in said:
        said = said[: said.index(False) + 1]
    complete = bool(said) and (len(said) == count or not said[-1])
    final = found.final.right if found.final is not None else all(said) if complete else None
    ends = tuple(found.ends[number] for number in range(1, len(said) + 1))
    value = Verification(tuple(said), final, ends) if complete else Verification(None, final)
    problems = [] if complete else [f"verdicts on {len(said)} of {count} steps"]
    problems += [] if final is not None else ["no final verdict"]
    score = (len(said) + (found.final is not None)) / ((len(said) if complete else count) + 1)
    return Parsed(value, score, "; ".join(problems) or None)


def render_tagged_prompt(orders: str, problem: Problem, target: Rollout, wanted: str) -> Prompt:
    """Render a problem and its solution for a judge. `orders` may name the number of steps as {count}.

    They come first: a context that is cut from the right can lose the solution's end, never its orders.
    """
    solution = target.solution
    return (
        Part(orders.format(count=len(solution.steps))),
        Part(problem.text, foreign=True),
        Part("\n\nSolution:\n<solution>\n"),
        Part(target.text, foreign=True),
        Part(f"\n</solution>\n\n{wanted}\n"),
    )


def score_verification(found: _Verdicts, count: int, solution_format: float) -> Parsed:
    """Compute the verification and its format score (as in the Tango paper) from one and the same parse."""
    verdicts = [verdict for verdict in found.verdicts if verdict is not None]
    matches = len(verdicts) == len(found.verdicts) == count and count > 0
    value = Verification(tuple(verdicts) if matches else None, found.final, tuple(found.ends) if matches else ())
    score = 1.0 if found.framed else 0.0
    problems: list[str] = []
    if found.final is None:
        score -= 0.8
        problems.append("no single final verdict")
    if not found.verdicts:
        score -= 0.8
        problems.append("no checks of steps")
    if not matches:
        problems.append(f"{len(verdicts)} verdicts in {len(found.verdicts)} checks of {count} steps")
        if solution_format >= READABLE_SOLUTION:
            score -= 0.8
    if not found.clean:
        score -= 0.4
    return Parsed(value, max(0.0, score), "; ".join(problems) or None)


def parse_terse(text: str) -> _Verdicts:
    frame = re.fullmatch(r"(?P<steps>(?:[^=\n][^\n]*\n)*)=(?P<final>[+-])", text)
    if frame is None:
        return _Verdicts(False, [], [], None, False)
    verdicts: list[bool | None] = []
    ends, clean = [], True
    for line in re.finditer(r"(?P<note>[^\n]*?)(?P<mark>[+-]?)\n", frame["steps"]):
        if line["mark"]:
            verdicts.append(line["mark"] == "+")
            ends.append(line.end())
        else:
            clean = False
    return _Verdicts(True, verdicts, ends, frame["final"] == "+", clean)


def parse_verdict(body: str) -> bool | None:
    """Parse the one boxed verdict of a text, at its end; other boxes before it belong to the analysis. None otherwise."""
    found = list(VERDICT.finditer(body))
    return found[0][1].upper() == "CORRECT" if len(found) == 1 and found[0].end() == len(body) else None


def parse_tagged(text: str, last: str = "final_verification", word: Callable[[str], bool | None] = parse_verdict) -> _Verdicts:
    """Parse the checks in the first tag, each with its boxed verdict, and the final verdict in `last`, parsed by `word`. What
    stands around the two tags is passed over, but it is no longer the form."""
    frame = find_loose_frame(text, "step_verification", last)
    if frame is None:
        return _Verdicts(False, [], [], None, False)
    checks = find_tags(frame[0].body, "step", frame[0].start + len("<step_verification>"))
    outside = cut_tags(frame[0].body, "step").strip()
    verdicts = [parse_verdict(check.body) for check in checks]
    exact = find_frame(text, "step_verification", last) is not None
    return _Verdicts(exact, verdicts, [check.end for check in checks], word(frame[1].body), not outside)
