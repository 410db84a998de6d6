"""Signals that ask to stop, and terminals and pipes that go away: a run ends after its turn, with a checkpoint, and says so.

The signals are real, and so are the processes; a fork server that has torch loaded makes their starts cheap.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import shlex
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cases import TINY
from helpers import Command
from milonga.cli import main
from milonga.comparing.worker import run_order
from milonga.config import to_toml
from milonga.interrupts import SIGNALS, Interrupted, delay_interrupts, get_exit_code, keep_handlers, stop_on_signals
from milonga.runfolder.console import LiveView
from milonga.runfolder.files import JsonLines

PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["milonga.loop", "milonga.engine.local", "transformers.models.llama.modeling_llama"])
LONG = TINY | {"turns": 10_000}
"""A run that does not end before it is stopped."""


@pytest.fixture(autouse=True)
def hangups_are_heard() -> Iterator[None]:
    """Under `nohup` the tests themselves are begun with this signal ignored, and so would be what they begin."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


def call(arguments: list[str], streams: Path, ignored: tuple[int, ...]) -> None:
    """What the process does: the command, with both streams in a file, or in a pipe that its reader may close."""
    import transformers

    transformers.utils.logging.disable_progress_bar()  # main does it by the environment, but here they are loaded already
    for number in (signal.SIGTERM, signal.SIGHUP):  # a fork server of another test may ignore one of them
        signal.signal(number, signal.SIG_IGN if number in ignored else signal.SIG_DFL)
    target = os.open(streams, os.O_WRONLY | os.O_CREAT)
    os.dup2(target, 1)
    os.dup2(target, 2)
    sys.argv = ["milonga", *arguments]
    main()


def begin(folder: Path, settings: dict[str, Any], streams: Path, *ignored: int) -> Any:
    config = folder.with_suffix(".toml")
    config.write_text(to_toml(settings))
    arguments = ["run", "grpo", "--config", str(config), "--out", str(folder)]
    process = PROCESSES.Process(target=call, args=(arguments, streams, ignored))
    process.start()
    return process


def wait_for(process: Any, so: Callable[[], bool]) -> None:
    while not so():
        assert process.is_alive()
        time.sleep(0.01)


def has_rows(folder: Path, count: int) -> Callable[[], bool]:
    return lambda: len(JsonLines(folder / "metrics.jsonl").rows()) >= count


def assert_nothing_is_lost(folder: Path) -> None:
    newest = sorted(path.name for path in (folder / "checkpoints").iterdir())[-1]
    assert JsonLines(folder / "metrics.jsonl").rows()[-1]["turn"] == int(newest.removeprefix("turn-")) >= 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_run_that_is_told_to_stop_saves_a_checkpoint_and_says_how_to_go_on(number: int, tmp_path: Path) -> None:
    folder, said = tmp_path / "a run", tmp_path / "said"
    run = begin(folder, LONG, said)
    wait_for(run, has_rows(folder, 2))
    os.kill(run.pid, number)
    run.join()
    asked = f"stopping after this turn, with a checkpoint; {signal.Signals(number).name} again stops at once"
    lines = [
        line for line in said.read_text().splitlines() if not line.startswith(("a checkpoint", "measuring the start", "turn "))
    ]
    assert lines == [asked, f"to go on from the last checkpoint: milonga resume '{folder}'", "milonga: stopped"]
    assert run.exitcode == 128 + number
    assert_nothing_is_lost(folder)


def test_a_run_that_is_stopped_before_its_first_checkpoint_says_how_it_begins_again(
    milonga: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its folder holds a run as soon as it holds a config: `run` with the same folder is refused then."""
    folder, config = tmp_path / "a run", tmp_path / "tiny.toml"
    config.write_text(to_toml(TINY | {"turns": 1}))
    command = ("run", "grpo", "--config", config, "--out", folder)
    with monkeypatch.context() as patch:
        patch.setattr("milonga.runfolder.machine.describe_machine", lambda _: os.kill(os.getpid(), signal.SIGINT))
        stopped = milonga(*command)
    assert stopped.code == 130 and (folder / "config.toml").exists()
    told = f"there is no checkpoint yet; to begin again: milonga resume '{folder}'"
    assert stopped.err.splitlines()[-2:] == [told, "milonga: stopped"]
    assert "already holds a run" in milonga(*command).err
    assert milonga("resume", folder).code == 0 and (folder / "report.json").exists()


def test_a_second_signal_ends_a_run_at_once(tmp_path: Path) -> None:
    folder, said = tmp_path / "run", tmp_path / "said"
    endless = {"pass_rate": [0.0, 1.0], "pass_rate_problems": 100_000}
    run = begin(folder, LONG | {"task": TINY["task"] | endless}, said)
    for number, says in ((signal.SIGTERM, "measuring pass rates"), (signal.SIGHUP, "again stops at once")):
        wait_for(run, lambda says=says: said.exists() and says in said.read_text())  # type: ignore[misc]
        os.kill(run.pid, number)
    run.join()
    assert run.exitcode == 128 + signal.SIGHUP and "Traceback" not in said.read_text()
    assert not (folder / "checkpoints").exists()


def test_a_pipe_that_nobody_reads_and_an_ignored_hangup_end_no_run(tmp_path: Path) -> None:
    folder, pipe = tmp_path / "run", tmp_path / "pipe"
    os.mkfifo(pipe)
    run = begin(folder, TINY | {"turns": 2}, pipe, signal.SIGHUP)
    with pipe.open() as reader:
        assert reader.readline()
    os.kill(run.pid, signal.SIGHUP)
    run.join()
    assert json.loads((folder / "report.json").read_text())["turns"] == 2


def answer(order: dict[str, Any], file: Path) -> None:
    """What a worker's process does."""
    file.write_text(json.dumps(run_order(order)))


def test_a_worker_of_a_comparison_that_is_told_to_stop_saves_a_checkpoint_and_answers(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    order = {"folder": str(folder), "config": LONG | {"recipe": "grpo"}}
    worker = PROCESSES.Process(target=answer, args=(order, tmp_path / "answer"))
    worker.start()
    wait_for(worker, has_rows(folder, 2))
    os.kill(worker.pid or 0, signal.SIGTERM)
    worker.join()
    assert json.loads((tmp_path / "answer").read_text()) == {"error": None, "interrupted": True}
    assert_nothing_is_lost(folder)


def test_the_view_outlives_its_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w", buffering=1) as nowhere:
        monkeypatch.setattr(sys, "stderr", nowhere)
        with LiveView("title", 3) as view:
            view.say("a line")
            view.add({"turn": 1, "learner": "generator"})
        monkeypatch.undo()
        os.dup2(os.open(os.devnull, os.O_WRONLY), write)  # what could not be written is flushed when it is closed


@pytest.mark.parametrize("number", SIGNALS)
def test_every_signal_is_answered_alike(number: signal.Signals) -> None:
    before = [signal.getsignal(each) for each in SIGNALS]
    with pytest.raises(Interrupted) as caught, stop_on_signals(), delay_interrupts(lambda _: None) as stop:  # noqa: PT012
        assert not stop.is_asked
        stop.raise_if_asked()
        os.kill(os.getpid(), number)
        assert stop.is_asked
        stop.raise_if_asked()
    assert get_exit_code(caught.value) == 128 + number
    with pytest.raises(Interrupted), stop_on_signals():
        os.kill(os.getpid(), number)
    assert [signal.getsignal(each) for each in SIGNALS] == before


def test_what_others_ignore_or_answer_is_left_to_them() -> None:
    answered: list[int] = []
    with keep_handlers():
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, lambda number, _: answered.append(number))
        with stop_on_signals(), delay_interrupts(pytest.fail) as stop:
            os.kill(os.getpid(), signal.SIGHUP)
            os.kill(os.getpid(), signal.SIGTERM)
            assert answered == [signal.SIGTERM] and not stop.is_asked


def test_another_thread_than_the_main_one_sets_no_handlers() -> None:
    found: list[bool] = []

    def work() -> None:
        with stop_on_signals(), delay_interrupts(pytest.fail) as stop:
            found.append(stop.is_asked)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [False]


def test_a_command_that_a_signal_stops_has_its_exit_code(milonga: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: Any, **__: Any) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr("milonga.cli.views.list_registry", stop)
    done = milonga("list", "recipes")
    assert (done.code, done.err) == (143, "milonga: stopped\n")


STOPPED = {
    "compare": ("tango", "grpo", "--seeds", "2"),
    "compare --out": ("tango", "grpo", "--out", "a folder"),
    "sweep": ("a study.toml", "--out=here", "--unpack", "done.tgz", "--only", "pair"),
    "sweep --unpack=": ("a study.toml", "--out", "here", "--unpack=done.tgz"),
    "claim": ("prime", "--seeds", "100,101"),
}
AGAIN = {
    "compare": ("--out", "OUT", *STOPPED["compare"]),
    "compare --out": STOPPED["compare --out"],
    "sweep": ("a study.toml", "--out=here", "--only", "pair"),
    "sweep --unpack=": ("a study.toml", "--out", "here"),
    "claim": STOPPED["claim"],
}


@pytest.mark.parametrize("case", STOPPED)
def test_what_goes_on_where_it_stopped_says_the_command_that_does(
    milonga: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, case: str
) -> None:
    """The command as it was typed, to be copied. What was unpacked and worked on since is not to be unpacked again."""
    used: list[Path] = []

    def stop(_: Any, out: Path, *__: Any, **___: Any) -> None:
        used.append(out)
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.chdir(tmp_path)
    (tmp_path / "a study.toml").write_text('[[runs]]\nname = "pair"\nrecipe = "grpo"\nseeds = [3]\n')
    monkeypatch.setattr("milonga.comparing.packing.unpack", lambda *_: None)
    monkeypatch.setattr("milonga.comparing.comparison.run_planned_comparison", stop)
    monkeypatch.setattr("milonga.comparing.sweep.sweep", stop)
    monkeypatch.setattr("milonga.claims.check_claim", lambda claim, pilot, out, jobs: stop(None, out))
    command = case.split()[0]
    done = milonga(command, *STOPPED[case])
    (line,) = done.err.splitlines()[-1:]
    places = [str(used[0]) if word == "OUT" else word for word in AGAIN[case]]
    assert done.code == 143 and line.startswith("milonga: stopped; to go on: ")
    assert shlex.split(line.removeprefix("milonga: stopped; to go on: ")) == ["milonga", command, *places]
