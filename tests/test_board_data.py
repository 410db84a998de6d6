"""What the board reads: runs in any state, files that grow or are rubbish, rollouts by page and filter, and who may look."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from board_helpers import CONFIG, checked, row, solved, write_run
from milonga.board import browse
from milonga.board.browse import Cursor, Filters, Rollouts
from milonga.board.catalogue import Catalogue
from milonga.board.curves import Curves, Shelf, read_last_rows
from milonga.board.guard import Guard
from milonga.board.sides import Arm, Judged, choose_metrics, collect_findings, read_arm_names, read_verdicts, summarise_arms
from milonga.bounds import Rates
from milonga.charts import matrix_chart, sparkline
from milonga.comparing.results import ALWAYS
from milonga.errors import UserError
from milonga.report.blocks import Figure
from milonga.report.comparisons import build_metric_figure
from milonga.report.curves import (
    PANELS,
    build_chosen_figure,
    build_flow_figure,
    build_metric_figures,
    build_panel_figure,
    build_time_figure,
)
from milonga.report.sheets import shorten_arm_names
from milonga.runfolder.rollouts import GROUP, write_rollouts

# --- which runs there are ---


def test_runs_are_shown_as_what_they_are(tmp_path: Path) -> None:
    write_run(tmp_path / "stopped", [row(0, 0.1), row(3, 0.25)])
    (write_run(tmp_path / "finished", [row(0, 0.1)]) / "report.json").write_text("{}")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "config.toml").write_bytes(b"\xff\x00 = [")
    (tmp_path / "failed").mkdir()
    (tmp_path / "failed" / "error.txt").write_text("Traceback\n  …\nValueError: no such thing\n")
    (tmp_path / "notes.txt").write_text("no run")
    (tmp_path / "empty").mkdir()
    lock = (write_run(tmp_path / "running", [row(1, 0.5)]) / "lock").open("w")
    fcntl.flock(lock, fcntl.LOCK_EX)
    catalogue = Catalogue(tmp_path)
    found = {card.name: card for card in catalogue.scan()}
    assert {name: card.state for name, card in found.items()} == {
        name: name for name in ("stopped", "finished", "broken", "failed", "running")
    }
    assert found["stopped"].turn == 3 and found["stopped"].figures == {"accuracy": 0.25}
    assert (found["stopped"].recipe, found["stopped"].task, found["stopped"].turns) == ("tango", "chain", 5)
    assert found["failed"].note == "ValueError: no such thing" and "config.toml cannot be read" in found["broken"].note
    assert catalogue.scan()[0].name == "running", "what runs comes first"
    lock.close()
    assert {card.name: card.state for card in catalogue.scan()}["running"] == "stopped"


def test_a_run_and_a_comparison_can_be_named_themselves(tmp_path: Path) -> None:
    run = write_run(tmp_path / "cmp" / "tango" / "seed-100", [row(0, 0.1)])
    (tmp_path / "cmp" / "compare.toml").write_text("")
    assert [card.name for card in Catalogue(run).scan()] == ["seed-100"]
    for root in (tmp_path, tmp_path / "cmp"):
        catalogue = Catalogue(root)
        assert [(card.name, card.comparison, card.arm) for card in catalogue.scan()] == [("cmp/tango/seed-100", "cmp", "tango")]
        found = catalogue.find_comparison("cmp")
        assert found is not None and len(found[1]) == 1 and not found[0].finished
    with pytest.raises(UserError, match="is no folder"):
        Catalogue(tmp_path / "nothing")


def test_the_runs_of_a_sweep_belong_together(tmp_path: Path) -> None:
    for block, arm, seed in (("rates", "grpo,-lr=1e-05", 0), ("rates", "grpo,-lr=1e-05", 1), ("more", "tango", 0)):
        write_run(tmp_path / "study" / block / arm / f"seed-{seed}", [row(0, 0.1), row(5, 0.3)], seed)
    (tmp_path / "study" / "sweep.json").write_text("{}")
    catalogue = Catalogue(tmp_path)
    assert {(card.name, card.comparison, card.arm) for card in catalogue.scan()} == {
        ("study/rates/grpo,-lr=1e-05/seed-0", "study", "rates/grpo,-lr=1e-05"),
        ("study/rates/grpo,-lr=1e-05/seed-1", "study", "rates/grpo,-lr=1e-05"),
        ("study/more/tango/seed-0", "study", "more/tango"),
    }
    assert catalogue.comparisons["study"].kind == "sweep" and read_arm_names(catalogue.comparisons["study"]) == {}
    arms = summarise_arms(catalogue.scan(), Shelf())
    assert {(arm.name, len(arm.runs)) for arm in arms} == {("rates/grpo,-lr=1e-05", 2), ("more/tango", 1)}


def write_timing(run: Path, seconds: dict[int, float]) -> None:
    (run / "timing.jsonl").write_text("".join(f'{{"turn": {turn}, "turn_s": {took}}}\n' for turn, took in seconds.items()))


def test_a_card_says_model_progress_and_time_left(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a", [row(0, 0.1) | {"lead_turn": None}, row(1, 0.2), row(3, 0.3)])
    models = '[policies.generator]\nmodel = "org/Small-1B"\n[policies.verifier]\nmodel = "/there/tiny/"\n'
    (run / "config.toml").write_text(CONFIG.format(seed=0) + models)
    write_timing(run, {0: 99.0, 1: 50.0, 2: 3.0, 3: 5.0})
    with (run / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        (card,) = Catalogue(tmp_path).scan()
    assert card.models == ("org/Small-1B", "/there/tiny/") and card.model == "Small-1B + tiny"
    assert card.done == pytest.approx(3 / 5) and card.left == pytest.approx((3.0 + 5.0) / 2 * 2), "two turns took 8 seconds"
    assert card.curve == [(0.0, 0.1), (1.0, 0.2), (3.0, 0.3)]
    (card,) = Catalogue(tmp_path).scan()
    assert card.state == "stopped" and card.left is None, "nobody works on it"
    used = [row(turn, 0.1, **{"compute/tokens": 1000.0 * turn}) for turn in (0, 1)]
    other = write_run(tmp_path / "b", used)
    (other / "config.toml").write_text(CONFIG.format(seed=0) + "[budget]\ntokens = 4000\n")
    assert {card.name: card.done for card in Catalogue(tmp_path).scan()}["b"] == pytest.approx(0.25), "of its budget"


def find_time_left(run: Path, shares: dict[int, int], seconds: dict[int, float]) -> float | None:
    """The time left of a running run of 200 turns of its lead agent, by its turns and those of the lead agent at their end."""
    write_run(run, [row(turn, 0.1) | {"lead_turn": lead} for turn, lead in shares.items()])
    (run / "config.toml").write_text(CONFIG.format(seed=0).replace("turns = 5", "turns = 200"))
    write_timing(run, seconds)
    with (run / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return Catalogue(run).scan()[0].left


def test_the_time_left_is_that_of_the_last_turns_of_the_lead_agent(tmp_path: Path) -> None:
    """A warm-up, in which the lead agent has no turn, is over; nor does what was slow long ago count."""
    warmed = {turn: max(0, turn - 40) for turn in range(45)}
    assert find_time_left(tmp_path / "a", warmed, dict.fromkeys(warmed, 10.0)) == pytest.approx(196 * 10.0)
    assert find_time_left(tmp_path / "b", dict.fromkeys(range(9), 0), dict.fromkeys(range(9), 10.0)) is None
    faster = {turn: 100.0 if turn <= 30 else 2.0 for turn in range(51)}
    assert find_time_left(tmp_path / "c", {turn: turn for turn in faster}, faster) == pytest.approx(150 * 2.0)
    in_turn = {turn: -(-turn // 2) for turn in range(41)}  # the lead agent, the other one, the lead agent …
    assert find_time_left(tmp_path / "d", in_turn, dict.fromkeys(in_turn, 10.0)) == pytest.approx(180 * 20.0)


def test_a_turn_whose_time_is_not_written_yet_is_left_out_until_it_is(tmp_path: Path) -> None:
    """The row of metrics is written before that of times."""
    run = write_run(tmp_path / "a", [row(turn, 0.1) for turn in range(5)])
    write_timing(run, {1: 8.0, 2: 8.0, 3: 8.0})
    catalogue = Catalogue(tmp_path)
    with (run / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert catalogue.scan()[0].left == pytest.approx(8.0), "one turn is left, and three took 8 seconds each"
        write_timing(run, {1: 8.0, 2: 8.0, 3: 8.0, 4: 40.0})
        assert catalogue.scan()[0].left == pytest.approx(16.0)


def test_a_card_has_the_badges_of_its_health(tmp_path: Path) -> None:
    rows = [row(turn, 0.0, **{"rollouts/generator/invalid_rate": 1.0, "signal": 0.0}) for turn in range(1, 4)]
    write_run(tmp_path / "a", rows)
    write_run(tmp_path / "b", [row(0, 0.1), row(1, 0.2)])
    found = {card.name: [one.badge for one in card.findings] for card in Catalogue(tmp_path).scan()}
    assert "unreadable" in found["a"] and found["b"] == []


@pytest.mark.parametrize(
    "config",
    ["policies = 3", "[policies]\ngenerator = 3", "[policies.generator]\nmodel = 3", "budget = 3", "[budget]\ntokens = 'x'",
     "turns = 0", "turns = -1"],
)  # fmt: skip
def test_settings_of_any_shape_give_a_card(tmp_path: Path, config: str) -> None:
    """So do numbers without a float."""
    huge = "9" * 400
    run = write_run(tmp_path / "a")
    (run / "config.toml").write_text(f'recipe = "x"\n{config}\n')
    lines = (
        f'{{"turn": 1, "lead_turn": {huge}, "eval/generator/accuracy": {huge}, "compute/tokens": {huge}, "signal": {huge}}}\n'
    )
    for name in ("metrics.jsonl", "timing.jsonl", "machine.jsonl"):
        (run / name).write_text(lines)
    (card,) = Catalogue(tmp_path).scan()
    assert card.recipe == "x" and card.left is None and card.curve == []
    (run / "metrics.jsonl").write_text('{"turn": 0}\n{"turn": 1, "learner": "generator", "learn/generator/peak_gib": 1.0}\n')
    (run / "machine.jsonl").write_text(f'{{"turn": 0, "gpu_gib": [{huge}]}}\n')
    (card,) = Catalogue(tmp_path).scan()
    assert card.turn == 1 and card.findings == (), "a number without a float is none, also within a list"


def test_rows_of_the_list_are_sorted_and_what_has_no_value_comes_last(tmp_path: Path) -> None:
    runs = pytest.importorskip("milonga.board.pages.runs")
    for name, value in (("b", 0.5), ("a", 0.2), ("c", 0.9)):
        write_run(tmp_path / name, [row(0, value)])
    write_run(tmp_path / "none")
    for seed, end in ((1, 0.6), (2, 0.1)):
        write_run(tmp_path / "cmp" / "tango" / f"seed-{seed}", [row(0, end)], seed)
    (tmp_path / "cmp" / "compare.toml").write_text("")
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "compare.toml").write_text("")
    catalogue = Catalogue(tmp_path)
    entries = runs.make_entries(catalogue.scan(), catalogue.comparisons.values())
    assert sorted(entry.name for entry in entries) == ["a", "b", "c", "cmp", "empty", "none"]
    assert [card.name for entry in entries if entry.name == "cmp" for card in entry.cards] == [
        "cmp/tango/seed-1", "cmp/tango/seed-2",
    ]  # fmt: skip

    def order(by: str) -> list[str]:
        return [entry.name for entry in runs.sort_entries(entries, by)]

    assert order("accuracy")[:4] == ["a", "b", "cmp", "c"] and set(order("accuracy")[4:]) == {"none", "empty"}
    assert order("-accuracy")[:4] == ["c", "cmp", "b", "a"] and set(order("-accuracy")[4:]) == {"none", "empty"}
    assert order("run") == ["a", "b", "c", "cmp", "empty", "none"] and order("nonsense") == order("")
    for column in runs.COLUMNS:
        assert sorted(order(column)) == sorted(order(f"-{column}")) == order("run")


def test_a_comparison_is_finished_when_its_results_are_there(tmp_path: Path) -> None:
    """Two of its four runs are, and the others are still to come: it is neither finished nor wholly done."""
    runs = pytest.importorskip("milonga.board.pages.runs")
    place = tmp_path / "cmp"
    for seed in (100, 101):
        (write_run(place / "tango" / f"seed-{seed}", [row(0, 0.1), row(5, 0.5)], seed) / "report.json").write_text("{}")
    (place / "compare.toml").write_text("seeds = [100, 101]\n[arms.tango]\n[arms.grpo]\n")
    catalogue = Catalogue(tmp_path)

    def look() -> tuple[str, str, float | None]:
        (entry,) = runs.make_entries(catalogue.scan(), catalogue.comparisons.values())
        return entry.state, runs.format_group(entry)["turn"], runs.find_mean_done(entry)

    assert look() == ("stopped", "2 finished, 2 to come", 0.5)
    with (place / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert look() == ("running", "2 finished, 2 to come", 0.5), "between two of its runs"
    for seed in (100, 101):
        (write_run(place / "grpo" / f"seed-{seed}", [row(0, 0.1), row(5, 0.5)], seed) / "report.json").write_text("{}")
    assert look() == ("stopped", "4 finished", 1.0), "its results are not computed yet"
    (place / "compare.json").write_text("{}")
    assert look() == ("finished", "4 finished", 1.0), "words, as the row of a run has"
    for plan in ("", "seeds = 3\narms = 4\n", "\0"):
        (place / "compare.toml").write_text(plan)
        assert look() == ("finished", "4 finished", 1.0), "of a plan that says nothing only what is there is known"


@pytest.mark.parametrize("name", ["../secret", "/etc", "a/../../secret", "", ".", "\0"])
def test_names_are_looked_up_and_never_joined(tmp_path: Path, name: str) -> None:
    write_run(tmp_path / "secret")
    write_run(tmp_path / "runs" / "a")
    assert Catalogue(tmp_path / "runs").find_card(name) is None


def test_a_look_at_many_runs_reads_only_what_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for at in range(100):
        write_run(tmp_path / f"run-{at}", [row(0, 0.1)])
    catalogue = Catalogue(tmp_path)
    catalogue.scan()
    read: list[Path] = []
    monkeypatch.setattr("milonga.board.catalogue.read_last_rows", lambda path: read.append(path) or iter(()))
    catalogue.scan()
    assert read == []
    with (tmp_path / "run-7" / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(row(1, 0.9)) + "\n")
    catalogue.scan()
    assert [path.parent.name for path in read] == ["run-7"]


# --- metrics that grow ---


def test_curves_follow_a_file_that_grows_is_cut_and_holds_rubbish(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    curves = Curves(path)
    assert not curves.refresh() and curves.points("x") == []
    path.write_text('{"turn": 0, "x": 1.0}\nrubbish\n[1]\n{"turn": true}\n{"turn": 1, "x": 2')
    assert curves.refresh() and curves.points("x") == [(0.0, 1.0)] and curves.rubbish == 3
    with path.open("a") as file:
        file.write('.5, "y": null}\n{"turn": 0, "x": 9}\n{"turn": 2, "x": NaN, "y": 1e999, "z": 7}\n')
    assert curves.refresh() and curves.points("x") == [(0.0, 1.0), (1.0, 2.5)]
    assert curves.points("y") == [] and curves.points("z") == [(2.0, 7.0)] and curves.rubbish == 4
    assert not curves.refresh()
    other = tmp_path / "draft"
    other.write_text('{"turn": 0, "x": 3}\n')
    other.replace(path)  # as a run that resumes cuts its metrics back
    assert curves.refresh() and curves.points("x") == [(0.0, 3.0)] and curves.points("z") == []


def test_hostile_rows_are_only_rows(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    huge, deep = "9" * 4000, "[" * 100_000
    path.write_text(f'{{"turn": 1, "x": {huge}}}\n{deep}\n{{"turn": 1e3}}\n{{"turn": {huge}}}\n' + "a" * 3_000_000 + "\n")
    curves = Curves(path)
    curves.refresh()
    assert list(curves.turns) == [1] and curves.points("x") == [] and curves.rubbish == 4
    assert [found["turn"] for found in read_last_rows(path)] == []


def test_the_flow_is_the_mean_over_the_turns_of_each_policy(tmp_path: Path) -> None:
    rows = [
        {"turn": 1, "flow/answers>verifier": 1.0},
        {"turn": 2, "flow/answers>generator": 0.5, "flow/verifier>generator": 0.5},
        {"turn": 3, "flow/answers>generator": 1.0},
    ]
    curves = Curves(write_run(tmp_path / "a", rows) / "metrics.jsonl")
    curves.refresh()
    assert curves.compute_flow() == {
        ("answers", "verifier"): 1.0,
        ("answers", "generator"): 0.75,
        ("verifier", "generator"): 0.25,
    }
    silent = Curves(write_run(tmp_path / "b", [row | {"signal": 0.0} for row in rows]) / "metrics.jsonl")
    silent.refresh()
    assert silent.compute_flow() == {}
    drawn = build_flow_figure(curves.compute_flow())
    assert drawn is not None and read_label(drawn).endswith("generator had 75% from answers; generator had 25% from verifier;")


def read_label(figure: Figure) -> str:
    """What a chart says to a screen reader."""
    return ElementTree.fromstring(figure.svg).get("aria-label", "")


def test_charts_hold_no_foreign_markup(tmp_path: Path) -> None:
    """Names from files are text in a chart, whatever they look like; so are those of arms."""
    evil = "<script>x\"'><img onerror=x>\u202e"
    rows = [{"turn": t, "learner": evil, f"flow/{evil}>{evil}": 1.0, evil: 0.5, f"learn/{evil}/entropy": 0.5} for t in (1, 2)]
    curves = Curves(write_run(tmp_path / "a", rows) / "metrics.jsonl")
    curves.refresh()
    spent = [{"turn": 1, f"{evil}_s": 1.0}]
    arms = {evil: {evil: {"curve": {"x": [0, 1], "mean": [0, 1], "low": [0, 0], "high": [1, 1]}}}}
    views = [
        build_flow_figure(curves.compute_flow()),
        build_chosen_figure(curves, evil),
        build_time_figure(curves.recent_rows(9), spent),
        build_metric_figure(evil, arms, "turn"),
        *(build_panel_figure(curves, panel) for panel in PANELS if "/entropy" in panel.every),
        Figure(sparkline(evil, [(0.0, 0.5), (1.0, 0.7)]) + matrix_chart(evil, [evil], [evil], [[0.5]]), evil, []),
    ]
    for view in views:
        assert view is not None
        elements = list(ElementTree.fromstring(f"<svg>{view.svg}</svg>").iter())
        tags = {element.tag.rpartition("}")[2] for element in elements}
        assert tags <= {"svg", "g", "path", "text", "title", "circle", "rect"}
        assert not any(key.startswith("on") or "href" in key for element in elements for key in element.attrib)
        assert "<script>x" in "".join(element.text or "" for element in elements) and "\u202e" not in view.svg


def test_a_long_run_is_drawn_with_few_points_and_its_newest_among_them(tmp_path: Path) -> None:
    path = write_run(tmp_path / "a", [{"turn": t, "x": t / 5000} for t in range(5001)]) / "metrics.jsonl"
    curves = Curves(path)
    curves.refresh()
    figure = build_chosen_figure(curves, "x")
    assert figure is not None and len(figure.svg) < 20_000 and "x from 0 to 1;" in read_label(figure)


def test_an_arm_has_the_same_colour_on_every_chart() -> None:
    curve = {"curve": {"x": [0, 1], "mean": [0, 1], "low": [0, 1], "high": [0, 1]}}
    both = build_metric_figure("m", {"a": {"m": curve}, "b": {"m": curve}}, "turn")
    second = build_metric_figure("m", {"a": {}, "b": {"m": curve}}, "turn")
    assert both is not None and second is not None

    def colours(figure: Figure) -> list[str]:
        """The classes of the groups with points that have a value."""
        groups = list(ElementTree.fromstring(figure.svg).iter())
        return [one.get("class", "") for one in groups if any(point.get("class") == "dot" and len(point) for point in one)]

    assert colours(both) == ["s0", "s1"] and colours(second) == ["s1"]


def test_html_is_handed_over_in_one_place_and_sanitised() -> None:
    """What could turn text into elements, or into a program, is used in one place: for charts, which the browser sanitises."""
    folder = Path(browse.__file__).parent
    sources = {path: path.read_text() for pattern in ("*.py", "*.js") for path in folder.rglob(pattern)}
    ways = (
        "ui.html",
        "ui.markdown",
        "innerHTML",
        "outerHTML",
        "insertAdjacentHTML",
        "document.write",
        "run_javascript",
        "add_slot",
    )
    assert len(sources) > 10
    assert [(path.name, way) for path, text in sources.items() for way in ways if way in text] == [("frame.py", "ui.html")]
    everything = "".join(sources.values())
    assert everything.count("ui.html") == everything.count('ui.html("", sanitize=True)') == everything.count("set_content") == 1
    assert sum(text.count("add_head_html('<") for text in sources.values()) == 1, "one constant: our own style and script"


# --- rollouts ---


@pytest.fixture
def rollouts(tmp_path: Path) -> Rollouts:
    """Turn 1: p0 solved by 1 of 4, p1 by none and one of its checks fooled. Turn 2: p2 with all that can go wrong."""
    four = [solved(f"1/{k}", "p0", k == 0) for k in range(4)]
    two = [solved(f"1/q{k}", "p1", False) for k in range(2)]
    checks = [checked("1/v0", two[0], (True, True), True), checked("1/v1", two[1], (True, False), False)]
    write_rollouts(tmp_path / "turn-000001.parquet", [*four, *two, *checks])
    odd = replace(solved("2/0", "p2", True), chars=np.array([0, 0, 1, 2, 3, 4, 5, 6]))
    said = [checked("2/v0", odd, (True, False), True), checked("2/v1", odd, None, None, "no verdict")]
    write_rollouts(tmp_path / "turn-000002.parquet", [odd, *said], {odd.id: np.arange(8.0)})
    return Rollouts(tmp_path, terse=True)


@pytest.mark.parametrize(
    ("filters", "problems"),
    [
        (Filters(), ["p2", "p0", "p1"]),
        (Filters(turn=1), ["p0", "p1"]),
        (Filters(turn=7), []),
        (Filters(flags=frozenset({"few"})), ["p0"]),
        (Filters(flags=frozenset({"fooled"})), ["p1"]),
        (Filters(flags=frozenset({"contradiction"})), ["p2"]),
        (Filters(flags=frozenset({"invalid", "contradiction"})), ["p2"]),
        (Filters(flags=frozenset({"few", "invalid"})), []),
        (Filters(text="P1"), ["p1"]),
        (Filters(text=".*"), []),
    ],
)
def test_lists_are_narrowed(rollouts: Rollouts, filters: Filters, problems: list[str]) -> None:
    found = rollouts.list_problems(filters)
    assert [group.problem for group in found.groups] == problems and found.after is None and found.broken == ()


def test_a_group_counts_what_its_rollouts_say(rollouts: Rollouts) -> None:
    p2, p0, p1 = rollouts.list_problems(Filters()).groups
    assert (p0.rollouts, p0.graded, p0.solved, p0.checks, p0.fooled) == (4, 4, 1, 0, 0)
    assert (p1.rollouts, p1.solved, p1.checks, p1.fooled) == (2, 0, 2, 1)
    assert (p2.invalid, p2.contradiction, p2.question) == (1, 1, "p2")


def test_pages_join_without_gap_or_repeat(rollouts: Rollouts) -> None:
    seen, cursor = [], None
    while True:
        found = rollouts.list_problems(Filters(), cursor, limit=1)
        seen += [group.problem for group in found.groups]
        cursor = found.after
        if cursor is None:
            break
    assert seen == ["p2", "p0", "p1"]
    first = rollouts.list_problems(Filters(flags=frozenset({"fooled"})), seconds=0)
    assert first.groups == () and first.after == Cursor(1), "out of time: it says where to go on"
    following = rollouts.find_next_problem(Filters(), 1, "p0")
    assert following is not None and following.problem == "p1" and rollouts.find_next_problem(Filters(), 1, "p1") is None


def test_a_transcript_puts_verdicts_beside_the_truth(rollouts: Rollouts) -> None:
    found = rollouts.load_transcript(2, "p2")
    assert found is not None
    (rollout,) = found.rollouts
    assert [step.text for step in rollout.steps] == ["a", "c"] and rollout.rest == "#e" and rollout.answer == "e"
    assert [(step.verdict, step.truth) for step in rollout.steps] == [(True, True), (False, False)]
    assert [note.text for step in rollout.steps for note in step.notes] == ["+", "-"]
    assert [step.advantages for step in rollout.steps] == [(2.0, 3.0), (4.0, 5.0)] and rollout.rest_advantages == (6.0, 7.0)
    assert [step.ends for step in rollout.steps] == [(1, 1), (1, 1)] and rollout.rest_ends == (1, 2)
    assert [(check.final, check.contradiction, check.invalid) for check in rollout.checks] == [
        (True, True, ""), (None, False, "no verdict"),
    ]  # fmt: skip
    p1 = rollouts.load_transcript(1, "p1")
    assert p1 is not None and [rollout.checks[0].fooled for rollout in p1.rollouts] == [True, False]
    assert rollouts.load_transcript(2, "p1") is None and rollouts.load_transcript(9, "p1") is None


def test_folders_from_before_say_the_same(rollouts: Rollouts, tmp_path: Path) -> None:
    """Without the columns that came later, all but the advantages is derived from the others."""
    new = [rollouts.list_problems(Filters()).groups, rollouts.load_transcript(1, "p1")]
    later = ["advantages", "chars", "step_chars", "verification", "score", "step_scores", "contradiction", "fooled", "versions"]
    for turn in (1, 2):
        rows = pq.read_table(rollouts.turn_path(turn)).drop_columns(later).to_pylist()
        pq.write_table(pa.Table.from_pylist(rows), rollouts.turn_path(turn))  # with the types that were guessed then
    old = Rollouts(tmp_path, terse=True)
    assert [old.list_problems(Filters()).groups, old.load_transcript(1, "p1")] == new


def test_a_transcript_reads_only_the_row_groups_it_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_rollouts(tmp_path / "turn-000001.parquet", [solved(f"{k}", f"p{k // 8}", False) for k in range(4 * GROUP)])
    asked: list[list[int]] = []
    true = pq.ParquetFile.read_row_groups
    monkeypatch.setattr(
        pq.ParquetFile, "read_row_groups", lambda self, groups, **k: asked.append(groups) or true(self, groups, **k)
    )
    found = Rollouts(tmp_path, True).load_transcript(1, f"p{3 * GROUP // 8 + 1}")
    assert asked == [[3]] and found is not None and [r.id for r in found.rollouts] == [f"{3 * GROUP + 8 + k}" for k in range(8)]


FOREIGN: dict[str, bytes | dict[str, list[Any]]] = {
    "half": b"PAR1 half",
    "nothing": b"",
    "other columns": {"x": [1]},
    "other types": {name: [1.5] for name in browse.WIDE},
    "nulls": {name: [None] for name in browse.WIDE},
}


@pytest.mark.parametrize("content", FOREIGN.values(), ids=FOREIGN.keys())
def test_a_broken_file_is_named_and_passed_over(rollouts: Rollouts, content: bytes | dict[str, list[Any]]) -> None:
    if isinstance(content, bytes):
        rollouts.turn_path(2).write_bytes(content)
    else:
        pq.write_table(pa.table(content), rollouts.turn_path(2))
    found = rollouts.list_problems(Filters())
    assert [group.problem for group in found.groups] == ["p0", "p1"]
    assert len(found.broken) == 1 and found.broken[0].startswith("turn-000002.parquet cannot be read")


def test_a_turn_without_rollouts_is_empty(rollouts: Rollouts) -> None:
    write_rollouts(rollouts.turn_path(2), [])
    assert [group.problem for group in rollouts.list_problems(Filters(text="p")).groups] == ["p0", "p1"]


def test_a_verification_of_a_solution_that_was_not_kept_stands_for_itself(tmp_path: Path) -> None:
    given = solved("given", "p", False)
    write_rollouts(tmp_path / "turn-000001.parquet", [checked("1/v", given, (True, False), True)])
    found = Rollouts(tmp_path, True).load_transcript(1, "p")
    assert found is not None and [rollout.id for rollout in found.rollouts] == ["1/v"]
    (rollout,) = found.rollouts
    assert [(step.text, step.verdict, step.truth) for step in rollout.steps] == [("+", True, None), ("-", False, None)]
    assert [(check.id, check.final, check.fooled) for check in rollout.checks] == [("1/v", True, True)]


def test_what_is_remembered_of_turns_is_bounded(rollouts: Rollouts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(browse, "KEPT_GROUPS", 2)
    rollouts.list_problems(Filters())
    assert [key[0] for key in rollouts.digests] == [1]


def test_spans_that_make_no_sense_leave_the_text_whole() -> None:
    assert browse.split_at_ends("abc", [2, 1]) == ([], "abc") and browse.split_at_ends("abc", [9]) == ([], "abc")
    assert browse.split_at_ends("a\nbc\nd", [2, 5]) == (["a", "bc"], "d")
    uneven = {"advantages": [1.0, None, float("nan")], "step_ends": [5, 2], "trained_from": 1}
    assert browse.split_by_steps(uneven, browse.replace_non_finite(uneven["advantages"]), 2) == ([(), ()], (0.0, 0.0))


def test_advantages_lie_under_the_letters_of_their_tokens() -> None:
    parts = pytest.importorskip("milonga.board.pages.parts")
    assert parts.split_by_advantage("abcd", (1.0, 1.0, -1.0), (1, 2, 4)) == [("ab", 1.0), ("cd", -1.0)]
    assert parts.split_by_advantage("é", (1.0, 2.0), (0, 1)) == [("é", 2.0)], "a token may end within a character"
    for ends in ((1, 2), (2, 1, 4), (1, 2, 3), ()):
        assert parts.split_by_advantage("abcd", (1.0, 1.0, -1.0), ends) == []


# --- side by side ---


def test_runs_that_differ_in_their_seed_are_one_arm_with_an_interval(tmp_path: Path) -> None:
    for seed, end in ((1, 0.4), (2, 0.6), (3, 0.5)):
        write_run(tmp_path / f"s{seed}", [{"turn": 0, "eval/generator/accuracy": 0.1}, row(4, end)], seed)
    other = write_run(tmp_path / "other", [row(0, 0.3)])
    (other / "config.toml").write_text(CONFIG.format(seed=1).replace("turns = 5", "turns = 9"))
    arms = {arm.name: arm for arm in summarise_arms(Catalogue(tmp_path).scan(), Shelf())}
    assert {name: len(arm.runs) for name, arm in arms.items()} == {"tango on chain": 3, "other": 1}
    three = next(arm for arm in arms.values() if len(arm.runs) == 3).metrics["eval/generator/accuracy"]
    assert three["final"] == pytest.approx(0.5) and three["curve"]["x"] == [0.0, 4.0]
    assert three["interval"] == pytest.approx((0.5 - 4.3027 * 0.1 / 3**0.5, 0.5 + 4.3027 * 0.1 / 3**0.5), abs=1e-4)


def test_what_is_wrong_is_said_once_for_each_arm(tmp_path: Path) -> None:
    """Of runs that go on, and of a sweep, from the runs; of a comparison that is finished, as its results say it."""
    lost = {"rollouts/generator/invalid_rate": 1.0}
    for arm, seed, more in (("tango", 1, lost), ("tango", 2, {}), ("tango", 3, lost), ("grpo", 1, {})):
        rows = [row(0, 0.1), *(row(turn, 0.2, **more) for turn in range(1, 4))]
        write_run(tmp_path / "cmp" / arm / f"seed-{seed}", rows, seed)
    (tmp_path / "cmp" / "compare.toml").write_text("[arms.grpo]\n[arms.tango]\n")
    cards = Catalogue(tmp_path).scan()
    (found,) = [one for one in collect_findings(summarise_arms(cards, Shelf())) if one.badge == "unreadable"]
    assert found.text.startswith("tango, 2 of 3 runs; in seed 1 ") and found.severe and "prompt" in found.help
    result = json.loads((Path(__file__).parent.parent / "docs" / "results" / "tango" / "easy.json").read_text())
    assert "health" not in result

    def read(result: dict[str, Any]) -> Judged:
        (tmp_path / "cmp" / "compare.json").write_text(json.dumps(result))
        judged = read_verdicts(tmp_path / "cmp")
        assert isinstance(judged, Judged)
        return judged

    assert read(result).findings is None, "results of earlier versions do not say: the runs do"
    assert read(result | {"health": []}).findings == ()
    kept = {"arm": next(iter(result["arms"])), **found.to_json(), "text": "it is ill", "seeds": [100], "runs": 1}
    judged = read(result | {"health": [kept]})
    assert judged.findings is not None and judged.findings[0].text.endswith(", its run; in seed 100 it is ill")
    assert not any("ill" in note for note in judged.notes), "it is said once"


def test_arms_have_the_order_and_the_names_of_the_plan(tmp_path: Path) -> None:
    """So the board gives each the colour that it has in the report and the plots, where arms stand as they were named."""
    names = ["tango", "grpo:lr=1e-4,options.x=1", "grpo:lr=1e-5,options.x=1", "frozen"]
    (tmp_path / "cmp").mkdir()
    text = "".join(f'[arms."{name}"]\nrecipe = "x"\n' for name in names)
    (tmp_path / "cmp" / "compare.toml").write_text(text)
    for folder in ("frozen", "grpo-lr=1e-4,options.x=1", "tango"):
        write_run(tmp_path / "cmp" / folder / "seed-100", [row(0, 0.1), row(1, 0.2)], 100)
    catalogue = Catalogue(tmp_path)
    cards = catalogue.scan()
    shown = read_arm_names(catalogue.comparisons["cmp"])
    assert (
        list(shown.values()) == list(shorten_arm_names(names).values()) == ["tango", "grpo: lr=1e-4", "grpo: lr=1e-5", "frozen"]
    )
    arms = summarise_arms(cards, Shelf(), names=shown)
    assert [(arm.name, len(arm.runs)) for arm in arms] == [
        ("tango", 1), ("grpo: lr=1e-4", 1), ("grpo: lr=1e-5", 0), ("frozen", 1),
    ]  # fmt: skip
    figure = build_metric_figure("eval/generator/accuracy", {arm.name: arm.metrics for arm in arms}, "turn")
    assert figure is not None and 'class="s3"' in figure.svg and '<g class="s2"></g>' in figure.svg, (
        "a place that is not taken yet"
    )


def test_what_a_warm_up_gained_is_a_step_at_the_start(tmp_path: Path) -> None:
    """Turns of others before the first of the lead agent stand at its turn 0, as the start does."""
    f1 = "eval/verifier/f1"
    before = [{"turn": 0, f1: 0.1}, {"turn": 1, "lead_turn": 0, f1: 0.2}, {"turn": 2, "lead_turn": 0, f1: 0.4}]
    after = [{"turn": 3, "lead_turn": 1}, {"turn": 4, "lead_turn": 2, f1: 0.5}]
    write_run(tmp_path / "s1", [*before, *after], 1)
    write_run(tmp_path / "s2", [*({**one, f1: one[f1] + 0.1} for one in before)], 2)
    (arm,) = summarise_arms(Catalogue(tmp_path).scan(), Shelf())
    curve, found = arm.metrics[f1]["curve"], arm.metrics[f1]
    assert curve["x"] == [0, 0, 2] and curve["mean"] == pytest.approx([0.15, 0.45, 0.5]) and found["start"] == curve["mean"][0]
    assert sorted(found["areas"]) == pytest.approx([0.45, 0.5]), "an area is over turns of the lead agent"
    figure = build_metric_figure(f1, {"tango": arm.metrics}, "turns of the lead agent")
    assert figure is not None and "tango 0.150 → 0.500" in figure.said
    assert "turns of the lead agent; at 0: the start, and after the warm-up" in figure.svg and "0.15 at 0" in figure.svg
    write_run(tmp_path / "two" / "a", [row(0, 0.1), row(1, 0.2)])
    plain = summarise_arms(Catalogue(tmp_path / "two").scan(), Shelf())
    figure = build_metric_figure("eval/generator/accuracy", {"a": plain[0].metrics}, "turn")
    assert figure is not None and plain[0].metrics["eval/generator/accuracy"]["curve"]["x"] == [0, 1]
    assert "warm-up" not in figure.svg


def test_two_seeds_have_points_in_the_place_of_a_band(tmp_path: Path) -> None:
    for seed, end in ((1, 0.3), (2, 0.5)):
        write_run(tmp_path / f"s{seed}", [row(0, 0.1 * seed), row(4, end)], seed)
    (arm,) = summarise_arms(Catalogue(tmp_path).scan(), Shelf())
    figure = build_metric_figure("eval/generator/accuracy", {"tango": arm.metrics}, "turns")
    assert figure is not None and 'class="band"' not in figure.svg and figure.svg.count('class="hollow"') == 2
    assert "not drawn, as it would fill the chart: 95 % t interval over 2 seeds" in figure.svg
    one = {"tango": {"eval/generator/accuracy": {"curve": arm.metrics["eval/generator/accuracy"]["curve"]}}}
    figure = build_metric_figure("eval/generator/accuracy", one, "turns")
    assert figure is not None and "fill the chart: 95 % t interval over seeds" in figure.svg, "where the seeds are not known"


def test_the_gap_is_seen_with_zero(tmp_path: Path) -> None:
    """Above zero the verifier is being fooled: so zero is on the chart, on whichever side the gap lies."""
    gap, extra = "eval/hacking_gap", {"eval/hacking_gap": -0.12}
    path = write_run(tmp_path / "a", [row(0, 0.1, **extra), row(1, 0.2, **extra | {gap: -0.14})])
    curves = Curves(path / "metrics.jsonl")
    curves.refresh()
    (arm,) = summarise_arms(Catalogue(tmp_path).scan(), Shelf())
    panel = next(panel for panel in PANELS if gap in panel.metrics)
    side = next(one for one in build_metric_figures([curves], ["a"]) if one.title == "hacking gap")
    figures = (
        build_panel_figure(curves, panel),
        build_metric_figure(gap, {"a": arm.metrics}, "turn"),
        build_chosen_figure(curves, gap),
        side,
    )
    for figure in figures:
        assert figure is not None and 'class="zero"' in figure.svg


def test_what_a_comparison_is_about_is_drawn_first(tmp_path: Path) -> None:
    write_run(tmp_path / "cmp" / "prime" / "seed-100", [row(0, 0.1)], 100)
    catalogue = Catalogue(tmp_path)
    for metric in ("eval/verifier/pair_accuracy", "eval/verifier/f1"):
        (tmp_path / "cmp" / "compare.toml").write_text(f'metric = "{metric}"\n[arms.prime]\nrecipe = "prime"\n')
        catalogue.scan()
        chosen = choose_metrics(catalogue.comparisons["cmp"])
        assert chosen[0] == metric and set(ALWAYS) <= set(chosen) and len(chosen) == len(set(chosen))
    (tmp_path / "cmp" / "compare.toml").write_text("metric = 3\n[arms.prime]\n")
    assert choose_metrics(catalogue.comparisons["cmp"]) == choose_metrics(None) == list(ALWAYS)


def test_an_interval_of_a_share_stays_within_0_and_1() -> None:
    sides = pytest.importorskip("milonga.board.pages.sides")
    wide = {"final": 0.633, "interval": (-0.161, 1.427)}
    arm = Arm(
        "tango", (), {"eval/generator/accuracy": wide, "eval/hacking_gap": wide, "eval/verifier/f1": wide | {"interval": None}}
    )
    assert sides.format_final(arm, "eval/generator/accuracy") == "0.633 [0.000, 1.000]"
    assert sides.format_final(arm, "eval/hacking_gap") == "0.633 [-0.161, 1.000]", "no share: it may be negative"
    assert sides.format_final(arm, "eval/verifier/f1") == "0.633" and sides.format_final(arm, "other") == "–"


def test_a_comparison_that_cannot_be_read_says_so(tmp_path: Path) -> None:
    assert read_verdicts(tmp_path) is None
    for text in ("{", "[]", '{"arms": {}}', '{"arms": 3}'):
        (tmp_path / "compare.json").write_text(text)
        assert isinstance(read_verdicts(tmp_path), str)
    assert not isinstance(read_verdicts(tmp_path), Judged)


# --- who may look ---


async def answered(guard: Guard, kind: str = "http", path: str = "/", query: str = "", **headers: str) -> list[dict[str, Any]]:
    sent: list[dict[str, Any]] = []

    async def send(message: Any) -> None:
        sent.append(dict(message))

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    pairs = [(key.encode(), value.encode()) for key, value in headers.items()]
    await guard({"type": kind, "path": path, "query_string": query.encode(), "headers": pairs}, receive, send)
    return sent


async def inside(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})


def ask(guard: Guard, *arguments: str, **headers: str) -> dict[str, Any]:
    return asyncio.run(answered(guard, *arguments, **headers))[0]


TOKEN = "a-token-of-some-length"


def test_without_a_token_only_names_of_this_machine_are_answered() -> None:
    guard = Guard(inside, 8710, None)
    for host in ("127.0.0.1:8710", "localhost:8710", "LOCALHOST", "[::1]:8710"):
        assert ask(guard, host=host)["status"] == 200
    for host in ("evil.example", "127.0.0.1.evil.example:8710", "", "10.0.0.1"):
        assert ask(guard, host=host)["status"] == 421
    for host in ("[", "localhost:[", "localhost:8710/x", "localhost@evil.example", "local host"):
        assert ask(guard, host=host)["status"] == 400


def test_pages_of_another_origin_open_no_socket() -> None:
    guard = Guard(inside, 8710, None)
    assert ask(guard, "websocket", host="127.0.0.1:8710", origin="https://evil.example")["type"] == "websocket.close"
    assert ask(guard, "websocket", host="127.0.0.1:8710", origin="http://127.0.0.1:9999")["type"] == "websocket.close"
    assert ask(guard, "websocket", host="127.0.0.1:8710", origin="http://127.0.0.1:8710")["type"] == "http.response.start"


@pytest.mark.parametrize(
    "origin", ["http://[", "null", "", "http://127.0.0.1:8710/x", "http://127.0.0.1:8710@evil.example", "://"]
)
def test_an_origin_that_is_none_is_another(origin: str) -> None:
    for guard in (Guard(inside, 8710, None), Guard(inside, 8710, TOKEN)):
        assert ask(guard, host="127.0.0.1:8710", origin=origin)["status"] == 403
        assert ask(guard, "websocket", host="127.0.0.1:8710", origin=origin)["type"] == "websocket.close"
    assert ask(Guard(inside, 8710, TOKEN), host="", origin="null", authorization=f"Bearer {TOKEN}")["status"] == 403


def test_another_site_shows_nothing_of_the_board_and_may_link_to_it() -> None:
    guard = Guard(inside, 8710, None)
    for site, kind, status in (
        ("cross-site", "image", 403),
        ("cross-site", "iframe", 403),
        ("cross-site", "document", 200),
        ("same-origin", "image", 200),
    ):
        assert ask(guard, **{"host": "localhost", "sec-fetch-site": site, "sec-fetch-dest": kind})["status"] == status


def test_pages_are_opened_so_often_and_what_they_load_is_not_counted() -> None:
    guard = Guard(inside, 8710, None)
    guard.rates = Rates(2)
    assert [ask(guard, host="localhost")["status"] for _ in range(2)] == [200, 200]
    assert {ask(guard, "http", "/_nicegui/x", host="localhost")["status"] for _ in range(9)} == {200}
    assert ask(guard, "http", "/_niceguiX", host="localhost")["status"] == 429, (
        "no part of a page, but a page that is not there"
    )
    refused = ask(guard, host="localhost")
    assert refused["status"] == 429 and 1 <= int(dict(refused["headers"])[b"retry-after"]) <= 30


def test_a_head_without_bound_reaches_no_page() -> None:
    guard = Guard(inside, 8710, None)
    assert ask(guard, host="localhost", cookie="x" * 20_000)["status"] == 431
    assert ask(guard, "http", "/", "x" * 9_000, host="localhost")["status"] == 414
    assert ask(guard, "websocket", host="localhost", cookie="x" * 20_000)["type"] == "websocket.close"
    assert ask(guard, **{"host": "localhost", "content-length": "3", "transfer-encoding": "chunked"})["status"] == 400
    assert ask(guard, **{"host": "localhost", "content-length": "9" * 5000})["status"] == 413


def test_a_token_is_asked_for_and_becomes_a_cookie() -> None:
    guard = Guard(inside, 8710, TOKEN)
    assert ask(guard, host="box:8710")["status"] == 401
    assert ask(guard, "http", "/", "token=a-token-of-some-lengtH", host="box:8710")["status"] == 401
    assert ask(guard, "websocket", "/", f"token={TOKEN}", host="box:8710")["type"] == "websocket.close"
    let_in = ask(guard, "http", "/run/a", f"token={TOKEN}&metric=x%20y", host="box:8710")
    headers = {key.decode(): value.decode() for key, value in let_in["headers"]}
    assert let_in["status"] == 303 and headers["location"] == "/run/a?metric=x+y" and TOKEN not in headers["set-cookie"]
    assert "HttpOnly" in headers["set-cookie"]
    assert ask(guard, host="box:8710", cookie=headers["set-cookie"].partition(";")[0])["status"] == 200
    assert ask(guard, host="box:8710", cookie=f"milonga-8710={TOKEN}")["status"] == 401
    assert ask(guard, host="box:8710", authorization=f"Bearer {TOKEN}")["status"] == 200
    away = ask(guard, "http", "//evil.example/x", f"token={TOKEN}", host="box:8710")
    assert dict(away["headers"])[b"location"] == b"/evil.example/x", "a link with a token leads nowhere else"
    lines = ask(guard, "http", "/run/a\r\nSet-Cookie: b=c/é", f"token={TOKEN}", host="box:8710")
    assert dict(lines["headers"])[b"location"] == b"/run/a%0D%0ASet-Cookie%3A%20b%3Dc/%C3%A9"


def test_the_board_only_reads(rollouts: Rollouts, tmp_path: Path) -> None:
    write_run(tmp_path / "runs" / "a", [row(0, 0.1)])
    before = {path: os.stat(path).st_mtime_ns for path in tmp_path.rglob("*")}
    cards = Catalogue(tmp_path / "runs").scan()
    summarise_arms(cards, Shelf())
    rollouts.list_problems(Filters(text="p"))
    rollouts.load_transcript(1, "p1")
    assert {path: os.stat(path).st_mtime_ns for path in tmp_path.rglob("*")} == before
