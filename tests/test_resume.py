"""Law 7: a run killed at any moment resumes, and ends in the same bits as one that was never killed.

The kills are real (SIGKILL, of a process of its own): at chosen moments, which the process reaches by counting its own
calls, and after random delays. A fork server that has torch loaded makes the many starts cheap.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import pytest

import milonga
from milonga.api import start
from milonga.resolve import resolve
from milonga.runfolder.files import JsonLines

PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["milonga.loop", "milonga.engine.local", "transformers.models.llama.modeling_llama", "peft"])

MOMENTS = {
    "sampling": ("milonga.engine.local.sampler", "draw_tokens"),
    "learning": ("torch.optim", "AdamW.step"),
    "publishing": ("milonga.engine.local", "LocalEngine.publish"),
    "a row": ("milonga.runfolder.files", "JsonLines.append"),
    "rollouts": ("milonga.runfolder.folder", "write_rollouts"),
    "a file of a checkpoint": ("milonga.engine.local.engine", "save_file"),
    "the marker": ("milonga.runfolder.checkpoints", "write_atomically"),
    "the name of a checkpoint": ("pathlib", "Path.rename"),
    "the end": ("milonga.engine.local", "LocalEngine.export"),
    "the note of a model": ("milonga.runfolder.note", "Note.write"),
}
"""A kill comes just before the n-th call of these."""

TINY: dict[str, Any] = {
    "device": "cpu",
    "threads": 1,
    "task": {"name": "chain", "ops": 2},
    "batch": {"problems": 4, "rollouts": 4},
    "eval": {"problems": 4, "samples": 2, "every": 2, "bench": 4, "greedy": False},
    "keep": {"checkpoint_every": 1, "rollouts_every": 2},
}
FAST = {"lr": 1e-4}
TANGO = TINY | {
    "recipe": "tango",
    "turns": 3,
    "options": {"warmup": 1, "n_generator": 2, "n_verifier": 1},
    "policies": {"generator": FAST | {"ema": 0.9}, "verifier": FAST},
}
GRPO = TINY | {
    "recipe": "grpo",
    "turns": 4,
    "policies": {
        "generator": FAST
        | {
            "epochs": 2,
            "minibatches": 2,
            "schedule": "cosine",
            "warmup": 6,
            "objective": {"preset": "grpo", "kl_coef": 0.01},
        }
    },
    "keep": {"checkpoint_every": 2, "rollouts_every": 1},
}
LORA = TINY | {
    "recipe": "tango",
    "turns": 2,
    "binding": "lora",
    "options": {"warmup": 1, "n_generator": 1, "n_verifier": 1},
    "policies": {"generator": {"lr": 1e-3}, "verifier": {"lr": 1e-3}},
}


def arm(moment: str, count: int) -> None:
    """Die before the `count`-th call."""
    module, path = MOMENTS[moment]
    owner: Any = importlib.import_module(module)
    *owners, name = path.split(".")
    for part in owners:
        owner = getattr(owner, part)
    original, calls = getattr(owner, name), 0

    def counted(*args: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == count:
            if moment == "a row":  # cut off in the middle of writing it
                with args[0].path.open("a") as file:
                    file.write('{"turn": 1, "learner": "gen')
            if moment == "the note of a model":  # what safetensors has beside a file until it is written
                (args[1] / ".tmpQx3VbA").write_bytes(bytes(1000))
            os.kill(os.getpid(), signal.SIGKILL)
        return original(*args, **named)

    setattr(owner, name, counted)


def live(folder: Path, config: dict[str, Any], moment: str | None, count: int) -> None:
    """What the process does: begin, or go on, and perhaps die."""
    import torch

    torch.set_num_threads(1)
    if moment is not None:
        arm(moment, count)
    if (folder / "config.toml").exists():
        milonga.resume(folder, quiet=True)
    else:
        start(resolve([config]), folder, quiet=True)


def process(folder: Path, config: dict[str, Any], moment: str | None = None, count: int = 0) -> Any:
    one = PROCESSES.Process(target=live, args=(folder, config, moment, count))
    one.start()
    return one


def finish(folder: Path, config: dict[str, Any]) -> None:
    one = process(folder, config)
    one.join()
    assert one.exitcode == 0


def die(folder: Path, config: dict[str, Any], moment: str, count: int) -> None:
    one = process(folder, config, moment, count)
    one.join()
    assert one.exitcode == -signal.SIGKILL, f"the run never came to {moment} {count}"


def outcome(folder: Path) -> dict[str, bytes]:
    """Every file that a run leaves, but timings, the lock, the machine, and the reports, which name the folder."""
    apart = {"timing.jsonl", "lock", "machine.jsonl", "report.json", "report.html"}
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name not in apart
    }


def assert_same(found: Path, expected: Path) -> None:
    one, other = outcome(found), outcome(expected)
    assert sorted(one) == sorted(other)
    assert [name for name in one if one[name] != other[name]] == []


def whole(folder: Path, config: dict[str, Any]) -> tuple[Path, float]:
    """The run that nobody kills, and how long it took."""
    ready = PROCESSES.Process(target=int)  # the fork server is up after this
    ready.start()
    ready.join()
    began = time.monotonic()
    finish(folder, config)
    rows = JsonLines(folder / "metrics.jsonl").rows()
    assert all(row[f"learn/{row['learner']}/grad_norm"] > 0 for row in rows[1:]), (
        "a run in which nothing is learned proves nothing"
    )
    return folder, time.monotonic() - began


@pytest.fixture(scope="module")
def tango(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, float]:
    return whole(tmp_path_factory.mktemp("whole") / "tango", TANGO)


def test_tango_killed_at_every_kind_of_moment_ends_in_the_same_bits(tango: tuple[Path, float], tmp_path: Path) -> None:
    folder = tmp_path / "run"
    for moment, count in (
        ("sampling", 40),  # during the first evaluation: nothing is there yet but the config
        ("a file of a checkpoint", 2),  # in the first checkpoint, between its policies
        ("learning", 2),  # the second turn's
        ("a row", 1),
        ("the name of a checkpoint", 1),
        ("the marker", 2),
        ("publishing", 1),
        ("rollouts", 1),
        ("the end", 2),  # all turns are done, one of the models is written
        ("the note of a model", 2),
    ):
        die(folder, TANGO, moment, count)
    finish(folder, TANGO)
    assert_same(folder, tango[0])


def test_tango_killed_after_random_delays_ends_in_the_same_bits(tango: tuple[Path, float], tmp_path: Path) -> None:
    """How long a run takes depends on what else the machine does: one that ended before the first kill is begun anew, and
    killed sooner."""
    rng, span = random.Random(0), tango[1]
    for attempt in range(5):
        folder, kills = tmp_path / f"run-{attempt}", 0
        for _ in range(6):
            one = process(folder, TANGO)
            one.join(rng.uniform(0.2, 0.9) * span)
            one.kill()
            one.join()
            kills += one.exitcode == -signal.SIGKILL
            if one.exitcode == 0:
                break
        if kills:
            break
        span /= 2
    finish(folder, TANGO)
    assert kills
    assert_same(folder, tango[0])


def test_grpo_killed_within_and_between_its_epochs_ends_in_the_same_bits(tmp_path: Path) -> None:
    expected, _ = whole(tmp_path / "whole", GRPO)
    folder = tmp_path / "run"
    for moment, count in (("learning", 3), ("learning", 6), ("a file of a checkpoint", 2), ("learning", 4), ("a row", 2)):
        die(folder, GRPO, moment, count)
    finish(folder, GRPO)
    assert_same(folder, expected)


def test_adapters_on_a_shared_base_end_in_the_same_bits(tmp_path: Path) -> None:
    pytest.importorskip("peft")
    expected, _ = whole(tmp_path / "whole", LORA)
    folder = tmp_path / "run"
    for moment, count in (("learning", 1), ("a file of a checkpoint", 4), ("sampling", 30), ("publishing", 2)):
        die(folder, LORA, moment, count)
    finish(folder, LORA)
    assert_same(folder, expected)
