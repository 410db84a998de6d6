"""Proofs graded in three levels: the roles of proof writer, verifier and meta-verifier (DeepSeekMath-V2).

One grammar serves all three: a remark and a mark for each step, then a score. The score says what the whole is worth; the steps
marked as wrong are the reported defects.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from milonga.roles.base import ROLES, Dialect, Role
from milonga.roles.solver import StepSolver
from milonga.roles.tags import find_tags
from milonga.roles.verifier import parse_verdict
from milonga.systems.deepseek_math_v2.credit import LEVELS, analysis_quality
from milonga.systems.deepseek_math_v2.derivations import GAP, find_flaws, write_derivation
from milonga.tasks.base import Task
from milonga.types import Grade, Parsed, Part, Problem, Prompt, Rollout, Solution, Verification

OPENING, CLOSING = "Evaluation:", "Overall score:"
"""The fixed phrases of the tagged dialect: prompt, reward and parser all take them from here."""
NOTATION = f"""\
Begin with the line "{OPENING}". Then write one remark for each step, inside <step> and </step>, each ending in \
\\boxed{{CORRECT}} or \\boxed{{INCORRECT}}. End with the line "{CLOSING} \\boxed{{ }}" with 0, 0.5 or 1 in the box"""
WRITER_TASK = f"""\
Prove the result asked for below. Work inside <think> and </think>, and put every step into its own <step> and </step>. \
Then give only the result inside <answer>\\boxed{{ }}</answer>. After it, judge your own proof. {NOTATION}: 1 if the proof is \
complete, 0.5 if a step is missing, 0 if anything is wrong. An honest low score is better than a false high one.

Problem:
"""
VERIFIER_TASK = f"""\
Judge the proof below step by step; a value that nobody derived is a defect too. {NOTATION}: 1 if the proof is complete, \
0.5 if it is sound but for one missing step, 0 if anything is wrong.

Problem:
"""
META_TASK = f"""\
Below are a problem, a proof, and somebody's evaluation of the proof. Judge the evaluation, and only what it reports: a \
remark is INCORRECT if it reports a defect that is not there; a defect that it missed does not count. {NOTATION}: 0 if \
nothing that is reported is there, 0.5 if some of it is not or if the score does not follow from it, 1 otherwise.

Problem:
"""
MARKS = {1.0: "+", GAP: "~", 0.0: "-"}
FLIP = 0.15
"""How often a teacher's mark, or score, is not what it should be. The score does not follow from the marks: what is wrong is
often seen without seeing where."""
SLIP, SKIP = 0.2, 0.1
"""How often a step of the writer's teacher is wrong, and how often one is left out."""


@dataclass(frozen=True)
class Analysis(Verification):
    """A verification that ends in one of three scores."""

    @property
    def defects(self) -> tuple[int, ...]:
        """The steps that are reported as defective."""
        return tuple(k for k, right in enumerate(self.steps or ()) if not right)


SILENT = Parsed(Analysis(None, None), 0.0, "no self-analysis")


@dataclass(frozen=True)
class Proof(Solution):
    """A solution with its writer's self-analysis. `body` is the text without the self-analysis."""

    body: str = ""
    remarks: str = ""
    """The text of the self-analysis."""
    analysis: Parsed = SILENT


def write_analysis(dialect: Dialect, marks: Sequence[bool], score: float, notes: Sequence[str]) -> str:
    """Write the text that parses as these marks and this score."""
    if dialect == "terse":
        return (
            "".join(f"{note}{'+' if right else '-'}\n" for note, right in zip(notes, marks, strict=True)) + f"={MARKS[score]}"
        )
    word = {True: "\\boxed{CORRECT}", False: "\\boxed{INCORRECT}"}
    lines = [f"<step>{note} {word[right]}</step>\n" for note, right in zip(notes, marks, strict=True)]
    return f"{OPENING}\n{''.join(lines)}{CLOSING} \\boxed{{{score:g}}}"


def parse_analysis(dialect: Dialect, text: str, count: int) -> Parsed:
    """Parse exactly one mark for each of `count` steps and one score of the three levels; all else is invalid, format 0."""
    marks, ends, score = parse_terse(text) if dialect == "terse" else parse_tagged(text)
    if score is None:
        return Parsed(Analysis(None, None), 0.0, "not one mark for each step followed by one score")
    if len(marks) != count:
        return Parsed(Analysis(None, score == 1, score=score), 0.0, f"{len(marks)} marks for {count} steps")
    # Nothing can be said of the steps of a text that has none, but what it is worth can.
    return Parsed(Analysis(tuple(marks) if count else None, score == 1, tuple(ends), score), 1.0)


def parse_terse(text: str) -> tuple[list[bool], list[int], float | None]:
    frame = re.fullmatch(r"(?P<steps>(?:[^=\n][^\n]*(?<=[+-])\n)*)=(?P<score>[+~-])", text)
    if frame is None:
        return [], [], None
    lines = list(re.finditer(r"[^\n]*([+-])\n", frame["steps"]))
    return (
        [m[1] == "+" for m in lines],
        [m.end() for m in lines],
        next(s for s, mark in MARKS.items() if mark == frame["score"]),
    )


def parse_tagged(text: str) -> tuple[list[bool], list[int], float | None]:
    frame = re.fullmatch(rf"\s*{OPENING}(.*){CLOSING}\s*\\boxed\{{\s*(0|0\.5|1)\s*\}}[\s.]*", text, re.DOTALL)
    if frame is None or text.count(OPENING) != 1 or text.count(CLOSING) != 1:
        return [], [], None
    found = find_tags(frame[1], "step", frame.start(1))
    marks = [mark for tag in found if (mark := parse_verdict(tag.body)) is not None]
    if len(marks) != len(found) or re.sub(r"<step>.*?</step>", "", frame[1], flags=re.DOTALL).strip():
        return [], [], None
    return marks, [tag.end for tag in found], float(frame[2])


def _get_proof_body(proof: Rollout) -> str:
    """Return the proof as other agents see it: without the self-analysis."""
    return proof.parsed.value.body if isinstance(proof.parsed.value, Proof) else proof.text


@ROLES.register("proof_writer")
class ProofWriter(StepSolver):
    """A solver that then judges its own solution, in the verifier's format.

    terse: the solution, a line that begins with `!`, and the analysis. tagged: the analysis follows the answer.
    """

    name = "proof_writer"

    @classmethod
    def length_factor(cls) -> int:
        return 2

    @property
    def stop(self) -> tuple[str, ...]:
        return ()

    @property
    def seam(self) -> str:
        """The separator between the proof and the self-analysis."""
        return "\n!" if self.dialect == "terse" else f"\n{OPENING}"

    def prompt(self, problem: Problem, target: Rollout | None = None) -> Prompt:
        if self.dialect == "terse":
            return super().prompt(problem)
        return (Part(WRITER_TASK), Part(problem.text, foreign=True), Part("\n\nProof:\n"))

    def parse(self, text: str, target: Rollout | None = None) -> Parsed:
        body, seam, rest = text.partition(self.seam)
        remarks = rest if self.dialect == "terse" else seam[1:] + rest
        solution = super().parse(body)
        value = solution.get(Solution)
        analysis = parse_analysis(self.dialect, remarks, len(value.steps)) if seam else SILENT
        proof = Proof(value.steps, value.ends, value.answer, body, remarks, analysis)
        return Parsed(proof, (solution.format + analysis.format) / 2, solution.invalid or analysis.invalid)

    def write(self, steps: Sequence[str], answer: str, analysis: str = "") -> str:
        """Write the text that parses as this proof, with this analysis if there is one."""
        body = super().write(steps, answer)
        return body + (self.seam + analysis.removeprefix(OPENING) if analysis else "")

    def demonstrate(self, task: Task, problem: Problem, rng: random.Random) -> tuple[Rollout | None, str]:
        """Demonstrate a proof with wrong and missing steps and an over-optimistic self-analysis."""
        places = range(task.step_count(problem))
        demonstration = task.demonstrate(problem, rng, {k for k in places if rng.random() < SLIP})
        gone = rng.choice(places[:-1]) if len(places) > 1 and rng.random() < SKIP * len(places) else None
        steps = tuple(step for k, step in enumerate(demonstration.steps) if k != gone)
        found = find_flaws(problem, steps, demonstration.answer)
        claimed = found.score if rng.random() < 0.6 else 1.0
        marks = _flip_marks([k not in found.flaws for k in range(len(steps))], rng)
        return None, self.write(steps, demonstration.answer, write_analysis(self.dialect, marks, claimed, found.checks))


class Analyst(Role):
    """The common base of both judges: a mark for each step or remark, and a score for the whole."""

    judges = True

    @property
    def stop(self) -> tuple[str, ...]:
        return ()

    def parse(self, text: str, target: Rollout | None) -> Parsed:
        if target is None:
            raise ValueError(f"what a {self.name} writes is read against what it judges")
        judged = target.parsed.value
        assert isinstance(judged, Solution | Verification)  # a proof, or an analysis of one
        return parse_analysis(self.dialect, text, len(judged.steps or ()))


@ROLES.register("defect_verifier")
class DefectVerifier(Analyst):
    """Marks each step of a proof, reports the defective ones so, and gives a score of 0, 0.5 or 1.

    terse: a line per step that ends in `+` or `-`, then `=+`, `=~` or `=-`. tagged: boxed marks between two fixed phrases.
    """

    name = "defect_verifier"

    def prompt(self, problem: Problem, target: Rollout | None) -> Prompt:
        if target is None:
            raise ValueError("a verifier needs a proof to judge")
        body = Part(_get_proof_body(target), foreign=True)
        if self.dialect == "terse":
            return (Part("?"), Part(problem.text, foreign=True), Part("\n"), body, Part("\n!"))
        opened, closed = Part("\n\nProof:\n<proof>\n"), Part("\n</proof>\n\n")
        return (Part(VERIFIER_TASK), Part(problem.text, foreign=True), opened, body, closed)

    def demonstrate(self, task: Task, problem: Problem, rng: random.Random) -> tuple[Rollout | None, str]:
        proof = make_graded_proof(task, problem, rng, rng.choice(LEVELS), self.dialect, "demonstration")
        return proof, _write_noisy_analysis(proof, self.dialect, rng)


@ROLES.register("meta_verifier")
class MetaVerifier(Analyst):
    """Judges an analysis: a mark for each of its remarks, and a score of 0, 0.5 or 1 for the whole.

    It sees the proof that the analysis is about, and then the analysis.
    """

    name = "meta_verifier"

    def prompt(self, problem: Problem, target: Rollout | None) -> Prompt:
        if target is None:
            raise ValueError("a meta-verifier needs an analysis to judge")
        proof = Part("\n".join(_get_proof_body(one) for one in target.targets), foreign=True)
        analysis = Part(target.text, foreign=True)
        if self.dialect == "terse":
            return (Part("&"), Part(problem.text, foreign=True), Part("\n"), proof, Part("\n!"), analysis, Part("\n&"))
        opened, between, closed = "\n\nProof:\n<proof>\n", "\n</proof>\n\n<evaluation>\n", "\n</evaluation>\n\n"
        return (Part(META_TASK), Part(problem.text, foreign=True), Part(opened), proof, Part(between), analysis, Part(closed))

    def demonstrate(self, task: Task, problem: Problem, rng: random.Random) -> tuple[Rollout | None, str]:
        proof = make_graded_proof(task, problem, rng, rng.choice(LEVELS), self.dialect, "demonstration")
        found = find_flaws(problem, proof.solution.steps, proof.solution.answer)
        text = _write_noisy_analysis(proof, self.dialect, rng, flip=rng.choice((FLIP, 0.4)))
        analysis = make_analysis_rollout(proof, text, parse_analysis(self.dialect, text, len(found.checks)), "demonstration")
        judged = analysis.parsed.get(Analysis)
        quality = analysis_quality(judged.defects, judged.score or 0.0, found.flaws)
        score = quality if rng.random() >= FLIP else rng.choice(LEVELS)
        # The teacher writes down the right result of the step, whether the step has it, and the analysis' mark; then its own.
        does = _flip_marks([k not in found.flaws for k in range(len(found.checks))], rng, FLIP / 2)
        sign = {True: "+", False: "-"}
        notes = [f"{c}{sign[own]}{sign[their]}" for c, own, their in zip(found.checks, does, judged.steps or (), strict=True)]
        marks = [their or not own for own, their in zip(does, judged.steps or (), strict=True)]
        return analysis, write_analysis(self.dialect, marks, score, notes)


def _flip_marks(marks: Sequence[bool], rng: random.Random, flip: float = FLIP) -> list[bool]:
    return [right != (rng.random() < flip) for right in marks]


def make_graded_proof(task: Task, problem: Problem, rng: random.Random, score: float, dialect: Dialect, id: str) -> Rollout:
    """Make a graded proof with this true score, for a verifier to judge."""
    steps, answer = write_derivation(task, problem, rng, score)
    writer = ProofWriter(dialect)
    text = writer.write(steps, answer)
    grade = Grade(answer == problem.answer, tuple(k not in find_flaws(problem, steps, answer).flaws for k in range(len(steps))))
    return Rollout.from_text(id, "generator", problem, text, writer.parse(text), grade)


def _write_noisy_analysis(proof: Rollout, dialect: Dialect, rng: random.Random, flip: float = FLIP) -> str:
    """Write a noisy teacher's analysis: right checks, marks flipped with probability `flip`, a score noised apart from them."""
    found = find_flaws(proof.problem, proof.solution.steps, proof.solution.answer)
    score = found.score if rng.random() >= FLIP else rng.choice(LEVELS)
    marks = _flip_marks([k not in found.flaws for k in range(len(found.checks))], rng, flip)
    return write_analysis(dialect, marks, score, found.checks)


def make_analysis_rollout(proof: Rollout, text: str, parsed: Parsed, id: str) -> Rollout:
    """Make a rollout of an analysis whose target is the proof, for the meta-verifier to judge."""
    return replace(Rollout.from_text(id, "verifier", proof.problem, text, parsed), targets=(proof,))


def extract_self_analysis(proof: Rollout) -> Rollout:
    """Extract a proof's self-analysis as an analysis rollout like any other."""
    value = proof.parsed.get(Proof)
    return make_analysis_rollout(proof, value.remarks, value.analysis, f"{proof.id}/self")
