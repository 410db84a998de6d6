"""The roles of a dialogue: an inquirer who knows only a part and asks, a simulated user who knows the rest, and a critic.

A rule-based user tells the problem's text again with the requested part filled in; a simulated one answers in its own words.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass

from milonga.patterns.conversation import list_turns
from milonga.roles.base import ROLES, Dialect, Role
from milonga.roles.prose import skip_thought
from milonga.roles.solver import StepSolver
from milonga.roles.templates import load_packaged_prompt
from milonga.tasks.artefacts import find_reference, hands_in
from milonga.tasks.base import Task
from milonga.types import Parsed, Part, Problem, Prompt, Rollout

SIMULATOR, REPLIES = "simulator", "replies"
"""The agent, and the place of its earlier replies in the data of a dialogue's problem."""
LAST = "\n\nThat was your last question. Write FINAL ANSWER now, and below it what you hand in."
PART = re.compile(r"([1-9][0-9]?)")
SPEAKER = re.compile(r"\W{0,4}(?:user|you|me|human)\W{0,4}:\W{0,4}(?=\w)", re.IGNORECASE)
SILENCE = "It does not matter."
"""What a user says whose reply cannot be read."""


@dataclass(frozen=True)
class Message:
    """A message of agent or user that hands nothing in. `part` of the problem is asked for, counted from 0; None if it is free
    text, or unreadable."""

    text: str
    part: int | None = None
    ends: tuple[int, ...] = ()


@ROLES.register("inquirer")
class Inquirer(Role):
    """Asks at most `questions` times, then solves as the step solver does. terse: the number of a part alone, always so often.
    Otherwise free messages, until one hands in a result.

    `noise` is how often the teacher of demonstrations shows a wrong solution; his questions are drawn blindly.
    """

    name = "inquirer"
    judges = False

    def __init__(self, dialect: Dialect, questions: int = 1, noise: float = 0.0) -> None:
        super().__init__(dialect)
        self.questions, self.solver = questions, StepSolver(dialect, noise)

    @property
    def stop(self) -> tuple[str, ...]:
        return ()

    def prompt(self, problem: Problem, target: Rollout | None = None) -> Prompt:
        """Render the first turn; `problem` is the text with its parts hidden, or the request that leaves things open."""
        if self.dialect == "terse":
            return self.solver.prompt(problem)
        form = "program" if problem.wants_program else "answer" if problem.answer else "text"
        return load_packaged_prompt("inquirer").render({"problem": problem.text}, questions=self.questions, form=form)

    def render_reply(self, reply: str, turn: int) -> Prompt:
        """Render the prompt of a later turn: what the user said, or the problem text as known by then."""
        if self.dialect == "terse":
            return self.solver.prompt(Problem("", reply, ""))
        return (Part(reply, foreign=True), *([Part(LAST)] if turn >= self.questions else []))

    def parse(self, text: str, target: Rollout | None = None) -> Parsed:
        """Parse a question, or the solution once all questions were asked; `target` is the conversation so far."""
        is_last = target is not None and len(target.turn_spans) >= self.questions
        if is_last or (self.dialect != "terse" and hands_in(skip_thought(text))):
            return self.solver.parse(text)
        if self.dialect != "terse":
            return Parsed(Message(text), 1.0 if "?" in text else 0.5, None if text.strip() else "an empty message")
        found = PART.fullmatch(text)
        return Parsed(Message(text, int(found[1]) - 1), 1.0) if found else Parsed(Message(text), 0.0, "not one part")

    def write_question(self, part: int) -> str:
        """Write the text that parses as this question."""
        return str(part + 1)

    def demonstrate(self, task: Task, problem: Problem, rng: random.Random) -> tuple[Rollout | None, str]:
        """Demonstrate a question for a random part, hidden or not; `problem.data` must hold the parts."""
        return None, self.write_question(rng.randrange(len(problem.data["facts"])))


class Simulator(Role):
    """A simulated user: it reads the reference and the dialogue so far, and answers the last message. Never trained."""

    name = SIMULATOR
    judges = False

    @property
    def stop(self) -> tuple[str, ...]:
        return ()

    def prompt(self, problem: Problem, target: Rollout | None) -> Prompt:
        """Render the dialogue `target`; the user's own earlier replies are in the problem's data."""
        assert target is not None
        replies = [*(f"You: {reply.parsed.get(Message).text}" for reply in problem.data.get(REPLIES, ())), ""]
        messages = [f"Assistant: {skip_thought(turn.text).strip()}" for turn in list_turns(target)]
        dialogue = [said for both in zip(messages, replies, strict=True) for said in both if said]
        texts = {"problem": problem.text, "reference": find_reference(problem), "dialogue": dialogue}
        return load_packaged_prompt("simulator").render(texts)

    def parse(self, text: str, target: Rollout | None = None) -> Parsed:
        said = SPEAKER.sub("", skip_thought(text).strip(), count=1)
        return Parsed(Message(said), 1.0) if said else Parsed(Message(SILENCE), 0.0, "an empty reply")


@ROLES.register("privileged")
class PrivilegedCritic(Inquirer):
    """A critic that sees what the user knows (privileged information). Its log-ratio to its initial weights, summed over the
    tokens of a turn, is the score of that turn."""

    name = "privileged"
    judges = True
    kind = "implicit"

    def prompt_with_reference(self, problem: Problem, reference: str) -> Prompt:
        """Render the inquirer's prompt, which is all that `prompt` shows, with what the user knows (`reference`) in front."""
        if self.dialect == "terse":
            return (Part(reference, foreign=True), Part("\n"), *self.prompt(problem))
        known = Part("What the user wants in the end, which nobody who speaks below can see:\n")
        return (known, Part(reference, foreign=True), Part("\n\n"), *self.prompt(problem))
