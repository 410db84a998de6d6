"""Nothing is lost in silence: what a resumed run does where files are missing or damaged, or its config was edited."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import milonga
from cases import TINY
from helpers import PROPERTY
from milonga.comparing.worker import run_order
from milonga.config import expand_keys, flatten_keys, merge, parse_config, to_toml
from milonga.errors import RunFolderError
from milonga.resolve import resolve
from milonga.runfolder.changes import FREE, find_changes, list_keys
from milonga.runfolder.checkpoints import MARKER, Checkpoints
from milonga.runfolder.files import JsonLines
from milonga.runfolder.folder import RunFolder, read_config
from milonga.runfolder.origin import Origin, check_origin
from milonga.runfolder.seals import find_losses, format_turns, mend_rows, read_rows, seal_files
from milonga.systems.index import RECIPES

LAST = 3
"""The turn of the newest checkpoint; the run was to have two turns more, one of which has its row already."""


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that has ended, with all its checkpoints."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    keep = {"checkpoint_every": 1, "checkpoints": 9, "rollouts_every": 2}
    chosen = {"pass_rate": [0.0, 1.0], "pass_rate_problems": 16, "pass_rate_samples": 2}
    settings = TINY | {"keep": keep, "task": TINY["task"] | chosen, "options": {"round_turns": 2}}
    milonga.run("spin", turns=5, out=folder, settings=settings, quiet=True)
    return folder


def copy_run(source: Path, target: Path, *left_out: str) -> None:
    """Copy a run. Weights, which nobody changes in place, are linked."""

    def copy(file: str, to: str) -> None:
        os.link(file, to) if file.endswith(".safetensors") else shutil.copy2(file, to)

    shutil.copytree(source, target, ignore=shutil.ignore_patterns(*left_out), copy_function=copy)


@pytest.fixture
def folder(whole: Path, tmp_path: Path) -> Path:
    """The same run, killed after the row of the turn that followed its newest checkpoint."""
    later = [f"turn-{turn:06d}" for turn in range(LAST + 1, 6)]
    copy_run(whole, tmp_path / "run", "report.*", "final.json", "models", *later)
    for name in ("metrics.jsonl", "timing.jsonl"):
        JsonLines(tmp_path / "run" / name).truncate_after(LAST + 1)
    return tmp_path / "run"


def check(folder: Path, **accept: bool) -> Origin:
    """What `resume` checks before it loads anything."""
    found = Checkpoints(folder / "checkpoints", 9).find_newest()
    assert found is not None
    return check_origin(folder, read_config(folder), *found, **{"accept_loss": False, "accept_changes": False, **accept})


def list_files(folder: Path) -> dict[str, bytes]:
    """Every file but weights, with its content."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.suffix != ".safetensors"]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def edit_line(path: Path, number: int, edit: Callable[[str], str]) -> None:
    lines = path.read_text().splitlines(keepends=True)
    lines[number] = edit(lines[number])
    path.write_text("".join(lines))


# What the rest of a run depends on.


def test_a_run_that_was_only_killed_has_lost_nothing(folder: Path) -> None:
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"turn": 5, "lear')
    origin = check(folder)
    assert (origin.path.name, origin.losses, origin.notes) == (f"turn-{LAST:06d}", [], [])


HARM: dict[str, tuple[Callable[[Path], None], str]] = {
    "a line": (lambda f: edit_line(f / "metrics.jsonl", 1, lambda line: line[:50] + "\x00" + line[51:]), "turn 1 missing"),
    "a cut line": (lambda f: edit_line(f / "metrics.jsonl", 2, lambda line: line[:50]), "turns 2 to 3 missing"),
    "a line of another kind": (lambda f: edit_line(f / "metrics.jsonl", 2, lambda _: "[]\n"), "turn 2 missing"),
    "a huge number": (
        lambda f: edit_line(f / "metrics.jsonl", 1, lambda _: '{"turn":1' + "0" * 5000 + "}\n"),
        "turn 1 missing",
    ),
    "a value": (lambda f: edit_line(f / "metrics.jsonl", 1, lambda line: line.replace("0.", "1.", 1)), "changed since"),
    "the order": (lambda f: edit_line(f / "metrics.jsonl", 1, lambda line: line + line), "changed since the checkpoint"),
    "the end": (lambda f: edit_line(f / "metrics.jsonl", 3, lambda _: ""), "turn 3 missing"),
    "all rows": (lambda f: (f / "metrics.jsonl").unlink(), "metrics.jsonl: turns 0 to 3 missing"),
    "the whole file": (lambda f: (f / "metrics.jsonl").write_bytes(b"\xff" * 99) and None, "turns 0 to 3 missing"),
    "a pair": (lambda f: edit_line(f / "preferences.jsonl", 0, lambda _: ""), "preferences.jsonl: damaged or changed"),
    "all pairs": (lambda f: (f / "preferences.jsonl").unlink(), "preferences.jsonl: missing"),
    "pass rates": (lambda f: (f / "pass_rates.json").unlink(), "pass_rates.json: missing"),
    "a pass rate": (lambda f: (f / "pass_rates.json").write_text('{"rates": [[0, 1.0]]}') and None, "pass_rates.json: changed"),
}


@pytest.mark.parametrize("what", HARM)
def test_a_run_that_has_lost_what_it_needs_stops_and_is_left_as_it_is(folder: Path, what: str) -> None:
    harm, says = HARM[what]
    harm(folder)
    before = list_files(folder)
    with pytest.raises(RunFolderError) as error:
        milonga.resume(folder, quiet=True)
    text = str(error.value)
    assert says in text and text.endswith(f"'milonga resume {folder} --accept-loss'") and "\n" not in text
    assert list_files(folder) == before


def test_an_accepted_loss_is_kept_beside_and_named_in_the_report(folder: Path, whole: Path) -> None:
    edit_line(folder / "metrics.jsonl", 0, lambda line: line[:50] + "\n")
    damaged = (folder / "metrics.jsonl").read_bytes()
    report = milonga.resume(folder, quiet=True, accept_loss=True)
    assert (folder / "metrics.jsonl.damaged-1").read_bytes() == damaged
    assert report["lost_turns"] == [0] and json.loads((folder / "report.json").read_text())["lost_turns"] == [0]
    assert report["generator"]["accuracy"]["start"] is None, "the next evaluation is not the start"
    assert "The metrics of turns 0 are lost" in (folder / "report.html").read_text()
    rows, expected = (JsonLines(each / "metrics.jsonl").rows() for each in (folder, whole))
    assert rows[0] == {"turn": 0, "learner": None, "lost": True} and rows[1:] == expected[1:]
    notes = JsonLines(folder / "machine.jsonl").rows()[-1]["notes"]
    assert notes == ["metrics.jsonl: turn 0 missing or damaged"]
    model = "models/generator/model.safetensors"
    assert (folder / model).read_bytes() == (whole / model).read_bytes()


def test_a_second_loss_leaves_the_first_file_beside_as_it_was(folder: Path) -> None:
    for turn in (1, 2):
        edit_line(folder / "metrics.jsonl", turn, lambda _: "\n")
        with RunFolder(folder, 9) as opened:
            opened.rewind(LAST, check(folder, accept_loss=True).losses)
    first, second = (len(JsonLines(folder / f"metrics.jsonl.damaged-{n}").rows()) for n in (1, 2))
    assert (first, second) == (1, 2)
    assert [row.get("lost", False) for row in JsonLines(folder / "metrics.jsonl").rows()] == [False, True, True, False]


def forget_seals(folder: Path) -> None:
    """Make the newest checkpoint one of an older version, which knew neither the config nor the other files."""
    path = folder / "checkpoints" / f"turn-{LAST:06d}"
    old = {key: value for key, value in json.loads((path / "run.json").read_text()).items() if key not in ("config", "files")}
    saved = {file.name: file.read_bytes() for file in path.iterdir() if file.name not in (MARKER, "run.json")}

    def write_engine(draft: Path) -> None:
        for name, content in saved.items():
            (draft / name).write_bytes(content)

    Checkpoints(folder / "checkpoints", 9).save(LAST, old, write_engine)


def test_checkpoints_of_older_versions_are_checked_by_what_can_be_seen(folder: Path, whole: Path) -> None:
    forget_seals(folder)
    assert check(folder).notes == ["the checkpoint is of an older version: edits of config.toml since cannot be seen"]
    copy_run(folder, folder.with_name("damaged"))
    milonga.resume(folder, quiet=True)
    assert (folder / "metrics.jsonl").read_bytes() == (whole / "metrics.jsonl").read_bytes()
    edit_line(folder.with_name("damaged") / "metrics.jsonl", 1, lambda line: line[:9] + "\n")
    with pytest.raises(RunFolderError, match="turn 1 missing or damaged"):
        check(folder.with_name("damaged"))


@pytest.mark.parametrize(
    "state",
    [{}, {"place": []}, {"place": {"turn": "x"}}, {"place": {"turn": 3}, "files": []}, {"place": {"turn": 3}, "config": 3}]
    + [{"place": {"turn": 3}, "files": {"metrics.jsonl": seal}} for seal in ({}, {"bytes": 9}, {"bytes": "x", "crc32": 0}, 3)],
)
def test_a_state_of_any_other_shape_is_one_line(tmp_path: Path, state: dict[str, Any]) -> None:
    with pytest.raises(RunFolderError, match=r"run\.json' is not one that milonga wrote"):
        check_origin(tmp_path, parse_config({"recipe": "grpo"}), tmp_path, state, True, True)


def test_a_turn_that_no_run_can_have_costs_nothing(tmp_path: Path) -> None:
    JsonLines(tmp_path / "metrics.jsonl").append({"turn": 0}, {"turn": 2})
    assert str(find_losses(tmp_path, 10**15, None)[0]) == f"metrics.jsonl: turns 1, 3 to {10**15} missing or damaged"


# What is only kept for people.


def test_what_nothing_depends_on_is_said_and_the_run_goes_on(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    edit_line(folder / "timing.jsonl", 1, lambda line: line[:5] + "\n")
    (folder / "rollouts" / "turn-000002.parquet").write_bytes(b"cut")
    machine = (folder / "machine.jsonl").read_text()
    (folder / "machine.jsonl").write_text('{"turn": 3, "star\n' + machine)
    capsys.readouterr()
    assert "lost_turns" not in milonga.resume(folder)
    said = capsys.readouterr().err
    for line in (
        "timing.jsonl: turn 1 missing or damaged",
        "rollouts: turn-000002.parquet missing or damaged",
        "machine.jsonl: lines that cannot be read",
    ):
        assert line in said
    assert [row["turn"] for row in JsonLines(folder / "timing.jsonl").rows()] == [0, 2, 3, 4, 5]
    assert len(JsonLines(folder / "machine.jsonl").rows()) == 2
    assert all((folder / f"{name}.jsonl.damaged-1").exists() for name in ("timing", "machine"))
    assert (folder / "rollouts" / "turn-000002.parquet").read_bytes() == b"cut"


@pytest.mark.parametrize("name", ["metrics.jsonl", "timing.jsonl", "preferences.jsonl", "machine.jsonl"])
@pytest.mark.parametrize("begins_again", [False, True])
def test_half_a_line_at_the_end_is_no_loss(folder: Path, name: str, begins_again: bool) -> None:
    """It was being written when the run was killed. What is appended later can be read, and nothing is kept beside."""
    if begins_again:
        shutil.rmtree(folder / "checkpoints")
        (folder / "metrics.jsonl").unlink()
    with (folder / name).open("a") as file:
        file.write('{"turn": 3, "star')
    milonga.resume(folder, quiet=True)
    assert read_rows(folder / name, None).unread == 0 and not (folder / f"{name}.damaged-1").exists()
    assert len(JsonLines(folder / "machine.jsonl").rows()) == 2


def test_a_run_whose_checkpoints_are_gone_begins_again_and_keeps_its_metrics(folder: Path) -> None:
    shutil.rmtree(folder / "checkpoints")
    before = (folder / "metrics.jsonl").read_bytes()
    with RunFolder(folder, 9) as opened:
        assert opened.restart() and not opened.restart()
    assert (folder / "metrics.jsonl.damaged-1").read_bytes() == before and not (folder / "metrics.jsonl.damaged-2").exists()


def test_a_report_that_cannot_be_read_is_made_again(whole: Path, tmp_path: Path) -> None:
    copy_run(whole, tmp_path / "run")
    (tmp_path / "run" / "report.json").write_text('{"turns": 5, "recip')
    milonga.resume(tmp_path / "run", quiet=True)
    reports = [json.loads((each / "report.json").read_text()) for each in (whole, tmp_path / "run")]
    assert reports[0] | {"run": ""} == reports[1] | {"run": ""}


@PROPERTY
@given(st.sets(st.integers(0, 40)))
def test_turns_are_named_as_ranges(turns: set[int]) -> None:
    text, named = format_turns(sorted(turns)), set[int]()
    for part in text.split(", ") if text else []:
        first, _, last = part.partition(" to ")
        named |= set(range(int(first), int(last or first) + 1))
    assert named == turns


ROWS = b"".join(b'{"turn": %d, "value": 0.5}\n' % turn for turn in range(4))


@PROPERTY
@given(st.integers(0, len(ROWS)), st.binary(max_size=40), st.integers(0, 40))
def test_other_bytes_before_the_checkpoint_are_a_loss_and_after_it_are_none(
    scratch: Path, place: int, other: bytes, gone: int
) -> None:
    file = scratch / "metrics.jsonl"
    sealed = ROWS[: ROWS.index(b'{"turn": 3')]
    file.write_bytes(sealed)
    seals = seal_files(scratch)
    file.write_bytes(ROWS[:place] + other + ROWS[place + gone :])
    lost = [loss for loss in find_losses(scratch, 2, seals) if loss.file == "metrics.jsonl"]
    assert bool(lost) != file.read_bytes().startswith(sealed)
    if lost:
        mend_rows(file, 2)
        (scratch / "metrics.jsonl.damaged-1").unlink()
        assert [row["turn"] for row in JsonLines(file).rows()] == [0, 1, 2]


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("scratch")


# The config.


def edit_config(folder: Path, **keys: Any) -> None:
    config = merge(read_config(folder).model_dump(mode="json"), expand_keys({k.replace("__", "."): v for k, v in keys.items()}))
    (folder / "config.toml").write_text(to_toml(config))


def test_an_edited_key_is_named_and_refused(folder: Path) -> None:
    edit_config(folder, seed=1, batch__problems=5)
    before = list_files(folder)
    with pytest.raises(RunFolderError) as error:
        milonga.resume(folder, quiet=True, turns=9, accept_loss=True)
    assert "seed was 0 at the checkpoint and is 1 in config.toml; batch.problems was 4 at" in str(error.value)
    assert str(error.value).endswith(f"'milonga resume {folder} --accept-changes'") and list_files(folder) == before
    notes = check(folder, accept_changes=True).notes
    assert [note.partition(" ")[0] for note in notes] == ["seed", "batch.problems"]


def test_what_a_run_does_not_depend_on_may_be_edited_and_is_said(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    edit_config(folder, turns=4, keep__checkpoints=1, policies__generator__micro_tokens=4096)
    capsys.readouterr()
    assert milonga.resume(folder)["turns"] == 4
    said = capsys.readouterr().err
    assert "turns was 5 at the checkpoint and is 4 in config.toml\n" in said
    assert "policies.generator.micro_tokens was not set at the checkpoint and is 4096 in config.toml\n" in said
    assert len(list((folder / "checkpoints").iterdir())) == 1
    assert len(JsonLines(folder / "machine.jsonl").rows()[-1]["notes"]) == 3


def test_with_staleness_checkpoints_decide_what_is_sampled_when() -> None:
    for staleness, free in ((0, True), (1, False)):
        saved, later = (
            parse_config({"recipe": "grpo", "staleness": staleness, "keep": {"checkpoint_every": every}}) for every in (5, 7)
        )
        (change,) = find_changes(list_keys(saved, False), list_keys(saved, True), later)
        assert (change.key, change.was, change.now, change.free) == ("keep.checkpoint_every", 5, 7, free)


def test_keys_that_an_older_version_did_not_know_had_their_defaults() -> None:
    config = parse_config({"recipe": "grpo", "binding": "lora"})
    bound = {key: value for key, value in list_keys(config, False).items() if key not in ("bootstrap", "eval.checks")}
    assert find_changes(bound, {}, config) == []
    (change,) = find_changes(bound, {}, config.model_copy(update={"bootstrap": 2}))
    assert str(change) == "bootstrap was 0 at the checkpoint and is 2 in config.toml"


@pytest.mark.parametrize("name", sorted(RECIPES))
def test_a_config_that_nobody_edited_has_no_changes(name: str, tmp_path: Path) -> None:
    """Presets, whose other keys stand before or behind them, among it; as the loop knows it, and as config.toml has it."""
    config = resolve([{"recipe": name, "device": "cpu"}]).config
    (tmp_path / "config.toml").write_text(to_toml(config.model_dump(mode="json")))
    for read in (config, read_config(tmp_path)):
        assert find_changes(list_keys(config, False), list_keys(config, True), read) == []


def test_every_key_that_may_change_is_one_of_the_config() -> None:
    policies = {"policies": {"a": {"endpoint": {}}}, "sampling": {"vllm": {}}, "budget": {"flops": 1.0}}
    known = flatten_keys(parse_config({"recipe": "grpo"} | policies).model_dump())
    assert [pattern for pattern in FREE if not any(fnmatchcase(key, pattern) for key in known)] == []


def test_an_edited_run_of_a_comparison_is_refused_too(folder: Path, tmp_path: Path) -> None:
    """A study may change paths of its runs; somebody who edits one of them may not."""
    ordered = read_config(folder).model_dump(mode="json")
    edit_config(folder, seed=1)
    answer = run_order({"folder": str(folder), "config": ordered})
    assert "seed was 0 at the checkpoint and is 1" in answer["error"]
