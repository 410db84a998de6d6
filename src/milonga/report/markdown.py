"""Render a report as Markdown. Charts become words; text of a model stands in code fences that it cannot close."""

from __future__ import annotations

import re
from collections.abc import Sequence

from milonga.report.blocks import (
    Block,
    Code,
    Facts,
    Figures,
    Findings,
    Folded,
    Points,
    Report,
    Sheet,
    Talk,
    Talks,
    Text,
    Verdict,
)
from milonga.report.words import MOST_STEP, MOST_STEPS, clip_model_text, describe_answer, format_verdict
from milonga.text import escape_invisible


def to_markdown(report: Report) -> str:
    parts = [f"# {escape_markdown(report.title)}"]
    for chapter in report.chapters:
        if len(report.chapters) > 1:
            parts.append(f"## {escape_markdown(chapter.title)}")
        parts.append(escape_markdown(chapter.lead))
        level = "###" if len(report.chapters) > 1 else "##"
        for section in chapter.sections:
            parts += [f"{level} {escape_markdown(section.title)}", *(render_block(block) for block in section.blocks)]
    return "\n\n".join(part for part in parts if part) + "\n"


def render_block(block: Block) -> str:
    if isinstance(block, Sheet):
        return (f"**{escape_markdown(block.title)}**\n\n" if block.title else "") + render_table(block)
    if isinstance(block, Facts):
        return render_table(Sheet("", ("", ""), block.rows), "---")
    if isinstance(block, Text | Verdict):
        return escape_markdown(block.text)
    if isinstance(block, Points):
        return "\n".join(f"- {escape_markdown(text)}" for text in block.texts)
    if isinstance(block, Findings):
        return "\n".join(f"- **{escape_markdown(one.badge)}**: {escape_markdown(str(one))}" for one in block.findings)
    if isinstance(block, Figures):
        return "\n".join(f"- {escape_markdown(one.title)}: {escape_markdown('; '.join(one.said))}" for one in block.figures)
    if isinstance(block, Code):
        return render_fenced(block.text)
    if isinstance(block, Folded):
        return f"<details><summary>{escape_markdown(block.title)}</summary>\n\n{render_block(block.block)}\n\n</details>"
    return "\n\n".join(render_talk(one) for one in block.talks) if isinstance(block, Talks) else ""


def render_talk(one: Talk) -> str:
    shown = one.transcript
    parts = [
        f"**{escape_markdown(one.why)}** ({escape_markdown(shown.id)}, turn {shown.turn})",
        render_fenced(clip_model_text(shown.question)),
    ]
    if shown.steps:
        first = shown.steps[:MOST_STEPS]
        rows = [
            (clip_model_text(step.text, MOST_STEP), format_verdict(step.verdict), format_verdict(step.truth)) for step in first
        ]
        parts.append(render_table(Sheet("", ("step", "verifier", "truth"), rows), "---"))
    else:
        parts.append(render_fenced(clip_model_text(shown.text)))
    return "\n\n".join([*parts, escape_markdown(describe_answer(shown))])


def render_table(sheet: Sheet, numbers: str = "---:") -> str:
    marks = ["---", *[numbers] * (len(sheet.head) - 1)]
    return "\n".join(
        render_row(row)
        for row in ([escape_markdown(c) for c in sheet.head], marks, *([escape_markdown(c) for c in row] for row in sheet.rows))
    )


def render_row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def escape_markdown(text: str) -> str:
    """Escape a text so that Markdown shows it literally, on one line."""
    return "".join("\\" + c if c in "\\|*_`<>[]#&~$" else c for c in escape_invisible(" ".join(text.split())))


def render_fenced(text: str, language: str = "text") -> str:
    """Put a text into a code fence that is longer than any fence inside it."""
    shown = escape_invisible(text, lines=True)
    longest = max((len(found) for found in re.findall(r"`+", shown)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{shown}\n{fence}"
