"""Folders and files of others are read as data: whatever they hold, a reader ends in one line, and soon."""

from __future__ import annotations

import gzip
import io
import json
import os
import random
import shutil
import socket
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

import milonga
from cases import TINY
from helpers import PROPERTY, Command, check_growth
from hostile_files import (
    BYTES,
    DEEP,
    KINDS,
    RAW,
    copy_folder,
    damage_text,
    make_endless,
    make_huge,
    make_pipe,
    replace_by_kind,
    seal_again,
)
from milonga import reading
from milonga.board.browse import Filters, Rollouts
from milonga.board.catalogue import Catalogue
from milonga.board.curves import Curves, Shelf
from milonga.board.sides import read_verdicts, summarise_arms
from milonga.cli.show import show_run
from milonga.comparing.packing import unpack
from milonga.comparing.progress import read_last_turn
from milonga.comparing.results import read_outcome, summarise_metric
from milonga.comparing.sweep import write_plan
from milonga.engine.local.models import check_model
from milonga.errors import ConfigError, DataError, RunFolderError, UserError
from milonga.evals.bench import read_processbench
from milonga.pair import Pair, load_finished_run
from milonga.report import build_report, to_html
from milonga.runfolder.checkpoints import Checkpoints, find_damage
from milonga.runfolder.console import SafeConsole
from milonga.runfolder.files import JsonLines, write_atomically
from milonga.runfolder.folder import RunFolder
from milonga.runfolder.rollouts import GROUP, read_rollouts
from milonga.tasks import make_task
from milonga.types import Problem
from milonga.using.items import ProblemItem, read_items

RESULT = Path(__file__).parent.parent / "docs" / "results" / "tango" / "easy.json"
"""What a real comparison wrote."""
FEW = settings(PROPERTY, max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real run with its rollouts, to be read, never changed."""
    folder = tmp_path_factory.mktemp("runs") / "tango"
    kept = {"keep": {"checkpoint_every": 1, "checkpoints": 1, "rollouts_every": 1}, "options": {"warmup": 1}}
    milonga.run("tango", turns=1, seed=3, out=folder, settings=TINY | kept, quiet=True)
    return folder


def check_line(said: object) -> None:
    assert str(said) and "\n" not in str(said)


@pytest.fixture
def copied(run: Path, tmp_path: Path) -> Path:
    return copy_folder(run, tmp_path / "runs" / "run")


# What is opened, and how much of it is read.


@pytest.mark.parametrize("make", KINDS, ids=lambda make: make.__name__)
def test_only_regular_files_of_a_size_are_opened(make: Callable[[Path], None], tmp_path: Path) -> None:
    make(tmp_path / "file")
    with pytest.raises(OSError, match=r"regular file|bytes; more than|No such file"):
        reading.read_bytes(tmp_path / "file", reading.DATA)


def test_links_are_followed_and_files_of_the_system_are_empty(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"content")
    (tmp_path / "link").symlink_to("file")
    assert reading.read_bytes(tmp_path / "link", 7) == b"content"
    assert reading.read_bytes(Path("/proc/self/environ"), 1000) == b"" == b"".join(reading.read_lines(Path("/proc/kmsg"), 9))
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket"))
        with pytest.raises(OSError, match="a socket, not a regular file"):
            reading.open_regular(tmp_path / "socket", 9)


@PROPERTY
@given(st.binary(max_size=200) | st.text(alphabet='[]{}",:\\u0d8e019-.NaInfty \n', max_size=60).map(str.encode))
def test_any_bytes_are_json_or_a_value_error(text: bytes) -> None:
    for parse in (reading.parse_json, lambda raw: reading.parse_toml(raw.decode())):
        try:
            found = parse(text)
        except ValueError as error:
            check_line(reading.explain_unreadable(error))
        else:
            json.dumps(found, allow_nan=False, ensure_ascii=False, default=str).encode()


@pytest.mark.parametrize("raw", [*RAW, '{"a": 1, "a": 2}', '{"\\ud800": 1}'], ids=lambda raw: raw[:12])
def test_json_and_toml_hold_nothing_that_readers_stumble_over(raw: str) -> None:
    if "u001b" in raw:
        return  # a text like any other: it is escaped where it is shown
    with pytest.raises(ValueError, match=r"."):
        reading.parse_json(f'{{"x": {raw}}}'.encode())
    with pytest.raises(ValueError, match=r"."):
        reading.parse_toml(f"x = {raw.lower().replace('infinity', 'inf')}")


def refuse(parse: Callable[[str], object]) -> Callable[[str], None]:
    """A reader that must refuse what it is given."""

    def read(text: str) -> None:
        with pytest.raises(ValueError, match="a key has more than 64 parts"):
            parse(text)

    return read


@pytest.mark.parametrize("part", ["a.", '"a".', "'a' . "])
def test_keys_of_toml_that_go_too_deep_are_refused_before_they_are_parsed(part: str) -> None:
    for before in ("", "[", "x = {"):
        check_growth(refuse(reading.parse_toml), part, before)
    assert reading.parse_toml(part * 40 + "a = 1")


def test_a_key_that_occurs_twice_is_found_in_one_pass() -> None:
    names = iter(range(10**9))

    def read(text: str) -> None:
        pairs = "".join(f'"{next(names)}": 1, ' for _ in text)
        with pytest.raises(ValueError, match="occurs twice"):
            reading.parse_json(f'{{{pairs}"x": 1, "x": 2}}'.encode())

    check_growth(read, "k")


# Run folders.


def read_show(folder: Path) -> None:
    show_run(folder, 3, SafeConsole(file=io.StringIO()))


def read_report(folder: Path) -> None:
    to_html(build_report([folder]))


def read_board(folder: Path) -> None:
    (card,) = Catalogue(folder.parent).scan()
    curves = [Curves(folder / name) for name in ("metrics.jsonl", "timing.jsonl")]
    for one in curves:
        one.refresh()
        one.compute_flow()
    summarise_arms([card], Shelf())
    rollouts = Rollouts(folder / "rollouts", terse=True)
    for group in rollouts.list_problems(Filters(text="a")).groups[:1]:
        rollouts.load_transcript(group.turn, group.problem)


def read_compared(folder: Path) -> None:
    read_last_turn(folder)
    if (found := read_outcome(folder)) is not None:
        summarise_metric({0: found}, "eval/generator/accuracy", "lead_turn")


READERS: tuple[Callable[[Path], Any], ...] = (read_show, read_report, read_board, read_compared, load_finished_run)
"""How `show`, `report`, `board`, `compare` and `sweep` read a run; and `solve`, `verify` and `export`, weights apart."""
READ = (
    *("config.toml", "metrics.jsonl", "timing.jsonl", "machine.jsonl", "report.json", "final.json"),
    *(f"checkpoints/turn-000002/{name}" for name in ("complete.json", "run.json", "engine.json")),
)


def check_readers(folder: Path) -> None:
    """Check that every reader returns, or ends in one line."""
    for read in READERS:
        try:
            read(folder)
        except UserError as error:
            check_line(error)


@FEW
@given(rng=st.randoms(use_true_random=False), name=st.sampled_from(READ))
def test_a_damaged_file_of_a_run_is_one_line(run: Path, tmp_path: Path, rng: random.Random, name: str) -> None:
    folder = copy_folder(run, tmp_path / "runs" / "run")
    (folder / name).write_bytes(damage_text(folder / name, rng))
    if name.startswith("checkpoints") and rng.random() < 0.5:
        seal_again((folder / name).parent)
    check_readers(folder)


@settings(FEW, max_examples=8)
@given(rng=st.randoms(use_true_random=False))
def test_a_damaged_report_or_plan_is_one_line_to_resume_and_sweep(run: Path, tmp_path: Path, rng: random.Random) -> None:
    folder = copy_folder(run, tmp_path / "runs" / "run")
    (folder / "report.json").write_bytes(damage_text(folder / "report.json", rng))
    (folder / "sweep.json").write_text(json.dumps({"runs": {"runs-1/grpo": {"turns": 1}}, "with": {"MODEL": "embedded"}}))
    (folder / "sweep.json").write_bytes(damage_text(folder / "sweep.json", rng))
    for read in (lambda: milonga.resume(folder, quiet=True), lambda: write_plan(folder, [], {})):
        try:
            read()
        except UserError as error:
            check_line(error)


@pytest.mark.parametrize("make", KINDS, ids=lambda make: make.__name__)
def test_a_file_of_a_run_that_is_no_file_is_one_line(make: Callable[[Path], None], copied: Path) -> None:
    replace_by_kind(next((copied / "rollouts").iterdir()), make)
    check_readers(copied)
    for name in READ:
        replace_by_kind(copied / name, make)
    check_readers(copied)


def test_one_bad_folder_is_listed_with_what_is_wrong_and_stops_no_other(copied: Path) -> None:
    root = copied.parent
    for name, file, make in (
        ("pipe", "error.txt", make_pipe),
        ("endless", "config.toml", make_endless),
        ("huge", "metrics.jsonl", make_huge),
    ):
        (root / name).mkdir()
        make(root / name / file)
    os.mkdir(os.fsencode(root) + b"/no\xffutf-8")
    shutil.copy(copied / "config.toml", os.fsencode(root) + b"/no\xffutf-8/config.toml")
    found = {card.name: card for card in Catalogue(root).scan()}
    assert set(found) == {"run", "pipe", "endless", "huge", "no\\udcffutf-8"} and found["run"].state == "finished"
    assert found["pipe"].note == "its error.txt cannot be read: it is a pipe, not a regular file"
    assert found["endless"].note == "its config.toml cannot be read: it is a device, not a regular file"
    assert "metrics.jsonl cannot be read: it has" in found["huge"].note
    assert {found[name].state for name in ("pipe", "endless", "huge")} == {"broken"}


# Checkpoints.

SEALS = [
    *(
        {"files": files}
        for files in ({}, [], None, {"run.json": []}, {"run.json": {"bytes": -1, "crc32": 0}}, [["run.json", 1]])
    ),
    *(
        [],
        None,
        5,
        {"file": {}},
        {"files": {"../../config.toml": {"bytes": 1, "crc32": 1}, "run.json": {"bytes": 1, "crc32": 1}}},
    ),
]


@pytest.mark.parametrize("seal", SEALS, ids=range(len(SEALS)))
def test_a_seal_without_files_or_of_another_shape_is_no_checkpoint(seal: Any, copied: Path) -> None:
    (copied / "checkpoints" / "turn-000002" / "complete.json").write_text(json.dumps(seal))
    assert Checkpoints(copied / "checkpoints", 1).find_newest() is None
    with pytest.raises(RunFolderError, match="no complete checkpoint"):
        load_finished_run(copied)


STATES = [
    {},
    {"place": 2, "problems": {}, "recipe": {}},
    {"place": {"turn": 2, "phase": 10**17}, "problems": {}, "recipe": {}},
    {"place": {"turn": 1}, "problems": {}, "recipe": {}},
    {"place": {"turn": 2}, "problems": {"generator": "3"}, "recipe": []},
]


@pytest.mark.parametrize("state", STATES, ids=range(len(STATES)))
def test_a_forged_state_is_no_checkpoint(state: Any, copied: Path) -> None:
    checkpoint = copied / "checkpoints" / "turn-000002"
    (checkpoint / "run.json").write_text(json.dumps(state))
    seal_again(checkpoint)
    assert "is not the state of a run" in (find_damage(checkpoint) or "")


def lose_policy(checkpoint: Path) -> None:
    state = json.loads((checkpoint / "engine.json").read_text())
    del state["policies"]["generator"]
    (checkpoint / "engine.json").write_text(json.dumps(state))


def lose_tensor(checkpoint: Path) -> None:
    tensors = load_file(checkpoint / "generator.safetensors")
    (checkpoint / "generator.safetensors").unlink()  # it is a link to the one of the whole run
    save_file(dict(list(tensors.items())[1:]), checkpoint / "generator.safetensors")


def forge_header(checkpoint: Path) -> None:
    (checkpoint / "generator.safetensors").unlink()
    header = b'{"a": {"dtype": "F32", "shape": [1000000000000], "data_offsets": [0, 4000000000000]}}'
    (checkpoint / "generator.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)


@pytest.mark.parametrize("forge", [lose_policy, lose_tensor, forge_header], ids=lambda forge: forge.__name__)
def test_forged_weights_are_one_line(forge: Callable[[Path], None], copied: Path) -> None:
    forge(copied / "checkpoints" / "turn-000002")
    seal_again(copied / "checkpoints" / "turn-000002")
    with pytest.raises(RunFolderError, match=r"turn-000002'? ?.*generator"):
        Pair.open(copied, ["generator"])


# Rollouts.


def change_types(table: pa.Table) -> pa.Table:
    return table.set_column(table.schema.get_field_index("text"), "text", pa.array(range(len(table))))


def drop_columns(table: pa.Table) -> pa.Table:
    return table.drop_columns(["question", "targets"])


def set_null(table: pa.Table) -> pa.Table:
    return table.set_column(table.schema.get_field_index("id"), "id", pa.nulls(len(table), pa.string()))


def nest_labels(table: pa.Table) -> pa.Table:
    return table.set_column(table.schema.get_field_index("step_truth"), "step_truth", pa.array([["no"]] * len(table)))


@pytest.mark.parametrize("change", [change_types, drop_columns, set_null, nest_labels], ids=lambda change: change.__name__)
def test_rollouts_of_another_shape_are_one_line(change: Callable[[pa.Table], pa.Table], copied: Path) -> None:
    (file,) = (copied / "rollouts").glob("turn-000002*")
    pq.write_table(change(pq.read_table(file)), file, row_group_size=GROUP)
    check_readers(copied)
    with pytest.raises(RunFolderError, match="cannot be read: "):
        read_rollouts(file, ("id", "text", "question", "step_truth"))


@PROPERTY
@given(place=st.floats(0, 1), byte=st.integers(0, 255))
def test_a_damaged_parquet_file_is_an_error_of_one_line(run: Path, place: float, byte: int) -> None:
    (file,) = (run / "rollouts").glob("turn-000002*")
    content = bytearray(file.read_bytes())
    content[int(place * (len(content) - 1))] = byte
    damaged = run.parent / "turn-000009.parquet"
    damaged.write_bytes(content)
    try:
        read_rollouts(damaged)
    except RunFolderError as error:
        check_line(error)


def test_what_unpacks_to_more_than_a_limit_is_not_read(tmp_path: Path) -> None:
    text = pa.array(["x" * 1000]).dictionary_encode()
    many = pa.DictionaryArray.from_arrays(pa.array([0] * 100_000, pa.int32()), text.dictionary)
    pq.write_table(pa.table({"question": many}), tmp_path / "a.parquet")
    assert (tmp_path / "a.parquet").stat().st_size < 20_000
    with reading.open_parquet(tmp_path / "a.parquet", 1 << 20) as file, pytest.raises(ValueError, match="more than 1,048,576"):
        list(reading.read_batches(file, 1 << 20))
    with pytest.raises(ValueError, match="unpacked it would have"), reading.open_parquet(tmp_path / "a.parquet", 20_000):
        pass


# Comparisons, and archives of sweeps.


@FEW
@given(rng=st.randoms(use_true_random=False))
def test_a_damaged_comparison_is_one_line(tmp_path: Path, rng: random.Random) -> None:
    (tmp_path / "compare.toml").write_text("seeds = [1]")
    (tmp_path / "compare.json").write_bytes(damage_text(RESULT, rng))
    said = read_verdicts(tmp_path)
    assert said is not None and not (isinstance(said, str) and "\n" in said)
    try:
        build_report([tmp_path])
    except RunFolderError as error:
        check_line(error)


def write_archive(file: Path, *members: tarfile.TarInfo) -> None:
    with tarfile.open(file, "w:gz") as archive:
        for member in members:
            archive.addfile(member, io.BytesIO(bytes(member.size)) if member.size < 1 << 20 else None)


def test_an_archive_of_somebody_else_holds_files_alone_and_fits_the_disk(tmp_path: Path) -> None:
    link, large, file = tarfile.TarInfo("a/link"), tarfile.TarInfo("a/large"), tmp_path / "sweep.tgz"
    link.type, link.linkname, large.size = tarfile.SYMTYPE, "inside", 1 << 60
    for member, said in ((link, "neither a file nor a folder"), (large, "room for")):
        write_archive(file, member)
        with pytest.raises(UserError, match=said):
            unpack(file, tmp_path / "out")
    for content in (gzip.compress(b"x" * 1000)[:20], b"\x1f\x8b", b"", gzip.compress(b"no archive")):
        file.write_bytes(content)
        with pytest.raises(UserError, match="cannot be unpacked"):
            unpack(file, tmp_path / "out")
    assert not (tmp_path / "out").exists()


# Data.

TALK = [{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "4."}]
RECORDS: dict[str, dict[str, Any]] = {
    "problems": {"question": "2+2?", "answer": "4", "level": 3},
    "sft": {"prompt": "2+2?", "completion": "4.", "messages": TALK},
    "preferences": {"prompt": "2+2?", "chosen": TALK, "rejected": "5."},
    "steps": {"problem": "2+2?", "steps": ["4.", "5."], "label": [True, False]},
    "prm800k": {
        "question": {"problem": "2+2?"},
        "label": {
            "finish_reason": "solution",
            "steps": [{"completions": [{"text": "4.", "rating": 1}], "chosen_completion": 0}],
        },
    },
    "text": {"text": "Two and two are four."},
    "mbpp": {"text": "Write f.", "code": "def f(x):\n    return x", "test_list": ["assert f(1) == 1"], "test_imports": []},
    "own": {"prompt": "Write f.", "entry_point": "f", "tests": [[[1], 1], {"args": [2], "expected": 2}], "solution": ""},
    "printed": {"question_content": "Add.", "public_test_cases": [{"input": "1", "output": "1", "testtype": "stdin"}]},
}
"""A record of every form of data, by name; the last three are of functions."""
FUNCTIONS = ("mbpp", "own", "printed")


@PROPERTY
@given(rng=st.randoms(use_true_random=False), form=st.sampled_from(sorted(RECORDS)), end=st.sampled_from((".jsonl", ".json")))
def test_damaged_data_of_every_form_are_one_line(
    tmp_path_factory: pytest.TempPathFactory, rng: random.Random, form: str, end: str
) -> None:
    path = tmp_path_factory.getbasetemp() / f"data{end}"
    path.write_text(json.dumps(RECORDS[form] if end == ".jsonl" else [RECORDS[form]]))
    path.write_bytes(damage_text(path, rng))
    kind = {"name": "code", "dialect": "python"} if form in FUNCTIONS else {"name": "jsonl", "form": form}
    try:
        make_task({**kind, "path": str(path), "dev": 0, "test": 0})
    except (DataError, ConfigError) as error:
        check_line(error)


@pytest.mark.parametrize("make", KINDS, ids=lambda make: make.__name__)
@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.csv", "a.parquet", "a.txt"])
def test_data_that_are_no_file_are_one_line(make: Callable[[Path], None], name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    make(path)
    readers: list[Callable[[], Any]] = [
        lambda: make_task({"name": "jsonl", "path": str(path), "form": "text" if name == "a.txt" else "problems"}),
        lambda: read_items(path, ProblemItem),
        lambda: read_processbench(path, None),
    ]
    for read in readers:
        with pytest.raises(DataError) as caught:
            read()
        check_line(caught.value)


@pytest.mark.parametrize("content", BYTES, ids=range(len(BYTES)))
def test_parquet_and_csv_of_any_bytes_are_one_line(content: bytes, tmp_path: Path) -> None:
    for name in ("a.parquet", "a.csv"):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(DataError) as caught:
            make_task({"name": "jsonl", "path": str(tmp_path / name)})
        check_line(caught.value)


def test_a_field_that_occurs_twice_and_an_answer_that_is_no_number_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("question,answer,answer\na,1,2\n")
    with pytest.raises(DataError, match="names the field 'answer' twice"):
        make_task({"name": "jsonl", "path": str(tmp_path / "a.csv")})
    pq.write_table(pa.table({"question": ["a"], "answer": [float("nan")]}), tmp_path / "a.parquet")
    with pytest.raises(DataError, match="is nan, not a finite number"):
        make_task({"name": "jsonl", "path": str(tmp_path / "a.parquet")})


def test_tests_of_a_function_that_are_nested_deeply_are_one_line(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps(RECORDS["mbpp"] | {"test_list": [f"assert f(1) == {'-' * 500}1"]}))
    with pytest.raises(DataError, match="nested more than 200 levels deep"):
        make_task({"name": "code", "dialect": "python", "path": str(path)})


def test_half_a_character_in_a_problem_of_ones_own_names_the_problem() -> None:
    with pytest.raises(DataError, match=r"problem 'mine/3': its text cannot be used: character 6 is half of one .*\\ud800"):
        Problem("mine/3", "What \ud800?", "4")


def test_half_a_character_in_what_code_of_ones_own_writes_is_one_line(tmp_path: Path) -> None:
    asked = {name: value for name, value in TINY.items() if name != "task"}

    def run(name: str, task: Any, **own: Any) -> None:
        milonga.run("grpo", turns=1, out=tmp_path / name, task=task, settings=asked, quiet=True, **own)

    with pytest.raises(DataError, match="half of one"):
        run("question", lambda rng: (f"\ud800{rng.random()}", "1"))
    with pytest.raises(DataError, match="half of one"):
        run("answer", lambda rng: (f"{rng.random()}", "\ud800"))
    with pytest.raises(UserError, match=r"the prompt .* cannot be used: character 1 is half of one"):
        run("prompt", lambda rng: (f"{rng.random()}", "1"), prompt=lambda problem, **more: "\ud800")


# Models.


def test_a_model_folder_with_a_pipe_a_device_or_a_million_layers_is_one_line(run: Path, tmp_path: Path) -> None:
    source = run / "models" / "generator"
    for name, make in (("tokenizer.json", make_pipe), ("generation_config.json", make_endless), ("config.json", make_huge)):
        folder = copy_folder(source, tmp_path / "model")
        replace_by_kind(folder / name, make)
        with pytest.raises(ConfigError, match=f"{name} cannot be read: it "):
            check_model(str(folder))
    folder = copy_folder(source, tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    for damaged in (json.dumps(config | {"num_hidden_layers": 10**9}), f'{{"a": {DEEP}}}', "[]"):
        (folder / "config.json").write_text(damaged)
        with pytest.raises(ConfigError, match=r"config\.json cannot be read"):
            check_model(str(folder))


# What is written and shown.


def test_nothing_is_written_through_a_link_or_a_pipe(tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.write_text("precious")
    folder = tmp_path / "run"
    folder.mkdir()
    for name in ("report.html.draft", "lock", "metrics.jsonl"):
        (folder / name).symlink_to(mine)
    write_atomically(folder / "report.html", "page")
    with pytest.raises(RunFolderError, match="cannot be written"), RunFolder(folder, 1):
        pass
    with pytest.raises(RunFolderError, match="cannot be written"):
        JsonLines(folder / "metrics.jsonl").append({"turn": 1})
    for name in ("lock", "metrics.jsonl"):
        replace_by_kind(folder / name, make_pipe)
    with pytest.raises(RunFolderError, match="cannot be written"), RunFolder(folder, 1):
        pass
    assert mine.read_text() == "precious" and (folder / "report.html").read_text() == "page"


def test_no_control_character_of_others_reaches_the_terminal(copied: Path, milonga: Command) -> None:
    evil = "\x1b]0;owned\x07\x9b31m\u202e"
    rows = [json.loads(line) for line in (copied / "metrics.jsonl").read_text().splitlines()]
    for at, row in enumerate(rows):
        row |= {f"eval/{evil}": at, f"flow/{evil}>{evil}": 0.5}
    (copied / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = (copied / "config.toml").read_text()
    (copied / "config.toml").write_text(config.replace('recipe = "tango"', f"recipe = {json.dumps(evil)}"))
    (file,) = (copied / "rollouts").glob("turn-000002*")
    table = pq.read_table(file)
    for name in ("id", "question", "text", "answer"):
        table = table.set_column(
            table.schema.get_field_index(name), name, pa.array([f"{evil}{at}" for at in range(len(table))])
        )
    pq.write_table(table, file)
    shown, failed = milonga("show", copied), milonga("solve", copied, copied / f"no{evil}.jsonl")
    assert shown.code == 0 and "owned" in shown.out and failed.code == 2 and "owned" in failed.err
    for text in (shown.out, shown.err, failed.out, failed.err):
        assert not set(text) & set("\x1b\x07\x9b\u202e")
