"""Roles that search: a solver that calls a retrieval tool before it answers, a proposer that searches from an answer
back to a question, and a reader that answers from given passages alone; and a planner whose searches another reads for it.

A conversation is made of turns that each do one thing: search, or end. The tool's results come between the turns, as
foreign text. In tags and in the terse dialect a turn that holds anything else, such as passages that the model wrote itself,
cannot be read; in prose the first thing that a turn does is taken, and what it made up besides is evidence of nothing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from milonga.roles.base import ROLES, Dialect, Role
from milonga.roles.proposer import Proposal
from milonga.roles.prose import skip_thought
from milonga.roles.solver import LOOSE_FORMAT, StepSolver
from milonga.tasks.answers import find_last_box
from milonga.tasks.base import Task, Tool
from milonga.types import Parsed, Part, Problem, Prompt, Rollout, Solution

SEARCH, ANSWER, QUESTION = "?", "#", "!"
"""First characters of a turn in the terse dialect."""
TAGS = {SEARCH: "search", ANSWER: "answer", QUESTION: "question"}
NOTHING = "-"
"""The result of a search that found nothing, in the terse dialect."""
RESULTS = "RESULTS:"
"""What stands above passages in prose. A model that writes it itself is about to make them up, and is stopped."""
LABEL = re.compile(
    r"[\s>*#_\-•`]{0,8}(?:\d{1,2}[.)]\s{0,2})?[*_`<]{0,3}(?:(?:my|the|next|new|final)\s)?(?P<name>search|answer|question|purpose)"
    r"(?:\s(?:query|terms?|words|for))?[*_`]{0,3}\s?[:>][*_`]{0,3}(?P<body>.*)",
    re.IGNORECASE,
)
"""A line of prose that says what a turn does, plain or bold, in a list or in a tag."""
SAID = re.compile(r"\banswer(?:\s{1,4}to\s{1,4}[^.:\n]{1,80})?\s{1,4}is\s{0,4}:?\s{1,4}(?P<body>[^\n]{1,200})", re.IGNORECASE)
# Small models copy examples that have words of their own, so that all forms are in brackets.
PLAIN_SEARCH = """\
You can search a collection of documents. To search, write one line of this form and stop after it:

SEARCH: [words to look for]

The next message shows you what was found, so never write it yourself. You can search at most {calls} times, with one SEARCH: \
line in a message."""
SEARCH_ON = "Now write one line: either it begins with SEARCH: and has other words to look for, or it"
PLAIN_SOLVE = f"""\
Answer the question below. {PLAIN_SEARCH} When you know the answer, write one line of this form, with nothing but the answer \
itself in as few words as can be:

ANSWER: [the answer]

Question: """
PLAIN_PROPOSE = f"""\
You are given an answer, a name or a number that stands in some documents, and look for a question to which it is the only \
answer. {PLAIN_SEARCH} Search for the given answer \
first, and then for what the documents tell about it. At the end write the question, in one line of this form:

QUESTION: [the question]

It must be a whole sentence that can be understood by itself, must follow from the documents, must take some searching, and \
must not hold the given answer.

The given answer: """
PLAIN_READ = """\
Answer the question from the documents below alone. Say in a sentence or two what they tell about it. Then write one last line \
of this form, with nothing but the answer itself in as few words as can be, or "unknown" if they do not tell:

ANSWER: [the answer]

Documents:
"""
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
PLAN = """\
Answer the question below. You cannot see any documents, but an assistant can search a collection of documents and read what \
is found for you. To ask the assistant, write two lines of this form and nothing after them:

SEARCH: [words to look for]
PURPOSE: [what you want to know from what is found]

You are then told what the documents say about it. You can ask at most {calls} times, once in a message. When you know the \
answer, write one line of this form, with nothing but the answer itself in as few words as can be:

ANSWER: [the answer]

Question: """
CONDENSE = """

Write down in a few sentences what they say that serves the purpose, with the names and numbers that matter. If they say \
nothing about it, write that they do not say. Use the documents alone.

Documents:
"""


def parse_turn(text: str, dialect: Dialect, *kinds: str) -> tuple[str, str] | None:
    """Parse a turn into (kind, content); None if it does none of `kinds`, or anything besides.

    plain: the first labelled line counts, whatever stands around it. tagged: what stands before the tag is thought, and may be
    anything but tags of ours.
    """
    if dialect == "terse":
        body = text[1:].strip()
        return (text[0], body) if text[:1] in kinds and body and "\n" not in text else None
    if dialect == "plain":
        names = {TAGS[kind]: kind for kind in kinds}
        return next(((names[name], body) for name, body in find_labels(text) if name in names), None)
    names_of_tags = "|".join(TAGS[kind] for kind in kinds)
    mark = r"</?(?:search|answer|question|documents?)>"
    found = re.fullmatch(rf"(?:(?!{mark}).)*<({names_of_tags})>((?:(?!{mark}).)+)</\1>\s*", text, re.DOTALL)
    if found is None or not found[2].strip():
        return None
    return next(kind for kind, name in TAGS.items() if name == found[1]), found[2].strip()


def find_labels(text: str) -> list[tuple[str, str]]:
    """Find the labelled lines of prose behind its thought, in order: the label in lower case, and what it says.

    Of a label that stands alone the next line that is not empty is what it says.
    """
    found: list[tuple[str, str]] = []
    waiting = ""
    for line in skip_thought(text).splitlines():
        label = LABEL.match(line)
        name, body = (label["name"].lower(), _strip_marks(label["body"])) if label else (waiting, _strip_marks(line))
        waiting = "" if body else name
        if name and body:
            found.append((name, body))
    return found


def _strip_marks(text: str) -> str:
    """Strip what may stand around the content of a line: a closing tag, a box, bold marks, quotes, brackets."""
    bare = re.sub(r"</\w{1,10}>\s*$", "", text).strip()
    return (find_last_box(bare) or bare).strip(" \t*_`\"'“”[]")


def parse_prose_end(text: str, kind: str) -> tuple[str | None, float]:
    """Parse how a turn of prose ends: what its last label of this kind says, and a format score. An answer without a label is
    taken from a box or a sentence at a lower score, and so is one that stands beside a search."""
    labels = find_labels(text)
    said = [body for name, body in labels if name == TAGS[kind]]
    if said:
        return said[-1], LOOSE_FORMAT if any(name == TAGS[SEARCH] for name, _ in labels) else 1.0
    if kind != ANSWER or labels:
        return None, 0.0
    behind = skip_thought(text)
    sentence = SAID.search(behind)
    loose = find_last_box(behind) or (_strip_marks(sentence["body"]) if sentence else "")
    return loose or None, LOOSE_FORMAT if loose else 0.0


def write_turn(kind: str, content: str, dialect: Dialect) -> str:
    """Write the text that parses as this turn."""
    if dialect == "plain":
        return f"{TAGS[kind].upper()}: {content}"
    return f"{kind}{content}" if dialect == "terse" else f"<{TAGS[kind]}>{content}</{TAGS[kind]}>"


def _parse_search(text: str, dialect: Dialect, end: str) -> str | None:
    """Parse the search query of a turn; None if it does not search, or first does what ends a conversation."""
    found = parse_turn(text, dialect, SEARCH, *([end] if dialect == "plain" else []))
    return None if found is None or found[0] != SEARCH else found[1]


def _parse_end(text: str, dialect: Dialect, kind: str) -> tuple[str | None, float, str | None]:
    """Parse the end of a conversation: what it says (None if it is none), a format score, and why it cannot be read."""
    found = parse_turn(text, dialect, SEARCH, kind)
    said, score = parse_prose_end(text, kind) if dialect == "plain" else (found[1], 1.0) if found else (None, 0.0)
    if found is not None and found[0] == SEARCH and (dialect != "plain" or said is None):
        return None, 0.0, "still searching"
    return said, score, None if said is not None else f"no {TAGS[kind]}"


def _render_passages(passages: Sequence[str], dialect: Dialect, end: str, is_last: bool) -> Prompt:
    """Render the passages of a search result as a prompt. `end` is the kind of turn that a conversation ends with; in prose it
    is said what may come next."""
    if dialect == "terse":
        return tuple(part for passage in passages or [NOTHING] for part in (Part(passage, foreign=True), Part("\n")))
    if dialect == "plain":
        shown = number_passages(passages) if passages else (Part("Nothing was found.\n"),)
        says = "asks a question whose answer is the given one" if end == QUESTION else "gives the answer"
        wanted = f"begins with {TAGS[end].upper()}: and {says}."
        more = "Searching is over. Now write the one line that" if is_last else SEARCH_ON
        return (Part(f"{RESULTS}\n"), *shown, Part(f"\n{more} {wanted}"))
    if not passages:
        return (Part("<documents>\nNothing was found.\n</documents>\n"),)
    shown = tuple(part for p in passages for part in (Part("<document>"), Part(p, foreign=True), Part("</document>\n")))
    return (Part("<documents>\n"), *shown, Part("</documents>\n"))


def number_passages(passages: Sequence[str]) -> Prompt:
    """Render passages in prose: each on a line of its own, behind its number."""
    return tuple(
        part for n, passage in enumerate(passages, 1) for part in (Part(f"[{n}] "), Part(passage, foreign=True), Part("\n"))
    )


@ROLES.register("searcher")
class Searcher(StepSolver):
    """Solves by searching. terse: turns such as `?tom ally`, and `#ann` in the end. tagged: in their tags. plain: in lines that
    begin with SEARCH: or ANSWER:."""

    name = "searcher"

    def __init__(self, dialect: Dialect, calls: int = 6) -> None:
        super().__init__(dialect)
        self.calls = calls

    @property
    def stop(self) -> tuple[str, ...]:
        return {"terse": (), "tagged": ("</search>", "</answer>"), "plain": (RESULTS,)}[self.dialect]

    def prompt(self, problem: Problem, target: Rollout | None = None) -> Prompt:
        if self.dialect == "terse":
            return super().prompt(problem, target)
        asked = TAGGED_SOLVE if self.dialect == "tagged" else PLAIN_SOLVE
        return (Part(asked.format(calls=self.calls)), Part(problem.text, foreign=True), Part("\n\n"))

    def adapt_to_tool(self, tool: Tool) -> Role:
        return type(self)(self.dialect, tool.calls)

    def parse_tool_call(self, text: str) -> str | None:
        return _parse_search(text, self.dialect, ANSWER)

    def render_tool_result(self, passages: Sequence[str], is_last: bool = False) -> Prompt:
        return _render_passages(passages, self.dialect, ANSWER, is_last)

    def parse(self, text: str, target: Rollout | None = None) -> Parsed:
        answer, score, why = _parse_end(text, self.dialect, ANSWER)
        return Parsed(Solution((), (), answer), score, why)


@ROLES.register("search_proposer")
class SearchProposer(Role):
    """Given an answer, as the text of a problem, it searches and ends with a question. terse: `!tom ally foe` behind `<ann`.
    plain: in lines that begin with SEARCH: or QUESTION:."""

    name = "search_proposer"
    judges = False

    def __init__(self, dialect: Dialect, calls: int = 6) -> None:
        super().__init__(dialect)
        self.calls = calls

    @property
    def stop(self) -> tuple[str, ...]:
        return {"terse": (), "tagged": ("</search>", "</question>"), "plain": (RESULTS,)}[self.dialect]

    def prompt(self, problem: Problem, target: Rollout | None = None) -> Prompt:
        if self.dialect == "terse":
            return (Part("<"), Part(problem.text, foreign=True), Part("\n"))
        asked, begin = (TAGGED_PROPOSE, "") if self.dialect == "tagged" else (PLAIN_PROPOSE, "Begin with one SEARCH: line.")
        return (Part(asked.format(calls=self.calls)), Part(problem.text, foreign=True), Part(f"\n\n{begin}"))

    def adapt_to_tool(self, tool: Tool) -> Role:
        return SearchProposer(self.dialect, tool.calls)

    def parse_tool_call(self, text: str) -> str | None:
        return _parse_search(text, self.dialect, QUESTION)

    def render_tool_result(self, passages: Sequence[str], is_last: bool = False) -> Prompt:
        return _render_passages(passages, self.dialect, QUESTION, is_last)

    def parse(self, text: str, target: Rollout | None = None) -> Parsed:
        question, score, why = _parse_end(text, self.dialect, QUESTION)
        return Parsed(Proposal(question or "", None, ""), score, why)


@ROLES.register("search_reader")
class SearchReader(StepSolver):
    """Answers from passages that stand in the text of its problem, before the question. It writes as the solver does; in prose
    its answer stands in a line that begins with ANSWER:."""

    name = "search_reader"

    def prompt(self, problem: Problem, target: Rollout | None = None) -> Prompt:
        if self.dialect == "plain":
            passages, _, question = problem.text.rpartition("\n\n")
            shown = number_passages(passages.split("\n"))
            return (Part(PLAIN_READ), *shown, Part("\nQuestion: "), Part(question, foreign=True), Part("\n"))
        opening, closing = ("|", "\n") if self.dialect == "terse" else (TAGGED_READ, "\n\nSolution:\n")
        return (Part(opening), Part(problem.text, foreign=True), Part(closing))

    def parse(self, text: str, target: Rollout | None = None) -> Parsed:
        if self.dialect != "plain":
            return super().parse(text, target)
        answer, score = parse_prose_end(text, ANSWER)
        return Parsed(Solution((), (), answer), score, None if answer else "no answer")


@dataclass(frozen=True)
class Request(Solution):
    """A planner's request for documents, by their names or by a search. If the rollout ends with it, it is graded as wrong,
    unless it has an answer besides."""

    names: str = ""
    purpose: str = ""


@dataclass(frozen=True)
class Note:
    """A reader's notes on its documents: one line for each, or one on all of them."""

    lines: tuple[str, ...]
    ends: tuple[int, ...] = ()


@dataclass(frozen=True)
class Documents:
    """What a reader is handed: documents, and what they are to be read for."""

    purpose: str
    ends: tuple[int, ...] = ()


def make_document_bin(talk: Rollout, number: int, documents: Sequence[str], purpose: str) -> Rollout:
    """Make the reader's input: some documents and a purpose. Its target is the planner's conversation that asked for them."""
    parsed = Parsed(Documents(purpose), 1.0)
    rollout = Rollout.from_text(f"{talk.id}:{number}", "documents", talk.problem, "\n".join(documents), parsed)
    return replace(rollout, targets=(talk,))


@ROLES.register("search_planner")
class SearchPlanner(Searcher):
    """Asks in prose for a search and says what for, or answers. What it searches for is read by another, not shown to it."""

    name = "search_planner"
    repeats = False

    def prompt(self, problem: Problem, target: Rollout | None = None) -> Prompt:
        return (Part(PLAN.format(calls=self.calls)), Part(problem.text, foreign=True), Part("\n\n"))

    def parse_tool_call(self, text: str) -> str | None:
        return None

    def find_documents(self, task: Task, talk: Rollout) -> list[str]:
        """Find the documents of a request by the task's tool."""
        return [] if task.tool is None else list(task.tool.answer(talk.parsed.get(Request).names))

    def render_notes(self, problem: Problem, notes: Sequence[str], is_last: bool = False) -> Prompt:
        """Render what was noted of the documents; `is_last`: nothing more can be asked for."""
        shown = number_passages(notes) if notes else (Part("Nothing was found.\n"),)
        more = "You can ask no more. Write" if is_last else "Ask again with SEARCH: and PURPOSE:, or write"
        return (Part(f"{RESULTS}\n"), *shown, Part(f"\n{more} the answer in a line that begins with ANSWER:"))

    def parse(self, text: str, target: Rollout | None = None) -> Parsed:
        """Parse what a turn does first. A request without a purpose has its search for one, at a lower format score."""
        said = find_labels(text)
        first = next((name for name, _ in said if name in ("search", "answer")), "")
        if first != "search":
            return super().parse(text, target)
        query, purpose = (next((body for name, body in said if name == label), "") for label in ("search", "purpose"))
        answer, _ = parse_prose_end(text, ANSWER)
        return Parsed(Request((), (), answer, query, purpose or query), 1.0 if purpose and not answer else LOOSE_FORMAT)


@ROLES.register("condenser")
class Condenser(Role):
    """Condenses documents for a purpose that stands in its prompt, in prose."""

    name = "condenser"
    judges = False

    @property
    def stop(self) -> tuple[str, ...]:
        return ()

    def prompt(self, problem: Problem, target: Rollout | None = None) -> Prompt:
        """Render the documents of a bin and their purpose; without one, the problem is the purpose."""
        purpose = problem.text if target is None else target.parsed.get(Documents).purpose
        shown = number_passages([] if target is None else target.text.split("\n"))
        return (
            Part("Read the documents below for this purpose and no other: "),
            Part(purpose, foreign=True),
            Part(CONDENSE),
            *shown,
        )

    def parse(self, text: str, target: Rollout | None = None) -> Parsed:
        note = " ".join(skip_thought(text).split())
        return Parsed(Note((note,) if note else ()), float(bool(note)), None if note else "no note")


def make_parsed_problem(id: str, question: str, answer: str, passages: Sequence[str]) -> Problem:
    """Make a problem from a question and the passages that a reader may use."""
    return Problem(id, "\n".join([*passages, "", question]), answer)


def adapt_roles_to_tool(roles: Mapping[str, Role], tool: Tool) -> dict[str, Role]:
    """Adapt roles to a task with a tool: step solvers become searchers, and searchers learn the limit on calls. What the config
    says about an agent stays."""
    adapted = {
        agent: Searcher(role.dialect, tool.calls) if type(role) is StepSolver else role.adapt_to_tool(tool)
        for agent, role in roles.items()
    }
    for agent, role in roles.items():
        adapted[agent].template, adapted[agent].thought_steps = role.template, role.thought_steps
    return adapted
