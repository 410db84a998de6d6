"""Roles that search: a solver that calls a retrieval tool before it answers, a proposer that searches from an answer
back to a question, and a reader that answers from given passages alone.

A conversation is made of turns that each do one thing: search, or end. The tool's results come between the turns, as
foreign text; a turn that holds anything else, such as passages that the model wrote itself, cannot be read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from milonga.roles.base import ROLES, Dialect, Role
from milonga.roles.proposer import Proposal
from milonga.roles.solver import StepSolver
from milonga.tasks.base import Tool
from milonga.types import Parsed, Part, Problem, Prompt, Rollout, Solution

SEARCH, ANSWER, QUESTION = "?", "#", "!"
"""First characters of a turn in the terse dialect."""
TAGS = {SEARCH: "search", ANSWER: "answer", QUESTION: "question"}
NOTHING = "-"
"""The result of a search that found nothing, in the terse dialect."""
TAGGED_SOLVE = """\
Answer the question below. You can search a collection of documents: write a few words inside <search> and </search>, and the \
documents that fit best are shown to you. Search as often as you need, at most {calls} times, one search at a time. Then give \
only the answer inside <answer> and </answer>.

Question:
"""
TAGGED_PROPOSE = """\
Below is an answer. Find a question to which it is the only answer, and which takes several searches to answer. You can search \
a collection of documents: write a few words inside <search> and </search>, and the documents that fit best are shown to you. \
Search at most {calls} times, one search at a time; start from the answer and go from document to document. Then write only \
the question, without the answer in it, inside <question> and </question>.

Answer:
"""
TAGGED_READ = """\
Read the documents below and answer the question behind them from these documents alone. Work inside <think> and </think>, and \
put every logical step of the work into its own <step> and </step>. After the work, give only the answer inside \
<answer>\\boxed{ }</answer>.

"""


def parse_turn(text: str, dialect: Dialect, *kinds: str) -> tuple[str, str] | None:
    """Parse a turn into (kind, content); None if it does none of `kinds`, or anything besides.

    tagged: what stands before the tag is thought, and may be anything but tags of ours.
    """
    if dialect == "terse":
        body = text[1:].strip()
        return (text[0], body) if text[:1] in kinds and body and "\n" not in text else None
    names = "|".join(TAGS[kind] for kind in kinds)
    mark = r"</?(?:search|answer|question|documents?)>"
    found = re.fullmatch(rf"(?:(?!{mark}).)*<({names})>((?:(?!{mark}).)+)</\1>\s*", text, re.DOTALL)
    if found is None or not found[2].strip():
        return None
    return next(kind for kind, name in TAGS.items() if name == found[1]), found[2].strip()


def write_turn(kind: str, content: str, dialect: Dialect) -> str:
    """Write the text that parses as this turn."""
    return f"{kind}{content}" if dialect == "terse" else f"<{TAGS[kind]}>{content}</{TAGS[kind]}>"


def _parse_search(text: str, dialect: Dialect) -> str | None:
    """Parse the search query of a turn; None if it does not search."""
    found = parse_turn(text, dialect, SEARCH)
    return None if found is None else found[1]


def _render_passages(passages: Sequence[str], dialect: Dialect) -> Prompt:
    """Render the passages of a search result as a prompt."""
    if dialect == "terse":
        return tuple(part for passage in passages or [NOTHING] for part in (Part(passage, foreign=True), Part("\n")))
    if not passages:
        return (Part("<documents>\nNothing was found.\n</documents>\n"),)
    shown = [part for p in passages for part in (Part("<document>"), Part(p, foreign=True), Part("</document>\n"))]
    return (Part("<documents>\n"), *shown, Part("</documents>\n"))


@ROLES.register("searcher")
class Searcher(StepSolver):
    """Solves by searching. terse: turns such as `?tom ally`, and `#ann` in the end. tagged: in their tags."""

    name = "searcher"

    def __init__(self, dialect: Dialect, calls: int = 6) -> None:
        super().__init__(dialect)
        self.calls = calls

    @property
    def stop(self) -> tuple[str, ...]:
        return () if self.dialect == "terse" else ("</search>", "</answer>")

    def prompt(self, problem: Problem, target: Rollout | None = None) -> Prompt:
        if self.dialect == "terse":
            return super().prompt(problem, target)
        return (Part(TAGGED_SOLVE.format(calls=self.calls)), Part(problem.text, foreign=True), Part("\n\n"))

    def parse_tool_call(self, text: str) -> str | None:
        return _parse_search(text, self.dialect)

    def render_tool_result(self, passages: Sequence[str]) -> Prompt:
        return _render_passages(passages, self.dialect)

    def parse(self, text: str, target: Rollout | None = None) -> Parsed:
        found = parse_turn(text, self.dialect, SEARCH, ANSWER)
        if found is None or found[0] == SEARCH:
            return Parsed(Solution((), (), None), 0.0, "no answer" if found is None else "still searching")
        return Parsed(Solution((), (), found[1]), 1.0)


@ROLES.register("search_proposer")
class SearchProposer(Role):
    """Given an answer, as the text of a problem, it searches and ends with a question. terse: `!tom ally foe` behind `<ann`."""

    name = "search_proposer"
    judges = False

    def __init__(self, dialect: Dialect, calls: int = 6) -> None:
        super().__init__(dialect)
        self.calls = calls

    @property
    def stop(self) -> tuple[str, ...]:
        return () if self.dialect == "terse" else ("</search>", "</question>")

    def prompt(self, problem: Problem, target: Rollout | None = None) -> Prompt:
        if self.dialect == "terse":
            return (Part("<"), Part(problem.text, foreign=True), Part("\n"))
        return (Part(TAGGED_PROPOSE.format(calls=self.calls)), Part(problem.text, foreign=True), Part("\n\n"))

    def parse_tool_call(self, text: str) -> str | None:
        return _parse_search(text, self.dialect)

    def render_tool_result(self, passages: Sequence[str]) -> Prompt:
        return _render_passages(passages, self.dialect)

    def parse(self, text: str, target: Rollout | None = None) -> Parsed:
        found = parse_turn(text, self.dialect, SEARCH, QUESTION)
        if found is None or found[0] == SEARCH:
            return Parsed(Proposal("", None, ""), 0.0, "no question" if found is None else "still searching")
        return Parsed(Proposal(found[1], None, ""), 1.0)


@ROLES.register("search_reader")
class SearchReader(StepSolver):
    """Answers from passages that stand in the text of its problem, before the question; it writes as the solver does."""

    name = "search_reader"

    def prompt(self, problem: Problem, target: Rollout | None = None) -> Prompt:
        opening, closing = ("|", "\n") if self.dialect == "terse" else (TAGGED_READ, "\n\nSolution:\n")
        return (Part(opening), Part(problem.text, foreign=True), Part(closing))


def make_parsed_problem(id: str, question: str, answer: str, passages: Sequence[str]) -> Problem:
    """Make a problem from a question and the passages that a reader may use."""
    return Problem(id, "\n".join([*passages, "", question]), answer)


def adapt_roles_to_tool(roles: Mapping[str, Role], tool: Tool) -> dict[str, Role]:
    """Adapt roles to a task with a tool: step solvers become searchers, and searchers learn the limit on calls."""

    def seated(role: Role) -> Role:
        if type(role) in (StepSolver, Searcher):
            return Searcher(role.dialect, tool.calls)
        return SearchProposer(role.dialect, tool.calls) if type(role) is SearchProposer else role

    return {agent: seated(role) for agent, role in roles.items()}
