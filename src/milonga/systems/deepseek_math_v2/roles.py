"""Proofs graded in three levels: the roles of proof writer, verifier and meta-verifier (DeepSeekMath-V2).

One grammar serves all three. terse: a remark and a mark for each step, then a score. In prose, whether solutions are plain or
tagged: a line for each issue, which names its step, then a score. The score says what the whole is worth.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from milonga.roles.base import ROLES, Dialect, Role
from milonga.roles.prose import find_thought_end, skip_thought
from milonga.roles.replies import read_level
from milonga.roles.solver import NO_STEPS, StepSolver
from milonga.roles.templates import load_packaged_prompt
from milonga.systems.deepseek_math_v2.credit import LEVELS, analysis_quality
from milonga.tasks.base import Task
from milonga.tasks.derivations import GAP, find_flaws, write_derivation
from milonga.types import Grade, Parsed, Part, Problem, Prompt, Rollout, Solution, Verification

OPENING, CLOSING = "Evaluation:", "Overall score:"
"""The fixed phrases of analyses in prose: prompt, reward and parser all take them from here."""
PHRASES = {"opening": OPENING, "closing": CLOSING}
SEAM = re.compile(r"^\W{0,6}(?:self[- ])?evaluation(?:\W{0,4}:|[^\w\n]{0,4}$)", re.IGNORECASE | re.MULTILINE)
ISSUE = re.compile(r"\W{0,6}(?:\d{1,2}[.)]\W{0,6})?(?:issue|defect|flaw|gap)s?\b", re.IGNORECASE)
PLACE = re.compile(r"\bstep\W{0,3}(\d{1,3})\b", re.IGNORECASE)
"""The beginning of a self-analysis; that of a line that names an issue; and the step that it names."""
HEADING = re.compile(r"(?: (?:found|identified))?[\W\d]*")
ITEM = re.compile(r"\s{0,8}(?:[-*•]|\d{1,2}[.)])\s|\W{0,6}step \d{1,3}[*_]{0,2}:", re.IGNORECASE)
END = re.compile(r"\s{0,3}#|\W{0,6}(?:overall|final|score)\b", re.IGNORECASE)
NONE = re.compile(
    r"\W{0,6}(?:no\W*$|(?:step\W{0,3}\d{1,3}\W{0,6})?(?:there (?:is|are) |is |has )?(?:none\b|n/a|(?:correct|fine|sound)\W*$"
    r"|no (?:\w{1,20} ){0,2}(?:issue|defect|flaw|gap|error|mistake|problem)s?\b))",
    re.IGNORECASE,
)
"""What follows the word where issues are listed below it; an item, and the end of the list; and who says that there is none."""
PACKAGE = "milonga.systems.deepseek_math_v2"
MARKS = {1.0: "+", GAP: "~", 0.0: "-"}
FLIP = 0.15
"""How often a teacher's mark, or score, is not what it should be. The score does not follow from the marks: what is wrong is
often seen without seeing where."""
SLIP, SKIP = 0.2, 0.1
"""How often a step of the writer's teacher is wrong, and how often one is left out."""


@dataclass(frozen=True)
class Analysis(Verification):
    """A verification that ends in one of three scores. `issues` are the lines that report a defect, wherever it is."""

    issues: tuple[str, ...] = ()

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
        remarks = (f"{note}{'+' if right else '-'}\n" for note, right in zip(notes, marks, strict=True))
        return "".join([*remarks, f"={MARKS[score]}"])
    issues = [f"Issue: step {k + 1}: {note}" for k, (note, right) in enumerate(zip(notes, marks, strict=True)) if not right]
    return "\n".join([OPENING, *(issues or ["No issues."]), f"{CLOSING} \\boxed{{{score:g}}}"])


def parse_analysis(dialect: Dialect, text: str, count: int) -> Parsed:
    """Parse the score of an analysis of `count` steps, and what it says of each. terse: exactly one mark for each step; all
    else is invalid. In prose a score is enough; a step is defective if an issue names it."""
    if dialect != "terse":
        return parse_prose(text, count)
    marks, ends, score = parse_terse(text)
    if score is None:
        return Parsed(Analysis(None, None), 0.0, "not one mark for each step followed by one score")
    if len(marks) != count:
        return Parsed(Analysis(None, score == 1, score=score), 0.0, f"{len(marks)} marks for {count} steps")
    # Nothing can be said of the steps of a text that has none, but what it is worth can.
    return Parsed(Analysis(tuple(marks) if count else None, score == 1, tuple(ends), score), 1.0)


def parse_prose(text: str, count: int) -> Parsed:
    """Parse issues and a score from prose. Half of the format is that the score follows its phrase and that there are issues
    just where it is below 1."""
    text = skip_thought(text)
    score = read_level(text, LEVELS)
    if score is None:
        return Parsed(Analysis(None, None), 0.0, "no score of 0, 0.5 or 1")
    issues = tuple(find_issues(text))
    named = {int(place) for issue in issues for place in PLACE.findall(issue)}
    steps = tuple(k + 1 not in named for k in range(count)) or None
    form = 1.0 if CLOSING in text and bool(issues) == (score < 1) else 0.5
    return Parsed(Analysis(steps, score == 1, score=score, issues=issues), form)


def find_issues(text: str) -> Iterator[str]:
    """Find the lines that report an issue: those that begin with the word, and those listed below it as a heading."""
    is_list, is_begun, is_over = False, False, False
    for line in text.split("\n"):
        label = ISSUE.match(line)
        said = line[label.end() if label else 0 :]
        if label is not None:
            is_list, is_begun, is_over = HEADING.fullmatch(said) is not None, False, False
        else:
            is_over |= is_begun and not line.strip()  # behind a blank line only items go on
            is_list &= not END.match(line) and (not is_over or not line.strip() or ITEM.match(line) is not None)
            is_begun |= bool(line.strip())
        if is_list == (label is None) and said.strip() and not NONE.match(said):
            yield line.strip()


def parse_terse(text: str) -> tuple[list[bool], list[int], float | None]:
    frame = re.fullmatch(r"(?P<steps>(?:[^=\n][^\n]*(?<=[+-])\n)*)=(?P<score>[+~-])", text)
    if frame is None:
        return [], [], None
    lines = list(re.finditer(r"[^\n]*([+-])\n", frame["steps"]))
    score = next(s for s, mark in MARKS.items() if mark == frame["score"])
    return [m[1] == "+" for m in lines], [m.end() for m in lines], score


def find_seam(text: str) -> re.Match[str] | None:
    """Find where the self-analysis of a proof in prose begins: at the last opening behind the thought."""
    return max(SEAM.finditer(text, find_thought_end(text)), key=re.Match.start, default=None)


def _get_proof_body(proof: Rollout) -> str:
    """Return the proof as other agents see it: without the self-analysis."""
    return proof.parsed.value.body if isinstance(proof.parsed.value, Proof) else proof.text


@ROLES.register("proof_writer")
class ProofWriter(StepSolver):
    """A solver that then judges its own solution, in the verifier's format.

    terse: the solution, a line that begins with `!`, and the analysis. In prose the analysis follows the solution. There a
    proof needs no answer: not every problem asks for one.
    """

    name = "proof_writer"

    @classmethod
    def length_factor(cls) -> int:
        return 2

    @property
    def stop(self) -> tuple[str, ...]:
        return ()

    def prompt(self, problem: Problem, target: Rollout | None = None) -> Prompt:
        if self.dialect == "terse":
            return super().prompt(problem)
        return load_packaged_prompt(self.name, PACKAGE).render({"problem": problem.text}, **PHRASES)

    def parse(self, text: str, target: Rollout | None = None) -> Parsed:
        seam = re.search("\n!", text) if self.dialect == "terse" else find_seam(text)
        body, rest = (text[: seam.start()].rstrip("\n"), text[seam.start() :]) if seam else (text, "")
        solution, remarks = super().parse(body), rest.removeprefix("\n!")
        value = solution.get(Solution)
        analysis = parse_analysis(self.dialect, remarks, len(value.steps)) if seam else SILENT
        answer, why = value.answer, solution.invalid
        if self.dialect == "plain" and answer is None:
            answer, why, solution = "", None if value.steps else NO_STEPS, replace(solution, format=float(bool(value.steps)))
        proof = Proof(value.steps, value.ends, answer, body, remarks, analysis, begin=value.begin)
        return Parsed(proof, (solution.format + analysis.format) / 2, why or analysis.invalid)

    def write(self, steps: Sequence[str], answer: str, analysis: str = "") -> str:
        """Write the text that parses as this proof, with this analysis if there is one."""
        seam = "\n!" if self.dialect == "terse" else "\n\n" if self.dialect == "plain" else "\n"
        return super().write(steps, answer) + (seam + analysis if analysis else "")

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

    terse: a line per step that ends in `+` or `-`, then `=+`, `=~` or `=-`. In prose: issues and a score.
    """

    name = "defect_verifier"

    def prompt(self, problem: Problem, target: Rollout | None) -> Prompt:
        if target is None:
            raise ValueError("a verifier needs a proof to judge")
        if self.dialect == "terse":
            body = Part(_get_proof_body(target), foreign=True)
            return (Part("?"), Part(problem.text, foreign=True), Part("\n"), body, Part("\n!"))
        shown = {"problem": problem.text, "steps": target.solution.steps, "answer": target.solution.answer or ""}
        return load_packaged_prompt(self.name, PACKAGE).render(shown, **PHRASES)

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
        if self.dialect == "terse":
            proof, analysis = Part(_get_proof_body(target.target), foreign=True), Part(target.text, foreign=True)
            return (Part("&"), Part(problem.text, foreign=True), Part("\n"), proof, Part("\n!"), analysis, Part("\n&"))
        shown = {"problem": problem.text, "steps": target.target.solution.steps, "evaluation": target.text}
        return load_packaged_prompt(self.name, PACKAGE).render(shown, **PHRASES)

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
        notes = [f"{c}{'-+'[own]}{'-+'[their]}" for c, own, their in zip(found.checks, does, judged.steps or (), strict=True)]
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
