"""Reading code blocks: what a model puts between fences, under a name such as `input`, and Python literals in it.

The name is the word behind the opening fence, or stands in the line before it. Nothing is run: literals are read as data.
Invariant: what is found has been read as literals, or is the text of a block; what cannot be read is None, never an error.
"""

from __future__ import annotations

import builtins
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from milonga.roles.prose import skip_thought
from milonga.roles.solver import LOOSE_FORMAT, NO_ANSWER, parse_plain
from milonga.sandbox.values import ANSWER, InvalidValue, parse_arguments, parse_literal
from milonga.tasks.answers import find_last_box
from milonga.types import Parsed, Solution

MARK = "```"
INLINE = re.compile(r"`([^`\n]+)`")
CALL = re.compile(r"(?P<name>[A-Za-z_]\w*)\((?P<inner>.*)\)", re.DOTALL)
NAMED = re.compile(r"(^|[,(\n])[^\S\n]*[A-Za-z_]\w*\s*=(?!=)")
"""The name before an argument or a value: `n = 3`."""
COMMENT = re.compile(r"(?<!\s)[ \t]+#[^'\"\n]*$", re.MULTILINE)
FENCE_NAME = re.compile(
    r"((?:in|out)puts?)[.,:]\s*(?!\s|\S+\.[A-Za-z]\w*\s*$)|([A-Za-z_]\w*)[.,:](?:\s*$|\s*(?=(?:def|class|import|from|assert)\s|[#@'\"\[({\d-]|(?:True|False|None)\b))"
)
"""The word behind a fence with a mark behind it, and then what was asked for, as in "```output. 3", or Python; what follows in
`python: main.py` is the name of a file."""
OPENING = re.compile(rf"{MARK}[A-Za-z]\w*")
"""A fence that opens a block and can close none: a model that forgot to close the block above it writes one within that."""
LABELS = {
    name: re.compile(rf"{name}s?(?:[ \t]*,|(?:[ \t]?\d{{1,3}})?[ \t]*(?::|\.(?!\w)))\s*", re.IGNORECASE)
    for name in ("input", "output")
}
"""The label before a value, by what it is: `Input: 3`, `input, 3`, `Input 2: 3`."""
NUMBER = re.compile(r"\s*(?:\d{1,3}[.):]|[-*•])\s+")
"""What may stand before an item of a list."""
LISTED = re.compile(NUMBER.pattern + r"`([^`\n]+)`\s*(?:(?:[-–—:.,(=]|→).*)?")
"""An item of a list that begins with inline code, and may go on with what is said about it."""
COMPARED = re.compile(r"[A-Za-z_]\w*\(.*\)\s*==.+")
"""A line that compares a call with something."""
LONGEST = 500
"""Characters of a line of prose that may hold what is looked for."""


@dataclass(frozen=True)
class Block:
    """A code block: the word behind its opening fence in lower case, the last line with a word before it, and its text."""

    name: str
    heading: str
    body: str


def find_fenced_blocks(text: str) -> list[Block]:
    """Find the code blocks of a text, in order. The last fence may be left open, and so may one above a fence
    with a name; a block may stand on one line."""
    blocks: list[Block] = []
    opened, heading = None, ""
    lines: list[str] = []
    for line in text.split("\n"):
        bare = line.strip()
        if opened is not None and OPENING.fullmatch(bare):
            blocks.append(_make_block(opened, heading, lines))
            opened = None
        if opened is None and bare.startswith(MARK):
            inner = bare.removeprefix(MARK)
            marked = FENCE_NAME.match(inner)
            if inner.endswith(MARK):
                whole = inner.removesuffix(MARK)
                name, body = (marked[1] or marked[2], whole[marked.end() :]) if marked else whole.partition(" ")[::2]
                blocks.append(Block(name.lower(), heading, body) if body else Block("", heading, name))
            elif marked:  # what follows keeps the indent of its line, since the lines below have it too
                behind = inner[marked.end() :]
                opened, lines = (marked[1] or marked[2]).lower(), [line[: line.index(MARK)] + behind] if behind else []
            else:
                opened, lines = next(iter(inner.lower().split()), ""), []
        elif opened is None:
            heading = bare[-LONGEST:] or heading  # bounded: it is read again for every block below it
        elif bare.endswith(MARK):
            lines.append(line.rstrip().removesuffix(MARK))
            blocks.append(_make_block(opened, heading, lines))
            opened = None
        else:
            lines.append(line)
    return blocks if opened is None else [*blocks, _make_block(opened, heading, lines)]


def _list_prose(text: str) -> list[str]:
    """List the lines of a text that stand in no code block."""
    lines, is_open = [], False
    for line in text.split("\n"):
        bare = line.strip()
        if bare.startswith(MARK) and not bare.removeprefix(MARK).endswith(MARK):
            is_open = not is_open or OPENING.fullmatch(bare) is not None
        elif not is_open:
            lines.append(line)
    return lines


def _make_block(name: str, heading: str, lines: list[str]) -> Block:
    return Block(name, heading, textwrap.dedent("\n".join(lines)).strip("\n"))


def find_labelled(text: str, name: str) -> Iterator[tuple[str, bool]]:
    """Find what a text gives under a name, the likeliest first; with each, whether it has the form asked for: a block of that
    name. Others are a block below the name, a line that begins with it, and literals behind it as a label in another block."""
    blocks = find_fenced_blocks(text)[::-1]
    yield from ((block.body, True) for block in blocks if block.name == name)
    mention = re.compile(rf"\b{name}s?\b", re.IGNORECASE)
    yield from ((block.body, False) for block in blocks if block.name != name and mention.search(block.heading))
    said = re.compile(rf"\W*(?:\w+\W+){{0,3}}?{name}\b[^:=]{{0,30}}[:=]\W*?(?=[\w'\"\[({{-])(.+)", re.IGNORECASE)
    lines = (said.fullmatch(line) for line in _list_prose(text)[::-1] if len(line) <= LONGEST)
    yield from ((line[1].strip(" *`."), False) for line in lines if line is not None)
    inner = (line for block in blocks if block.name != name for line in block.body.split("\n")[::-1])
    behind = (line[label.end() :] for line in inner if (label := LABELS[name].match(line)))
    yield from ((value, False) for value in behind if clean_arguments(value) is not None)


def find_named(text: str, name: str) -> Iterator[tuple[str, bool]]:
    """Find what a text gives under a name, or else as the one thing it gives: the last box, and the last piece of inline code.
    Who looks for two things must not take these for both."""
    yield from find_labelled(text, name)
    if (boxed := find_last_box(text)) is not None:
        yield boxed, False
    yield from ((found, False) for found in INLINE.findall(text)[-1:])


def join_inline(text: str) -> str:
    """Join the pieces of inline code, each on a line of its own."""
    return "\n".join(INLINE.findall(text))


def _drop_label(text: str, name: Literal["input", "output"]) -> str:
    """Return a text, up to what is too long for a literal, without the label before it and the spaces around it."""
    bare = text[: ANSWER + 1].strip()
    label = LABELS[name].match(bare)
    return bare[label.end() :] if label else bare


def clean_literal(text: str) -> str | None:
    """Return the text of a literal without what may stand around it, such as a comment, `result =` or `Output:`; None if it is
    none."""
    bare = _drop_label(text, "output")
    for form in (bare, NAMED.sub("", COMMENT.sub("", bare), count=1)):
        try:
            parse_literal(form)
        except InvalidValue:
            continue
        return form.strip()
    return None


def clean_arguments(text: str) -> str | None:
    """Return the text of a call's arguments, separated by commas: without the label `Input:`, the function's name and brackets,
    names of arguments, comments, and the breaks of lines between them; None if they are no literals."""
    bare = _drop_label(text, "input")
    called = CALL.fullmatch(COMMENT.sub("", bare))
    inner = bare if called is None or hasattr(builtins, called["name"]) else called["inner"]  # `range(3)` is no call of ours
    plain = NAMED.sub(r"\1", COMMENT.sub("", inner))
    for form in (bare, inner, plain, ",".join(line.rstrip(", ") for line in plain.split("\n") if line.strip())):
        try:
            parse_arguments(form)
        except InvalidValue:
            continue
        return form.strip() or None
    return None


def list_items(text: str) -> list[str]:
    """List the lines of a text that are not empty, without the marks of a list, and without what stands in a definition."""
    lines, is_inside = [], False
    for line in text.split("\n"):
        is_inside = line.startswith("def ") or (is_inside and (line[:1].isspace() or not line))
        if line.strip() and not is_inside:
            lines.append(line[mark.end() if (mark := NUMBER.match(line)) else 0 :].strip())
    return lines


def list_inputs(text: str, entry: str) -> tuple[list[str], bool]:
    """List the lines of a text that may be inputs for a function, and whether they stand in a block called `input`. Else they
    are those of the last block, with the other blocks of calls where it has only calls; or the inline code that begins the
    items of a list. Calls of other functions are none: their arguments are no input."""
    bodies = [(block.name, list_items(block.body)) for block in find_fenced_blocks(text)]
    named = [lines for name, lines in bodies if name == "input"]
    own = re.compile(rf"(?:{re.escape(entry)}|input(?=\((?![\s'\"])))\(.*\)")  # `input("Name?")` would ask a user
    called = [lines for _, lines in bodies if all(own.fullmatch(COMMENT.sub("", line)) for line in lines)]
    if not bodies:
        found = [item[1] for line in text.split("\n") if (item := LISTED.fullmatch(line))] or list_items(text)
    else:
        chosen = named or (called if bodies[-1][1] in called else [bodies[-1][1]])
        found = [line.removeprefix("input") if own.fullmatch(line) else line for lines in chosen for line in lines]
    return [line for line in found if not _calls_another(line, entry)], bool(named)


def _calls_another(line: str, entry: str) -> bool:
    """Whether a line is a call of another function, as `sin(0)`."""
    call = CALL.fullmatch(COMMENT.sub("", line))
    return call is not None and call["name"] != entry and not hasattr(builtins, call["name"])


def find_comparison(text: str) -> str:
    """Find the one comparison of a call with something that stands on a line of its own in a block, or in inline code, and
    write it as an assertion; of several none is the one."""
    code = [line for block in find_fenced_blocks(text) for line in block.body.split("\n")]
    found = {line.strip() for line in [*code, *INLINE.findall(text)] if COMPARED.fullmatch(line.strip())}
    return f"assert {found.pop()}" if len(found) == 1 else ""


def parse_named_answer(text: str, name: Literal["input", "output"], thought_steps: bool) -> Parsed:
    """Parse a solution in prose whose answer is an input or an output in a block of that name: the first thing under it that is
    made of literals, at a lower format score where it has another form. A block of that name without any holds a string that
    lost its quotes, if it is an output, and otherwise a wrong answer."""
    clean = clean_literal if name == "output" else clean_arguments
    value = parse_plain(text, thought_steps).get(Solution)
    found = list(find_named(skip_thought(text), name))
    named = [body for body, asked in found if asked]
    for body in named or [body for body, _ in found]:
        if (answer := clean(body)) is not None:
            return Parsed(replace(value, answer=answer), 1.0 if named else LOOSE_FORMAT)
    if not named:
        return Parsed(replace(value, answer=None), 0.0, NO_ANSWER)
    return Parsed(replace(value, answer=repr(_drop_label(named[0], name)) if name == "output" else named[0]), LOOSE_FORMAT)
