"""Reports: one HTML page about a run, a comparison, or several of them. It is for people; report.json is for programs.

`write_report` is what `milonga report` calls; `write_report_safely` is called at the end of every run and comparison.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from milonga.errors import UserError
from milonga.report.blocks import Report
from milonga.report.comparisons import build_comparison_chapter, is_comparison
from milonga.report.html import to_html
from milonga.report.markdown import to_markdown
from milonga.report.runs import build_run_chapter
from milonga.report.together import build_joint_chapter
from milonga.runfolder.files import translate_disk_errors, write_atomically
from milonga.runfolder.record import Record, read_record

PAGE = "report.html"
MOST_CHAPTERS = 12
"""Most runs that get a chapter each; more runs are only shown side by side."""


def build_report(folders: Sequence[Path]) -> Report:
    """Build the report of these folders; each is a run or a comparison."""
    found: list[Path | Record] = [folder if is_comparison(folder) else read_record(folder) for folder in folders]
    records = [one for one in found if isinstance(one, Record)]
    own = found if len(records) <= MOST_CHAPTERS else [one for one in found if isinstance(one, Path)]
    chapters = [build_joint_chapter(records)] if len(records) > 1 else []
    chapters += [build_run_chapter(one) if isinstance(one, Record) else build_comparison_chapter(one) for one in own]
    return Report(chapters[0].title if len(chapters) == 1 else "Milonga report", chapters)


def write_report(folders: Sequence[Path], out: Path, markdown: bool = False) -> list[Path]:
    """Write the HTML page, and with `markdown` the same as Markdown beside it; return the files written."""
    if out.is_dir() or out.suffix not in (".html", ".htm"):
        raise UserError(f"--out names the HTML file to write, such as report.html, not '{out}'; Markdown lies beside it")
    report = build_report(folders)
    with translate_disk_errors(out):
        out.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(out, to_html(report))
    written = [out]
    if markdown:
        written.append(out.with_suffix(".md"))
        write_atomically(written[-1], to_markdown(report))
    return written


def write_report_safely(folder: Path, say: Callable[[str], None]) -> None:
    """Write the report of a finished folder. An error is only printed: it must not make a finished run fail."""
    try:
        write_report([folder], folder / PAGE)
    except Exception as error:
        say(f"no {PAGE} was written ({type(error).__name__}: {' '.join(str(error).split())}); 'milonga report' tries again")
