"""Render a report as Markdown. Charts become words; text of a model stands in code fences that it cannot close."""

from __future__ import annotations

import re
from collections.abc import Sequence

from milonga.report.blocks import Block, Code, Facts, Figures, Folded, Points, Report, Sheet, Talk, Talks, Text
from milonga.report.words import MOST_STEP, MOST_STEPS, answer_line, bounded, verdict_word
from milonga.text import visible


def to_markdown(report: Report) -> str:
    parts = [f"# {plain(report.title)}"]
    for chapter in report.chapters:
        if len(report.chapters) > 1:
            parts.append(f"## {plain(chapter.title)}")
        parts.append(plain(chapter.lead))
        level = "###" if len(report.chapters) > 1 else "##"
        for section in chapter.sections:
            parts += [f"{level} {plain(section.title)}", *(dressed(block) for block in section.blocks)]
    return "\n\n".join(part for part in parts if part) + "\n"


def dressed(block: Block) -> str:
    if isinstance(block, Sheet):
        return (f"**{plain(block.title)}**\n\n" if block.title else "") + markdown_table(block)
    if isinstance(block, Facts):
        return markdown_table(Sheet("", ("", ""), block.rows), "---")
    if isinstance(block, Text):
        return plain(block.text)
    if isinstance(block, Points):
        return "\n".join(f"- {plain(text)}" for text in block.texts)
    if isinstance(block, Figures):
        return "\n".join(f"- {plain(one.title)}: {plain('; '.join(one.said))}" for one in block.figures)
    if isinstance(block, Code):
        return fenced(block.text)
    if isinstance(block, Folded):
        return f"<details><summary>{plain(block.title)}</summary>\n\n{dressed(block.block)}\n\n</details>"
    return "\n\n".join(talk(one) for one in block.talks) if isinstance(block, Talks) else ""


def talk(one: Talk) -> str:
    shown = one.transcript
    parts = [f"**{plain(one.why)}** ({plain(shown.id)}, turn {shown.turn})", fenced(bounded(shown.question))]
    if shown.steps:
        first = shown.steps[:MOST_STEPS]
        rows = [(bounded(step.text, MOST_STEP), verdict_word(step.verdict), verdict_word(step.truth)) for step in first]
        parts.append(markdown_table(Sheet("", ("step", "verifier", "truth"), rows), "---"))
    else:
        parts.append(fenced(bounded(shown.text)))
    return "\n\n".join([*parts, plain(answer_line(shown))])


def markdown_table(sheet: Sheet, numbers: str = "---:") -> str:
    marks = ["---", *[numbers] * (len(sheet.head) - 1)]
    return "\n".join(
        line(row) for row in ([plain(c) for c in sheet.head], marks, *([plain(c) for c in row] for row in sheet.rows))
    )


def line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def plain(text: str) -> str:
    """Escape a text so that Markdown shows it literally, on one line."""
    return "".join("\\" + c if c in "\\|*_`<>[]#&~$" else c for c in visible(" ".join(text.split())))


def fenced(text: str, language: str = "text") -> str:
    """Put a text into a code fence that is longer than any fence inside it."""
    shown = visible(text, lines=True)
    longest = max((len(found) for found in re.findall(r"`+", shown)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{shown}\n{fence}"
