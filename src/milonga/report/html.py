"""Render a report as one self-contained HTML file: no script, image, font or link to elsewhere.

Invariant: all text goes through `_escape_text`, so that text of a model or a user is never markup and hidden characters show.
The content security policy forbids everything but the one style sheet, named by its checksum.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from html import escape

from milonga import charts
from milonga.health import Finding
from milonga.report.blocks import (
    Block,
    Chapter,
    Code,
    Facts,
    Figures,
    Findings,
    Folded,
    Points,
    Report,
    Section,
    Sheet,
    Talk,
    Talks,
    Text,
    Verdict,
)
from milonga.report.words import MOST_STEP, MOST_STEPS, clip_model_text, describe_answer, format_verdict, is_setting
from milonga.text import escape_invisible

STYLE = (
    """
:root{color-scheme:light dark;--ink:#1f2328;--soft:#59636e;--line:#dfe3e8;--paper:#fff;--card:#f6f8fa;--good:#00734f;
--bad:#b34700;--mark:#fff3dc;--bad-card:#fdeadb;--amber:#805600;--amber-card:#fcf0d2}
@media screen and (prefers-color-scheme:dark){:root{--ink:#e6edf3;--soft:#9aa4af;--line:#30363d;--paper:#0d1117;--card:#151b23;
--good:#2fc49b;--bad:#f08a45;--mark:#3a2c12;--bad-card:#3d2716;--amber:#e8b95a;--amber-card:#3a2f14}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:1120px;padding:28px 24px 60px;background:var(--paper);color:var(--ink);
font:15px/1.5 system-ui,-apple-system,'Segoe UI',Roboto,sans-serif}
h1{font-size:26px;line-height:1.25;margin:0 0 4px;overflow-wrap:anywhere}
h2{font-size:21px;margin:44px 0 4px;overflow-wrap:anywhere}
h3{font-size:16px;margin:34px 0 10px;padding-bottom:5px;border-bottom:1px solid var(--line)}
h4{font-size:13.5px;margin:0 0 6px;color:var(--bad);font-weight:600}
p,ul{margin:6px 0 12px;max-width:80ch}
ul{padding-left:20px}
.lead{color:var(--soft);max-width:none}
nav{margin:14px 0 0;font-size:13.5px;color:var(--soft)}
nav a{color:inherit;margin-right:14px;white-space:nowrap}
.verdict{font-size:17px;line-height:1.45;max-width:90ch;margin:10px 0 14px;padding:12px 16px;background:var(--card);
border-left:4px solid var(--good);border-radius:4px}
.findings{list-style:none;padding:0;max-width:none}
.findings li{display:flex;flex-wrap:wrap;gap:2px 10px;align-items:baseline;padding:2px 0;overflow-wrap:anywhere}
.badge{padding:0 7px;border-radius:4px;font-size:13px;white-space:nowrap}
.badge.severe{background:var(--bad-card);color:var(--bad);font-weight:600}
.badge.warning{background:var(--amber-card);color:var(--amber)}
.help{color:var(--soft)}
.wide{overflow-x:auto;margin:0 0 18px}
table{border-collapse:collapse;font-size:13.5px;font-variant-numeric:tabular-nums}
caption{text-align:left;font-weight:600;padding:0 0 5px;white-space:nowrap}
th,td{padding:4px 14px 4px 0;text-align:left;vertical-align:top;border-bottom:1px solid var(--line)}
th{font-weight:500;color:var(--soft)}
.sheet th+th,.sheet td+td{text-align:right;padding:4px 0 4px 18px;white-space:nowrap}
.sheet th{vertical-align:bottom}
.sheet th+th{white-space:normal;max-width:17ch;overflow-wrap:anywhere}
.facts{width:100%}
.facts td{width:100%}
.facts th{white-space:nowrap;padding-right:22px}
.facts td{overflow-wrap:anywhere}
.figures{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,460px),1fr));gap:22px 30px;margin:0 0 20px}
figure{margin:0;min-width:0}
pre{margin:0 0 12px;padding:10px 12px;background:var(--card);border-radius:6px;overflow-x:auto;white-space:pre-wrap;
overflow-wrap:anywhere}
pre,code,.code{font:12.5px/1.45 ui-monospace,SFMono-Regular,Menlo,Consolas,monospace}
details{margin:0 0 14px}
summary{cursor:pointer;color:var(--soft);font-size:13.5px;margin-bottom:8px}
.talks{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,460px),1fr));gap:16px}
.talk{border:1px solid var(--line);border-radius:8px;padding:12px 14px;min-width:0;break-inside:avoid}
.talk p{margin:6px 0 0;font-size:13.5px}
.talk .where{color:var(--soft);margin:0 0 8px;overflow-wrap:anywhere}
.talk table{width:100%}
.talk td:first-child{font:12.5px/1.45 ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;overflow-wrap:anywhere;
white-space:pre-wrap}
.talk td+td,.talk th+th{white-space:nowrap;width:1%}
.right{color:var(--good)}.wrong{color:var(--bad)}
.disputed td{background:var(--mark)}
footer{margin-top:44px;padding-top:10px;border-top:1px solid var(--line);color:var(--soft);font-size:13px}
@media (max-width:600px){body{padding:18px 14px 40px}h1{font-size:21px}}
@media print{@page{margin:14mm}:root{color-scheme:light}body{max-width:none;padding:0;font-size:10.5pt}nav,footer{display:none}
figure,tr,pre,.verdict,.talk{break-inside:avoid}h2,h3,h4,caption,thead{break-after:avoid}h3{margin-top:22px}
.figures,.talks{display:block}.figures>*,.talks>*{display:inline-block;vertical-align:top;width:48.5%;margin:0 1% 12px 0}
.wide{overflow:visible}table{font-size:9pt}.sheet th+th,.sheet td+td{padding-left:10px;white-space:normal}
.verdict{background:none;border:1px solid var(--line);border-left:4px solid var(--good);font-size:12pt}
pre{border:1px solid var(--line)}
}
"""
    + charts.STYLE
)


def to_html(report: Report) -> str:
    several = len(report.chapters) > 1
    body = "".join(_render_chapter(chapter, at, several) for at, chapter in enumerate(report.chapters))
    checksum = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{checksum}'; base-uri 'none'; form-action 'none'"
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width,initial-scale=1">\n<meta name="referrer" content="no-referrer">\n'
        f"<title>{_escape_text(report.title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n"
        f"<header><h1>{_escape_text(report.title)}</h1>{_render_contents(report)}</header>\n<main>{body}</main>\n"
        "<footer>Written by <code>milonga report</code>. Every number comes from the folder itself.</footer>\n"
        "</body>\n</html>\n"
    )


def _render_contents(report: Report) -> str:
    """Render the table of contents: the chapters, or the sections of a single chapter."""
    if len(report.chapters) > 1:
        places = [(f"c{at}", chapter.title) for at, chapter in enumerate(report.chapters)]
    else:
        places = [(f"c0s{at}", section.title) for at, section in enumerate(report.chapters[0].sections)]
    return "<nav>" + " ".join(f'<a href="#{place}">{_escape_text(title)}</a>' for place, title in places) + "</nav>"


def _render_section(section: Section, id: str) -> str:
    blocks = "".join(map(render_block, section.blocks))
    return f'<section id="{id}"><h3>{_escape_text(section.title)}</h3>{blocks}</section>\n'


def _render_chapter(chapter: Chapter, at: int, several: bool) -> str:
    head = f'<h2 id="c{at}">{_escape_text(chapter.title)}</h2>' if several else ""
    sections = "".join(_render_section(section, f"c{at}s{k}") for k, section in enumerate(chapter.sections))
    return f'{head}<p class="lead">{_escape_text(chapter.lead)}</p>\n{sections}'


def render_block(block: Block) -> str:
    if isinstance(block, Sheet):
        return _render_sheet(block)
    if isinstance(block, Facts):
        rows = "".join(
            f"<tr><th scope=row>{_escape_text(name)}</th><td>{_escape_text(what)}</td></tr>" for name, what in block.rows
        )
        return f'<div class="wide"><table class="facts">{rows}</table></div>'
    if isinstance(block, Text):
        return f"<p>{_escape_text(block.text)}</p>"
    if isinstance(block, Verdict):
        return f'<p class="verdict">{_escape_text(block.text)}</p>'
    if isinstance(block, Points):
        return "<ul>" + "".join(f"<li>{_escape_text(text)}</li>" for text in block.texts) + "</ul>"
    if isinstance(block, Findings):
        return f'<ul class="findings">{"".join(map(_render_finding, block.findings))}</ul>'
    if isinstance(block, Figures):
        return '<div class="figures">' + "".join(f"<figure>{one.svg}</figure>" for one in block.figures) + "</div>"
    if isinstance(block, Code):
        return f"<pre>{_escape_text(block.text, lines=True)}</pre>"
    if isinstance(block, Folded):
        return f"<details><summary>{_escape_text(block.title)}</summary>{render_block(block.block)}</details>"
    assert isinstance(block, Talks)
    return '<div class="talks">' + "".join(render_talk(one) for one in block.talks) + "</div>"


def _render_finding(one: Finding) -> str:
    """Render a finding as the board does. The symbol differs too, so that colour alone never carries the meaning."""
    kind, mark = ("severe", "✗") if one.severe else ("warning", "!")
    helps = f'<span class="{"code" if is_setting(one.help) else "help"}">{_escape_text(one.help)}</span>' if one.help else ""
    badge = f'<span class="badge {kind}">{mark} {_escape_text(one.badge)}</span>'
    return f"<li>{badge} <span>{_escape_text(one.text)}</span> {helps}</li>"


def _render_sheet(sheet: Sheet) -> str:
    caption = f"<caption>{_escape_text(sheet.title)}</caption>" if sheet.title else ""
    rows = "".join(map(render_row, sheet.rows))
    return f'<div class="wide"><table class="sheet">{caption}{_render_head(sheet.head)}{rows}</table></div>'


def _render_head(names: Sequence[str]) -> str:
    return "<thead><tr>" + "".join(f"<th scope=col>{_escape_text(name)}</th>" for name in names) + "</tr></thead>"


def render_row(cells: Sequence[str]) -> str:
    return "<tr>" + "".join(f"<td>{_escape_text(cell)}</td>" for cell in cells) + "</tr>"


def render_talk(talk: Talk) -> str:
    one = talk.transcript
    where = f"{one.id}, turn {one.turn}" + (f", unreadable: {one.invalid}" if one.invalid else "")
    if one.steps:
        rows = "".join(
            f"<tr{' class=disputed' if step.disputed else ''}><td>{_escape_text(clip_model_text(step.text, MOST_STEP))}</td>"
            f"{_render_verdict_cell(step.verdict)}{_render_verdict_cell(step.truth)}</tr>"
            for step in one.steps[:MOST_STEPS]
        )
        left = len(one.steps) - MOST_STEPS
        more = f"<p>… and {left} more steps</p>" if left > 0 else ""
        work = f"<table>{_render_head(('step', 'verifier', 'truth'))}{rows}</table>{more}"
    else:
        work = f"<pre>{_escape_text(clip_model_text(one.text), lines=True)}</pre>"
    check = one.check_text.strip()
    said = (
        f"<details><summary>the verification</summary><pre>{_escape_text(clip_model_text(check), lines=True)}</pre></details>"
        if check
        else ""
    )
    return (
        f'<article class="talk"><h4>{_escape_text(talk.why)}</h4><p class="where">{_escape_text(where)}</p>'
        f"<pre>{_escape_text(clip_model_text(one.question), lines=True)}</pre>{work}"
        f"<p>{_escape_text(describe_answer(one))}</p>{said}</article>"
    )


def _render_verdict_cell(value: bool | None) -> str:
    if value is None:
        return "<td>—</td>"
    return f'<td class="{format_verdict(value)}">{"✓" if value else "✗"} {format_verdict(value)}</td>'


def _escape_text(text: str, lines: bool = False) -> str:
    return escape(escape_invisible(text, lines), quote=True)
