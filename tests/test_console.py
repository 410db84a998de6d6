"""What is on a terminal while a run goes on, and what stays there."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from milonga.cli.show import print_health
from milonga.comparing.pool import Run
from milonga.comparing.progress import Progress
from milonga.health import Finding
from milonga.runfolder.console import COLUMNS, SHOWN, LiveView, Panel

ROW: dict[str, Any] = dict.fromkeys(COLUMNS, 0.25) | {"learner": "generator", "rollouts/generator/reward": 0.5}
"""A turn with something in every column, as with reward functions of one's own."""
FINDINGS = [
    Finding("truncated", "43 % of the generator's outputs are cut at the limit", "--set sampling.max_tokens=512", severe=True),
    Finding("no signal", "only 12 % of what the generator learns from teaches it anything", "--set batch.rollouts=16"),
    Finding("one-sided", "the verifier calls 96 % of the solutions right, and 36 % are: its verdicts are one-sided"),
]
GOING = "generator: 12 of 256 outputs written, the next 244 are at token 6 of at most 1,024  [0:10 < 1:00]"
CLOCK = re.compile(r"\[\d:\d\d < \d:\d\d\]( |$)")


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[[], str]:
    """What was written by now to a terminal of 80 columns and 24 lines."""
    for name, value in {"FORCE_COLOR": "1", "TERM": "xterm-256color", "COLUMNS": "80", "LINES": "24"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("NO_COLOR", raising=False)
    return lambda: capsys.readouterr().err


def read_screen(written: str) -> list[str]:
    """What a terminal shows after all this: Rich goes up, erases lines and writes them anew."""
    lines, at = [""], 0
    for number, code, sign, text in re.findall(r"\x1b\[\??([\d;]*)([A-Za-z])|([\r\n])|([^\x1b\r\n]+)", written):
        if code == "A":
            at -= int(number or 1)
            assert at >= 0, "above the screen nothing can be erased"
        elif code == "K":
            lines[at] = ""
        elif sign == "\n":
            at += 1
            lines += [""] * (at == len(lines))
        lines[at] += text
    return "\n".join(lines).rstrip().split("\n")


def show_turns(view: LiveView, turns: int = 14) -> None:
    for turn in range(turns):
        view.add(ROW | {"turn": turn}, FINDINGS)


def test_all_that_matters_is_seen_on_a_small_terminal(written: Callable[[], str]) -> None:
    """Ten columns, three findings and how far sampling is, in 80 columns and 24 lines: no heading, number or word is cut."""
    with LiveView("tango on jsonl → runs/mine", 45) as view:
        show_turns(view)
        view.show_progress(GOING)
        lines = read_screen(written())
    assert len(lines) <= 24 and all(len(line) <= 80 for line in lines)
    said = " ".join(" ".join(lines).split())
    assert "…" not in said and "..." not in said
    headings = lines[1].split()
    assert set(COLUMNS.values()) - set(headings) == {"entropy"}
    assert lines[2].split()[1] == "generator" and len(lines[2].split()) == len(headings)
    for one in FINDINGS:
        assert f"health: {one.badge}: {one}" in said
    before, going, after = said.partition(GOING.replace("  ", " "))
    assert going and not after and CLOCK.search(before)


@pytest.mark.parametrize(("columns", "height"), [(160, 50), (80, 24), (80, 18), (60, 20), (40, 12), (30, 8), (20, 5)])
def test_how_far_a_run_is_stays_on_every_screen(
    columns: int, height: int, written: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("LINES", str(height))
    with LiveView("tango on jsonl → runs/" + 3 * "a-long-name-", 45) as view:
        show_turns(view)
        view.show_progress("generator: learns")
        lines = read_screen(written())
    assert len(lines) <= height and all(len(line) <= columns for line in lines)
    assert lines[-1].strip() == "generator: learns" and CLOCK.search(lines[-2])
    table = [line for line in lines if "0.250" in line]
    assert len(table) == SHOWN if height == 50 else len(table) >= 3 or height < 12
    assert all(set(line.replace("│", " ").split()[1:]) <= {"generator", "0.250", "0.500"} for line in table)


def test_what_is_wrong_looks_alike_in_the_live_view_and_in_show(written: Callable[[], str]) -> None:
    shown = io.StringIO()
    print_health(FINDINGS, Console(file=shown, force_terminal=True, width=80))
    with LiveView("title", 4) as view:
        show_turns(view)
    drawn = written()
    sentences = [line.rstrip() for line in shown.getvalue().splitlines()]
    assert sentences[0].startswith("health: \x1b[1;31mtruncated\x1b[0m: ") and "\x1b[1;33mno signal" in shown.getvalue()
    for sentence in sentences:
        assert sentence in drawn


def test_a_line_that_is_said_cuts_nothing_below_it(written: Callable[[], str]) -> None:
    with LiveView("title", 14) as view:
        show_turns(view, 4)
        view.say("a line")
        said = " ".join(read_screen(written()))
    assert said.startswith("a line title") and all(str(one).split()[-1] in said for one in FINDINGS)


def test_what_was_going_on_does_not_stay_when_the_view_ends(written: Callable[[], str]) -> None:
    with LiveView("title", 14) as view:
        show_turns(view)
        view.show_progress(GOING)
    said = " ".join(read_screen(written()))
    assert "generator: 12 of" not in said and CLOCK.search(said) and said.count("one-sided:") == 1


def test_a_view_without_a_turn_leaves_nothing_but_what_was_said(written: Callable[[], str]) -> None:
    for view in (Panel(), LiveView("title", 4)):
        with view:
            view.show_progress(GOING)
            view.say("a line that stays")
    assert [line for line in read_screen(written()) if line.strip()] == ["a line that stays"] * 2


def test_a_comparison_ends_with_its_count_of_runs(written: Callable[[], str]) -> None:
    with Progress(4, 4, 2, {}) as progress:
        progress.tick()
    assert [re.sub(r"\d:\d\d", "0:00", line) for line in read_screen(written()) if line.strip()] == ["4/4 runs  [0:00]"]


def test_many_runs_side_by_side_leave_room_for_how_far_a_comparison_is(written: Callable[[], str], tmp_path: Path) -> None:
    with Progress(64, 0, 32, {"tango": 10}) as progress:
        for seed in range(32):
            progress.begin(Run("tango", seed, tmp_path / f"{seed}"))
        progress.tick()
        lines = read_screen(written())
    assert len(lines) == 24 and sum("0/10" in line for line in lines) == 18
    assert lines[-1].startswith("and 14 more in progress; 0/64 runs  [0:")
