"""The run folder: one process at a time, whole checkpoints or none, a full disk, rows that are cut back, what is kept."""

from __future__ import annotations

import errno
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import milonga
from helpers import make_rollout
from milonga.errors import ConfigError, Notice, RunFolderError
from milonga.resolve import resolve
from milonga.runfolder.checkpoints import MARKER, Checkpoints, check_free_space, find_damage
from milonga.runfolder.files import JsonLines, to_json, write_atomically
from milonga.runfolder.folder import RunFolder, read_config
from milonga.runfolder.rollouts import make_schema, read_rollouts, write_rollouts
from milonga.runfolder.seals import find_losses, seal_files
from milonga.types import Grade, Parsed, Problem, Rollout, Verification

EMBEDDED = Path(milonga.__file__).parent / "embedded" / "base"


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A model of a few thousand random weights with the embedded tokenizer: runs in no time, and learns nothing."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    folder = tmp_path_factory.mktemp("tiny")
    torch.manual_seed(0)
    base = json.loads((EMBEDDED / "config.json").read_text())
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    special = {key: base[key] for key in ("vocab_size", "bos_token_id", "eos_token_id", "pad_token_id")}
    LlamaForCausalLM(LlamaConfig(**special, **sizes, tie_word_embeddings=True)).save_pretrained(folder)
    for file in EMBEDDED.glob("tokenizer*"):
        shutil.copy(file, folder)
    return str(folder)


def settings(tiny: str, **more: Any) -> dict[str, Any]:
    """A run of few and small turns. The entropy bonus moves the weights where no answer is ever right."""
    policy = {"model": tiny, "objective": {"preset": "grpo", "entropy_coef": 0.01}}
    return {
        "policies": {"generator": policy},
        "dialect": "terse",
        "device": "cpu",
        "threads": 1,
        "task": {"name": "chain", "ops": 2},
        "batch": {"problems": 2, "rollouts": 2},
        "eval": {"problems": 2, "samples": 2, "every": 2, "greedy": False},
        "keep": {"checkpoint_every": 1, "rollouts_every": 1} | more.pop("keep", {}),
        "probe": "off",
        "stop_without_signal": 0,
    } | more


def contents(folder: Path) -> dict[str, bytes]:
    """All that must be the same after a resume: metrics, rollouts, the last checkpoint, the models."""
    files = [folder / "metrics.jsonl", *folder.glob("rollouts/*"), *folder.glob("models/*/*")]
    files += sorted(folder.glob("checkpoints/*"))[-1].iterdir()
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


# One process at a time.


def test_a_second_process_is_refused_until_the_first_is_gone(tmp_path: Path) -> None:
    program = (
        "import pathlib, sys, time; from milonga.runfolder.folder import RunFolder\n"
        "with RunFolder(pathlib.Path(sys.argv[1]), 1):\n    print('locked', flush=True); time.sleep(60)"
    )
    first = subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert first.stdout is not None
    try:
        assert first.stdout.readline() == "locked\n"
        with pytest.raises(RunFolderError, match="in use by another run"), RunFolder(tmp_path, 1):
            pass
    finally:
        first.send_signal(signal.SIGKILL)
        first.wait()
        first.stdout.close()
    with RunFolder(tmp_path, 1):
        pass


def test_a_file_system_without_locks_is_said_and_not_taken_for_another_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", refuse)
    with (
        pytest.warns(Notice, match="without locks .No locks available.: no second process"),
        RunFolder(tmp_path, 1),
    ):
        pass


def test_a_folder_with_a_run_is_refused_with_the_way_on(tmp_path: Path, tiny: str) -> None:
    config = resolve([{"recipe": "grpo"}]).config
    with RunFolder(tmp_path, 1) as folder:
        folder.begin(config)
    assert read_config(tmp_path) == config
    with pytest.raises(RunFolderError, match="already holds a run; continue it with 'milonga resume"):
        milonga.run("grpo", out=tmp_path, settings=settings(tiny), quiet=True)


def test_a_start_that_fails_leaves_no_run_behind(tmp_path: Path, tiny: str) -> None:
    out = tmp_path / "run"
    wrong = settings(tiny) | {"policies": {"generator": {"model": str(tmp_path / "none")}}}
    with pytest.raises(ConfigError, match="does not exist"):
        milonga.run("grpo", out=out, settings=wrong, quiet=True)
    assert milonga.run("grpo", out=out, turns=1, settings=settings(tiny), quiet=True)["turns"] == 1


def test_folders_that_hold_no_run_are_named(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="does not exist"):
        milonga.resume(tmp_path / "none")
    with pytest.raises(RunFolderError, match=r"no config\.toml"):
        milonga.resume(tmp_path)


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs a file system in which nothing can be made")
def test_a_place_where_nothing_can_be_made_is_the_users_to_mend() -> None:
    with pytest.raises(RunFolderError, match="cannot be written"), RunFolder(Path("/proc/milonga"), 1):
        pass


def test_a_file_in_the_way_is_the_users_to_mend(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "run"):
        with pytest.raises(RunFolderError, match="cannot be written"), RunFolder(path, 1):
            pass


# Checkpoints.


def saved(folder: Path, turn: int, keep: int = 9, size: int = 1000) -> Path:
    def save_engine(draft: Path) -> None:
        assert draft.name.endswith(".draft") and not (draft / MARKER).exists()
        (draft / "weights.safetensors").write_bytes(bytes([turn]) * size)

    return Checkpoints(folder, keep).save(turn, {"place": {"turn": turn}}, save_engine)


def test_the_marker_comes_last_and_names_every_file(tmp_path: Path) -> None:
    path = saved(tmp_path, 3)
    assert path.name == "turn-000003" and find_damage(path) is None
    marker = json.loads((path / MARKER).read_text())
    assert marker["turn"] == 3 and set(marker["files"]) == {"run.json", "weights.safetensors"}
    found = Checkpoints(tmp_path, 9).find_newest()
    assert found == (path, {"place": {"turn": 3}})


def test_a_save_that_fails_leaves_what_was_there(tmp_path: Path) -> None:
    saved(tmp_path, 1)

    def fail(draft: Path) -> None:
        (draft / "weights.safetensors").write_bytes(b"half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Checkpoints(tmp_path, 1).save(2, {}, fail)
    assert [path.name for path in tmp_path.iterdir()] == ["turn-000001"]


def cut(path: Path) -> None:
    os.truncate(path / "weights.safetensors", 500)


def flip(path: Path) -> None:
    file = path / "weights.safetensors"
    raw = bytearray(file.read_bytes())
    raw[500] ^= 1
    file.write_bytes(raw)


def lose(path: Path) -> None:
    (path / "run.json").unlink()


def garble(path: Path) -> None:
    (path / MARKER).write_text('{"turn": 3, "fil')


@pytest.mark.parametrize(
    ("harm", "says"),
    [(cut, "500 bytes instead of 1000"), (flip, "checksum"), (lose, "run.json is missing"), (garble, "marker")],
)
def test_a_damaged_checkpoint_is_passed_over_for_an_older_one(tmp_path: Path, harm: Any, says: str) -> None:
    good, bad = saved(tmp_path, 2), saved(tmp_path, 3)
    harm(bad)
    checkpoints = Checkpoints(tmp_path, 9)
    assert checkpoints.find_newest() == (good, {"place": {"turn": 2}})
    (message,) = checkpoints.list_damaged()
    assert message.startswith("turn-000003: ") and says in message


def test_a_folder_without_marker_does_not_count(tmp_path: Path) -> None:
    good = saved(tmp_path, 2)
    for name in ("turn-000003", "turn-000004.draft"):
        shutil.copytree(good, tmp_path / name)
        (tmp_path / name / MARKER).unlink()
    found = Checkpoints(tmp_path, 9).find_newest()
    assert found is not None and found[0] == good and Checkpoints(tmp_path, 9).list_damaged() == []


def test_only_the_newest_are_kept(tmp_path: Path) -> None:
    for turn in range(5):
        saved(tmp_path, turn, keep=2)
    (tmp_path / "turn-000009.draft").mkdir()
    saved(tmp_path, 5, keep=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["turn-000004", "turn-000005"]


def test_a_damaged_checkpoint_never_outlives_a_good_one(tmp_path: Path) -> None:
    saved(tmp_path / "checkpoints", 1)
    cut(saved(tmp_path / "checkpoints", 5))
    with RunFolder(tmp_path, keep=1) as folder:
        folder.rewind(1)
        saved(tmp_path / "checkpoints", 2, keep=1)
        found = folder.checkpoints.find_newest()
    assert found is not None and found[0].name == "turn-000002"


def test_a_run_goes_on_from_an_older_checkpoint_and_says_so(
    tmp_path: Path, tiny: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    milonga.run("grpo", out=out, turns=3, settings=settings(tiny), quiet=True)
    expected = contents(out)
    os.truncate(out / "checkpoints" / "turn-000003" / "generator.safetensors", 100)
    capsys.readouterr()
    assert milonga.resume(out)["turns"] == 3
    said = capsys.readouterr().err
    assert "turn-000003: generator.safetensors has 100 bytes" in said and "using an older one" in said
    assert "resumed at turn 2" in said
    assert contents(out) == expected


def test_without_any_checkpoint_a_run_starts_again(tmp_path: Path, tiny: str) -> None:
    out = tmp_path / "run"
    milonga.run("grpo", out=out, turns=2, settings=settings(tiny), quiet=True)
    expected = contents(out)
    shutil.rmtree(out / "checkpoints")
    milonga.resume(out, quiet=True)
    assert contents(out) == expected


def test_a_run_with_only_damaged_checkpoints_is_refused(tmp_path: Path, tiny: str) -> None:
    out = tmp_path / "run"
    milonga.run("grpo", out=out, turns=1, settings=settings(tiny), quiet=True)
    for path in out.glob("checkpoints/turn-*"):
        (path / "run.json").write_text("{}")
    with pytest.raises(RunFolderError, match="no complete checkpoint"):
        milonga.resume(out, quiet=True)


def test_a_finished_run_resumes_to_itself(tmp_path: Path, tiny: str, capsys: pytest.CaptureFixture[str]) -> None:
    report = milonga.run("grpo", out=tmp_path / "run", turns=2, settings=settings(tiny), quiet=True)
    before = contents(tmp_path / "run")
    assert milonga.resume(tmp_path / "run") == report
    assert f"has ended after 2 turns; to go on: milonga resume {tmp_path / 'run'} --turns" in capsys.readouterr().err
    assert contents(tmp_path / "run") == before


def test_a_finished_run_can_be_extended(tmp_path: Path, tiny: str) -> None:
    """On a constant schedule, as here, it then is the run that was planned so, but for one evaluation at its first end."""
    for name, turns in (("long", 3), ("short", 2)):
        milonga.run("grpo", out=tmp_path / name, turns=turns, settings=settings(tiny), quiet=True)
    assert milonga.resume(tmp_path / "short", quiet=True, turns=3)["turns"] == 3
    models = [(tmp_path / name / "models/generator/model.safetensors").read_bytes() for name in ("long", "short")]
    assert models[0] == models[1]
    rows = [JsonLines(tmp_path / name / "metrics.jsonl").rows() for name in ("long", "short")]
    assert len(rows[1]) == 4 and all(rows[1][n].items() >= rows[0][n].items() for n in range(4))
    assert read_config(tmp_path / "short").turns == 3
    with pytest.raises(RunFolderError, match="has 3 turns of its lead agent; to extend it, name more"):
        milonga.resume(tmp_path / "short", turns=3)


def test_a_model_that_has_changed_is_not_resumed(tmp_path: Path, tiny: str) -> None:
    import torch
    from safetensors.torch import load_file, save_file

    model = tmp_path / "model"
    shutil.copytree(tiny, model)
    milonga.run("grpo", out=tmp_path / "run", turns=1, settings=settings(str(model)), quiet=True)
    weights = {k: v + 1 if v.dtype.is_floating_point else v for k, v in load_file(model / "model.safetensors").items()}
    assert all(isinstance(v, torch.Tensor) for v in weights.values())
    save_file(weights, model / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(RunFolderError, match="did not start from"):
        milonga.resume(tmp_path / "run", quiet=True, turns=2)


# A full disk.


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of one megabyte that can really be full."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "milonga-test", str(disk)]
    try:
        done = subprocess.run(mount, capture_output=True, check=False)
    except FileNotFoundError:
        pytest.skip("there is no mount here")
    if done.returncode:
        pytest.skip("mounting a small disk is not allowed here; the file size limit stands in for it")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def test_a_checkpoint_that_does_not_fit_leaves_the_last_good_one(small_disk: Path) -> None:
    import torch
    from safetensors.torch import save_file

    checkpoints = Checkpoints(small_disk, 2)

    def save_engine(draft: Path) -> None:
        save_file({"weights": torch.zeros(150_000)}, draft / "policy.safetensors")

    good = checkpoints.save(1, {"place": {"turn": 1}}, save_engine)
    with pytest.raises(RunFolderError, match=r"the disk is full.*turn-000002.*milonga resume"):
        checkpoints.save(2, {"place": {"turn": 2}}, save_engine)
    assert [path.name for path in small_disk.iterdir()] == ["turn-000001"]
    assert checkpoints.find_newest() == (good, {"place": {"turn": 1}})


def test_rows_and_rollouts_on_a_full_disk_are_one_clear_error(small_disk: Path) -> None:
    rows = JsonLines(small_disk / "metrics.jsonl")
    rows.append({"turn": 0})
    ballast = small_disk / "ballast"
    with pytest.raises(OSError, match="No space"):
        ballast.write_bytes(bytes(2 << 20))
    with pytest.raises(RunFolderError, match=r"the disk is full.*metrics\.jsonl"):
        rows.append({"turn": 1, "long": "x" * 5000})
    with pytest.raises(RunFolderError, match="the disk is full"):
        write_rollouts(small_disk / "rollouts" / "turn-000001.parquet", [make_rollout(2, 400, id=f"t{i}") for i in range(90)])
    with pytest.raises(RunFolderError, match="the disk is full"):
        write_atomically(small_disk / "metrics.jsonl", "x" * 9000)
    ballast.unlink()
    assert rows.rows()[0] == {"turn": 0}
    rows.truncate_after(0)
    assert rows.path.read_text() == '{"turn": 0}\n'


def test_a_disk_that_becomes_read_only_leaves_what_was_there(small_disk: Path) -> None:
    rows, good = JsonLines(small_disk / "metrics.jsonl"), saved(small_disk / "checkpoints", 1)
    rows.append({"turn": 0}, {"turn": 1})
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    refused = pytest.raises(RunFolderError, match="cannot be written: Read-only file system")
    with refused:
        rows.append({"turn": 2})
    with refused:
        saved(small_disk / "checkpoints", 2)
    with refused:
        write_rollouts(small_disk / "rollouts" / "turn-000002.parquet", [make_rollout(2, 4)])
    subprocess.run(["mount", "-o", "remount,rw", str(small_disk)], check=True)
    assert Checkpoints(small_disk / "checkpoints", 9).find_newest() == (good, {"place": {"turn": 1}})
    assert [path.name for path in (small_disk / "checkpoints").iterdir()] == ["turn-000001"]
    assert find_losses(small_disk, 1, None)[0].file == "timing.jsonl", "the rows are whole"


def test_a_row_that_was_cut_by_a_full_disk_is_made_again(small_disk: Path) -> None:
    """Rows up to the checkpoint stay as they are sealed, whatever half of the next one fitted."""
    rows = JsonLines(small_disk / "metrics.jsonl")
    rows.append({"turn": 0}, {"turn": 1})
    whole, seals = rows.path.read_bytes(), seal_files(small_disk)
    with pytest.raises(OSError, match="No space"):
        (small_disk / "ballast").write_bytes(bytes(2 << 20))
    with pytest.raises(RunFolderError, match="the disk is full"):
        rows.append({"turn": 2, "long": "x" * 9000})
    (small_disk / "ballast").unlink()
    assert [loss.file for loss in find_losses(small_disk, 1, seals)] == ["timing.jsonl"]
    with RunFolder(small_disk, 1) as folder:
        folder.rewind(1)
    assert rows.path.read_bytes() == whole


def test_a_run_on_a_full_disk_ends_in_one_line_and_resumes(tmp_path: Path, tiny: str) -> None:
    whole, out = tmp_path / "whole", tmp_path / "run"
    plan = settings(tiny, keep={"rollouts_every": 0})
    milonga.run("grpo", out=whole, turns=2, settings=plan, quiet=True)
    # The first checkpoint holds the weights alone; the next ones hold two moments more, and do not fit.
    limit = 2 * (Path(tiny) / "model.safetensors").stat().st_size
    program = (
        f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))\nfrom milonga.cli import main; main()"
    )
    config = tmp_path / "run.toml"
    from milonga.config import to_toml

    config.write_text(to_toml(plan))
    command = [sys.executable, "-c", program, "run", "grpo", "--turns", "2", "--out", str(out), "--config", str(config)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stderr
    (error,) = [line for line in done.stderr.splitlines() if line.startswith("milonga:")]
    assert "the disk is full" in error and "turn-000001" in error and "Traceback" not in done.stderr
    assert [path.name for path in (out / "checkpoints").iterdir()] == ["turn-000000"]
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] != limit
    milonga.resume(out, quiet=True)
    assert contents(out) == contents(whole)


def test_room_is_checked_before_the_start_with_figures(tmp_path: Path, tiny: str) -> None:
    with pytest.raises(RunFolderError, match=r"has [\d,]+ MiB free, .* need [\d,]+ MiB; .*keep\.checkpoints=1"):
        milonga.run("grpo", out=tmp_path, settings=settings(tiny, keep={"checkpoints": 10**9}), quiet=True)
    assert not (tmp_path / "config.toml").exists()
    check_free_space(tmp_path, 10, 10)


# Rows, rollouts, trackers.


def test_rows_are_cut_back_to_a_turn(tmp_path: Path) -> None:
    rows = JsonLines(tmp_path / "metrics.jsonl")
    assert rows.rows() == []
    for turn in range(4):
        rows.append({"turn": turn, "value": turn / 3, "text": "é\u2028\n"})
    whole = rows.path.read_text()
    rows.truncate_after(2)
    assert [row["turn"] for row in rows.rows()] == [0, 1, 2]
    assert whole.startswith(rows.path.read_text())


@pytest.mark.parametrize("torn", ['{"turn": 3, "va', '{"turn": 3}'[:-1], "\x00\x00\x00", "{"])
def test_a_half_written_last_row_is_left_out(tmp_path: Path, torn: str) -> None:
    rows = JsonLines(tmp_path / "metrics.jsonl")
    rows.append({"turn": 2})
    with rows.path.open("a") as file:
        file.write(torn)
    assert rows.rows() == [{"turn": 2}]
    rows.truncate_after(2)
    rows.append({"turn": 3})
    assert rows.rows() == [{"turn": 2}, {"turn": 3}]


def test_rows_are_strict_json() -> None:
    row = {"nan": float("nan"), "inf": [float("inf"), 1], "numpy": np.float32(0.5), "deep": {"nan": np.nan}, "none": None}
    assert json.loads(to_json(row)) == {"nan": None, "inf": [None, 1], "numpy": 0.5, "deep": {"nan": None}, "none": None}


def test_a_resumed_run_forgets_what_came_after_its_checkpoint(tmp_path: Path, tiny: str) -> None:
    out = tmp_path / "run"
    milonga.run("grpo", out=out, turns=3, settings=settings(tiny), quiet=True)
    expected = contents(out)
    shutil.rmtree(out / "checkpoints" / "turn-000003")
    with (out / "metrics.jsonl").open("a") as file:
        file.write('{"turn": 4, "learner": "nobody"}\n{"turn": 5, "lea')
    (out / "rollouts" / "turn-000004.parquet").write_bytes(b"later")
    milonga.resume(out, quiet=True)
    assert contents(out) == expected
    assert [row["turn"] for row in JsonLines(out / "timing.jsonl").rows()] == [0, 1, 2, 3]


def test_rollouts_come_back_as_they_were_written(tmp_path: Path) -> None:
    solution = make_rollout(3, 6, [2, 4], problem="p", correct=True, logprobs=[-0.5] * 6, id="1/generator/p/0")
    solution.grade = Grade(True, (True, False))
    verification = Verification((True, False), False, (1, 2))
    check = Rollout.from_text("1/verifier/c", "verifier", Problem("p", "p", "a"), "++\x00é\n", Parsed(verification, 0.6))
    check.targets = (solution,)
    unreadable = Rollout.from_text("u", "verifier", check.problem, "", Parsed(Verification(None, None), 0.0, "no verdict"))
    unreadable.targets = (solution,)
    path = tmp_path / "rollouts" / "turn-000001.parquet"
    credit = np.linspace(-1, 1, 9).astype("float32")
    write_rollouts(path, [solution, check, unreadable], {solution.id: credit, check.id: credit})
    first, second, third = read_rollouts(path)
    assert first["advantages"] == credit.tolist() and first["step_chars"] == [2, 4]
    assert second["advantages"] is None, "an array that does not fit the ids is not theirs"
    assert [row["verification"] for row in (first, second, third)] == [False, True, True]
    assert [row["contradiction"] for row in (first, second, third)] == [None, False, None]
    assert [row["fooled"] for row in (first, second, third)] == [None, False, None]
    assert first["ids"] == solution.ids.tolist() and first["logprobs"] == solution.logprobs.tolist()
    assert (first["trained_from"], first["step_ends"], first["version"]) == (3, [5, 7], 0)
    assert (first["correct"], first["step_truth"], first["answer"], first["targets"]) == (True, [True, False], "answer", [])
    assert (second["targets"], second["text"], second["format"]) == ([solution.id], check.text, 0.6)
    assert (second["step_verdicts"], second["final_verdict"], second["correct"]) == ([True, False], False, None)
    assert (third["step_verdicts"], third["final_verdict"], third["invalid"]) == (None, None, "no verdict")
    assert list(tmp_path.rglob("*.draft")) == []


def test_a_run_dumps_all_rollouts_of_a_turn(tmp_path: Path, tiny: str) -> None:
    keep = {"rollouts_every": 2}
    milonga.run("grpo", out=tmp_path / "run", turns=3, settings=settings(tiny, keep=keep), quiet=True)
    assert [path.name for path in (tmp_path / "run" / "rollouts").iterdir()] == ["turn-000002.parquet"]
    rows = read_rollouts(tmp_path / "run" / "rollouts" / "turn-000002.parquet")
    assert len(rows) == 4 and len({row["id"] for row in rows}) == 4
    assert all(len(row["advantages"]) == len(row["chars"]) == len(row["ids"]) for row in rows)
    for row in rows:  # random bytes may end within a character
        assert row["chars"] == sorted(row["chars"]) and row["chars"][row["trained_from"] - 1] == 0
        assert 0 < row["chars"][-1] <= len(row["text"])


def test_every_file_of_rollouts_has_the_same_columns(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    plain = make_rollout(2, 3, id="a")  # no verdicts, no truth, nobody it is about
    write_rollouts(tmp_path / "one.parquet", [plain])
    write_rollouts(tmp_path / "none.parquet", [])
    assert all(pq.read_schema(path).equals(make_schema()) for path in tmp_path.glob("*.parquet"))


def test_tensorboard_goes_on_after_a_resume(tmp_path: Path, tiny: str) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    out = tmp_path / "run"
    keep = {"trackers": ["tensorboard"], "rollouts_every": 0}
    milonga.run("grpo", out=out, turns=3, settings=settings(tiny, keep=keep), quiet=True)
    shutil.rmtree(out / "checkpoints" / "turn-000003")
    milonga.resume(out, quiet=True)
    events = EventAccumulator(str(out / "tensorboard")).Reload()
    rows = JsonLines(out / "metrics.jsonl").rows()
    losses = [(event.step, event.value) for event in events.Scalars("learn/generator/loss")]
    assert losses == [(row["turn"], pytest.approx(row["learn/generator/loss"], rel=1e-5)) for row in rows if row["turn"]]
    accuracy = [event.step for event in events.Scalars("eval/generator/accuracy")]
    assert accuracy == [row["turn"] for row in rows if "eval/generator/accuracy" in row]


def test_the_time_of_a_turn_is_accounted_for(tmp_path: Path, tiny: str) -> None:
    out = tmp_path / "run"
    both = settings(tiny, options={"warmup": 0}) | {"policies": {agent: {"model": tiny} for agent in ("generator", "verifier")}}
    milonga.run("tango", out=out, turns=2, settings=both, quiet=True)
    turns = [row for row in JsonLines(out / "timing.jsonl").rows() if row["turn"] > 0]
    for row in turns:
        works = [row[f"{work}_s"] for work in ("sample", "verify", "learn", "publish")]
        assert min(works) >= 0 and row["sample_s"] > 0 and row["learn_s"] > 0
        assert sum(works) + row["idle_s"] == pytest.approx(row["turn_s"], abs=1e-6)
