"""The step solver: from a problem, it writes steps and an answer; and the program solver, whose steps are code that is run."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import cast

from milonga.roles.base import ROLES, Dialect, Role
from milonga.roles.prose import CLOSE, find_steps, find_thought, find_thought_end, skip_thought
from milonga.roles.tags import cut_tags, find_boxed, find_frame, find_loose_frame, find_tags
from milonga.roles.templates import load_packaged_prompt
from milonga.sandbox import Outcome, Program
from milonga.tasks.answers import find_last_box
from milonga.tasks.base import Demonstration, Task
from milonga.tasks.code_python import PythonRunner, read_script, split_paragraphs
from milonga.types import Grade, Parsed, Part, Problem, Prompt, Rollout, Solution

SOLVER_PROMPT = """\
Solve the problem below. Work inside <think> and </think>, and put every logical step of the work into its own \
<step> and </step>. After the work, give only the result inside <answer>\\boxed{ }</answer>.

Problem:
"""
PLAIN_FORM = "solution, step by step, and put your final answer within \\boxed{}."
PROGRAM_PROMPT = """\
Write the program that is asked for below. Think inside <think> and </think>, and put every step of the plan into its own \
<step> and </step>. After that give only the program inside <answer> and </answer>.

Task:
"""
NEXT_EXAMPLE = "\n\nProblem:"
"""What a model that was shown a worked example writes when it goes on to a problem of its own."""
NO_ANSWER, NO_STEPS = "no boxed answer, and none that the task could find", "no steps"
"""Why prose cannot be read as a solution."""
UNFINISHED, SILENT = "the program is not finished", "the program prints no answer, or fails"
"""Why a program cannot be read as a solution."""
LOOSE_FORMAT = 0.5
"""Format score of an answer without a box, of text where a program was asked for, or of a program that gives no answer."""
LABEL = re.compile(r"[A-Za-z][A-Za-z '()_-]{0,60}[:=]\s*(?=\S)")
"""What a program may print before its answer: "Answer: 5"."""


@ROLES.register("solver")
class StepSolver(Role):
    """Writes a solution as steps with an answer.

    plain: prose; its paragraphs are the steps, the last `\\boxed{…}` is the answer. tagged:
    `<think><step>…</step>…</think><answer>\\boxed{…}</answer>`. terse: one step per line, then `#answer`.
    `noise` is how often the teacher of demonstrations shows a wrong solution. To problems from files of replies nothing is
    added: the prompt is their text.
    """

    name = "solver"
    judges = False

    def __init__(self, dialect: Dialect, noise: float = 0.0) -> None:
        super().__init__(dialect)
        self.noise = noise

    @property
    def stop(self) -> tuple[str, ...]:
        if self.dialect == "plain":
            return (NEXT_EXAMPLE,) if self.example else ()
        return () if self.dialect == "terse" else ("</answer>",)

    @property
    def step_stop(self) -> tuple[str, ...]:
        return {"terse": ("\n",), "tagged": ("</step>",), "plain": ("\n\n",)}[self.dialect]

    def prompt(self, problem: Problem, target: Rollout | None = None) -> Prompt:
        if self.dialect == "terse":
            return (Part(">"), Part(problem.text, foreign=True), Part("\n"))
        if problem.reply is not None:
            return (Part(problem.text, foreign=True),)
        if self.dialect == "plain" and problem.is_open:
            asked_openly = Part(problem.text, foreign=True)
            return (Part("Question:\n"), asked_openly, Part("\n\nAnswer:\n")) if self.example else (asked_openly,)
        if self.dialect == "plain":
            asked = {"example": self.example, "program": problem.wants_program}
            return load_packaged_prompt("solver").render({"problem": problem.text}, **asked)
        if problem.wants_program:
            return ask_for_program(problem)
        return (Part(SOLVER_PROMPT), Part(problem.text, foreign=True), Part("\n\nSolution:\n"))

    def render_plain_request(self, opening: str, problem: Problem) -> Part:
        """Render a later message in prose that asks for a whole solution: `opening`, then the form of the first prompt."""
        form = "program, in one code block that begins with ```python." if problem.wants_program else PLAIN_FORM
        return Part(f"{opening} {form}" + ("\n\nSolution:\n" if self.example else ""))

    def parse(self, text: str, target: Rollout | None = None) -> Parsed:
        if self.dialect == "plain":
            return parse_plain(text, self.thought_steps)
        return parse_terse(text) if self.dialect == "terse" else parse_tagged(text)

    def write(self, steps: Sequence[str], answer: str) -> str:
        """Write the text that parses as these steps and this answer."""
        if self.dialect == "terse":
            return "".join(f"{step}\n" for step in steps) + f"#{answer}"
        if self.dialect == "plain":
            # With the last step, so that there are as many paragraphs as steps.
            whole = "\n".join(["\n\n".join(steps), f"The final answer is \\boxed{{{answer}}}."]).lstrip("\n")
            return whole + (NEXT_EXAMPLE if self.example else "")
        work = "\n".join(f"<step>{step}</step>" for step in steps)
        return f"<think>\n{work}\n</think>\n<answer>\\boxed{{{answer}}}</answer>"

    def demonstrate(self, task: Task, problem: Problem, rng: random.Random) -> tuple[Rollout | None, str]:
        """Demonstrate the task's own solution or, with probability `noise`, one with a wrong step. Replies of the data are
        shown word for word."""
        if problem.reply is not None:
            return None, problem.reply
        flawed = task.demonstrate_flawed(problem, rng) if rng.random() < self.noise else None
        shown = flawed or task.demonstrate(problem, rng)
        in_tags = self.dialect == "tagged" and problem.wants_program
        return None, (write_program if in_tags else self.write)(shown.steps, shown.answer)

    def settle(self, task: Task, rollouts: Sequence[Rollout]) -> list[Parsed]:
        """Read programs in tags as such: that no box was asked for is not told by a text alone."""
        return [_read_as_program(t) if self.dialect == "tagged" and t.problem.wants_program else t.parsed for t in rollouts]


def ask_for_program(problem: Problem) -> Prompt:
    """Ask for a program in tags, outside any box: a brace in a string of it would close the box."""
    return (Part(PROGRAM_PROMPT), Part(problem.text, foreign=True), Part("\n\nSolution:\n"))


def write_program(steps: Sequence[str], program: str) -> str:
    """Write the text in tags that `parse_program` reads as these steps and this program."""
    work = "\n".join(f"<step>{step}</step>" for step in steps)
    return f"<think>\n{work}\n</think>\n<answer>\n{program}\n</answer>"


def demonstration_to_rollout(demonstration: Demonstration, problem: Problem, solver: StepSolver, id: str) -> Rollout:
    """Turn a demonstration into a graded solution rollout that a verifier can judge."""
    text = solver.write(demonstration.steps, demonstration.answer)
    grade = Grade(demonstration.correct, demonstration.truth)
    return Rollout.from_text(id, "generator", problem, text, solver.parse(text), grade)


def parse_plain(text: str, thought_steps: bool = False) -> Parsed:
    """Parse prose: the last box behind the thought is the answer, the paragraphs of what follows a thought (or of the thought
    itself) are the steps. Without that box the task looks there for an answer, and only then a box in the thought is one, both
    at a lower format score: `accept_extracted`. Where nothing follows the thought, its box is the answer."""
    end = len(text) - len(NEXT_EXAMPLE) if text.endswith(NEXT_EXAMPLE) else len(text)
    thought, begin = find_thought(text[:end]), 0
    if thought is not None:
        begin, end = thought if thought_steps else (min(end, thought[1] + len(CLOSE)), end)
    spans = find_steps(text, begin, end)
    steps, ends = tuple(text[a:b].strip() for a, b in spans), tuple(b for _, b in spans)
    said = skip_thought(text).removesuffix(NEXT_EXAMPLE)
    value = Solution(steps, ends, find_last_box(said if said.strip() else text), begin=begin)
    if value.answer is None:
        return Parsed(value, 0.0, NO_ANSWER)
    return Parsed(value, 1.0) if steps else Parsed(value, 0.5, NO_STEPS)


def extract_answer(task: Task, text: str, problem: Problem, lost: bool) -> str | None:
    """Extract the answer of prose without a box behind its thought: what the task finds there, a box in the thought, or else
    what the task finds in it. `lost`: the task finds nothing, since the text was cut or there is nothing to compare with."""
    said = text if problem.reply is not None else skip_thought(text)
    found = None if lost else task.extract(said, problem)
    if found is None and not problem.wants_program:
        found = find_last_box(text)
    return task.extract(text, problem) if found is None and not lost else found


def accept_extracted(parsed: Parsed, answer: str | None, asked: bool) -> Parsed:
    """Accept the answer that the task itself finds in a text. `asked`: it has the form that was asked for (a program in a code
    fence); otherwise its format score is lower than that of a box."""
    value = replace(parsed.get(Solution), answer=answer)
    if answer is None:
        return Parsed(value, 0.0, NO_ANSWER)
    return Parsed(value, 1.0 if asked else LOOSE_FORMAT, None if value.steps else NO_STEPS)


def parse_terse(text: str) -> Parsed:
    """Parse lines up to the first that starts with `#`; each line closed by a newline is a step."""
    steps: list[str] = []
    ends: list[int] = []
    position = 0
    while (newline := text.find("\n", position)) >= 0 and not text.startswith("#", position):
        steps.append(text[position:newline])
        ends.append(newline + 1)
        position = newline + 1
    tail = text[position:]
    answer = tail[1:] if tail.startswith("#") and len(tail) > 1 and "\n" not in tail else None
    value = Solution(tuple(steps), tuple(ends), answer)
    if answer is None:
        return Parsed(value, 0.0, "no answer line" if not tail.startswith("#") else "answer line is empty or not the last")
    if not steps:
        return Parsed(value, 0.2, "no steps")
    if not all(steps):
        return Parsed(value, 0.6, "empty step")
    return Parsed(value, 1.0)


def parse_tagged(text: str) -> Parsed:
    """Parse a completion of one work tag and one answer tag: steps inside the work, a box in the answer.

    The answer is read from anything like it: no box in the tag, or text around the tags, cost format alone. Who gives two has
    given none.
    """
    exact, loose = find_frame(text, "think", "answer"), find_loose_frame(text, "think", "answer")
    found = find_tags(loose[0].body, "step", loose[0].start + len("<think>")) if loose else find_tags(text, "step")
    said = loose[1].body if loose else text
    boxes = [box.strip() for box in find_boxed(said) if box.strip()]
    answer = boxes[0] if len(boxes) == 1 else None
    if loose and not boxes and "\\boxed" not in said:
        answer = said.strip() or None
    value = Solution(tuple(s.body.strip() for s in found), tuple(s.end for s in found), answer)
    problems = [reason for reason, is_so in (("no answer", answer is None), ("no steps", not found)) if is_so]
    return Parsed(value, _score_tagged(exact, len(found)) if exact else 0.0, "; ".join(problems) or None)


def _score_tagged(frame: re.Match[str], steps: int) -> float:
    """Score the format of a completion that is nothing but its two tags."""
    boxes = [box for box in find_boxed(frame[2]) if box.strip()]
    score = 1.0 - 0.8 * (len(boxes) != 1) - 0.8 * (steps == 0)
    if cut_tags(frame[1], "step").strip():
        score -= 0.4
    return max(0.0, score)


def parse_program(text: str) -> Parsed:
    """Parse a completion with one work tag and one program tag; steps are inside the work. Text around the two costs format
    alone."""
    exact, loose = find_frame(text, "think", "answer"), find_loose_frame(text, "think", "answer")
    if loose is None:
        steps = find_tags(text, "step")
        value = Solution(tuple(step.body.strip() for step in steps), tuple(step.end for step in steps), None)
        return Parsed(value, 0.0, "not one <think> followed by one <answer>")
    work, program = loose
    steps = find_tags(work.body, "step", work.start + len("<think>"))
    answer = program.body.strip("\n") if program.body.strip() else None
    value = Solution(tuple(step.body.strip() for step in steps), tuple(step.end for step in steps), answer)
    if answer is None or not steps:
        return Parsed(value, 0.2 if exact else 0.0, "no program" if answer is None else "no steps")
    outside = cut_tags(work.body, "step").strip()
    return Parsed(value, (0.6 if outside else 1.0) if exact else 0.0)


def _read_as_program(rollout: Rollout) -> Parsed:
    """Read a solution in tags as a program. What stands in a box all the same, or was read by another reader, stays."""
    found = parse_program(rollout.text)
    is_boxed = (found.get(Solution).answer or "").lstrip().startswith("\\boxed{")
    return rollout.parsed if is_boxed or rollout.parsed != parse_tagged(rollout.text) else found


def make_step_solver(dialect: str) -> StepSolver:
    """Make the step solver for the dialect of a resolved config."""
    return StepSolver(cast(Dialect, dialect))


@ROLES.register("program_solver")
class ProgramSolver(StepSolver):
    """Writes a solution in paragraphs, to be cut between any two of them: a search goes on from there.

    With a `runner` steps are code: a comment that is the thought, and Python under it, in a code fence; the answer is the last
    line that the whole program prints. Without one they are paragraphs of text, with the answer in a box. Other dialects than
    plain have the solver's own steps.
    """

    name = "program_solver"

    def __init__(self, dialect: Dialect, runner: PythonRunner | None = None) -> None:
        super().__init__(dialect)
        self.runner = runner

    @property
    def step_stop(self) -> tuple[str, ...]:
        return (*super().step_stop, "\n```\n") if self.runner else super().step_stop

    def make_ready(self) -> None:
        if self.runner is not None:
            self.runner.start()

    def prompt(self, problem: Problem, target: Rollout | None = None) -> Prompt:
        if self.runner is None or problem.wants_program:
            return super().prompt(problem, target)
        return load_packaged_prompt("program_steps").render({"problem": problem.text}, example=self.example)

    def parse(self, text: str, target: Rollout | None = None) -> Parsed:
        """Parse steps and, in text, the answer; what a program prints is not known before it was run."""
        if self.dialect != "plain":
            return super().parse(text, target)
        parsed, begin = parse_plain(text), find_thought_end(text)
        spans = split_paragraphs(text.removesuffix(NEXT_EXAMPLE), begin)
        steps, ends = tuple(text[a:b].strip() for a, b in spans), tuple(b for _, b in spans)
        value = replace(parsed.get(Solution), steps=steps, ends=ends, begin=begin)
        if self.runner is None:
            return replace(parsed, value=value)
        script = read_script(text[begin:])
        if script.source.strip():
            form = (LOOSE_FORMAT, SILENT) if script.is_closed else (0.0, UNFINISHED)
            return Parsed(replace(value, answer=None), *form)
        return Parsed(value, min(parsed.format, LOOSE_FORMAT), parsed.invalid)

    def settle(self, task: Task, rollouts: Sequence[Rollout]) -> list[Parsed]:
        """Run all programs that are finished, and read what they print."""
        if self.dialect != "plain":
            return super().settle(task, rollouts)
        finished = [t for t in rollouts if t.parsed.invalid == SILENT and t.solution.answer is None]
        asked = [t for t in finished if not t.problem.wants_program]
        found = {t.id: _read_answer(task, t, outcome) for t, outcome in zip(asked, self._run(asked), strict=True)}
        found |= {t.id: task.extract(t.text, t.problem) for t in finished if t.problem.wants_program}
        read = {t.id: accept_extracted(t.parsed, found[t.id], asked=True) for t in finished if found[t.id] is not None}
        cut = {t.id: replace(read[t.id], format=0.0) for t in finished if t.id in read and t.finish == "length"}
        return [(read | cut).get(t.id, t.parsed) for t in rollouts]

    def check_steps(self, task: Task, prefixes: Sequence[Rollout]) -> list[bool]:
        """Whether the newest step of each unfinished solution holds: the program up to it runs or, in text, what it computes
        is right as far as the task can tell."""
        if self.runner is None:
            return [task.is_computation_right(prefix.solution.steps[-1]) for prefix in prefixes]
        return [outcome.status == "ok" for outcome in self._run(prefixes)]

    def _run(self, rollouts: Sequence[Rollout]) -> list[Outcome]:
        assert self.runner is not None or not rollouts
        programs = [Program(read_script(skip_thought(t.text)).source) for t in rollouts]
        return self.runner.run(programs) if self.runner else []


def _read_answer(task: Task, rollout: Rollout, outcome: Outcome) -> str | None:
    """Read the answer from the last line that a program printed; None if it printed none, or failed."""
    lines = outcome.stdout.split("\n") if outcome.status == "ok" else []
    last = next((line.strip() for line in reversed(lines) if line.strip()), None)
    if last is None:
        return None
    return find_last_box(last) or task.extract(last, rollout.problem) or LABEL.sub("", last, count=1) or None
