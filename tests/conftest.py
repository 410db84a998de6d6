"""Set before torch is loaded, for every test; and what several test files share.

Nothing but pytest is imported here: the tests in with_vllm run where less is installed.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

# Some virtual machines announce AMX and then refuse its instructions: bfloat16 products would end the process.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
# CUDA kernels run on a CPU by Triton's interpreter, which must know before Triton is loaded.
os.environ.setdefault("TRITON_INTERPRET", "1")
# A shell starts background jobs with interrupts ignored, and children inherit that: tests of Ctrl-C would wait in vain.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Signatures of run folders are by a key of the tests' own: nothing is written into the home of whoever runs them.
STATE = tempfile.TemporaryDirectory()
os.environ["MILONGA_STATE"] = STATE.name

if TYPE_CHECKING:
    from helpers import Command, Done


@cache
def shares_fixtures(file: str) -> bool:
    """Whether the tests of a file share something that is made once for all of them."""
    return 'scope="module"' in Path(file).read_text(encoding="utf-8")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Of pytest-xdist: tests go to whoever is free; those that share something go to one process, or it is made in each."""
    from xdist.scheduler import LoadScopeScheduling

    class Scheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0]
            return file if shares_fixtures(str(config.rootpath / file)) else nodeid

    return Scheduling(config, log)


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real, tiny run of tango that has ended: to be read, never changed."""
    from cases import TINY
    from milonga.api import run

    folder = tmp_path_factory.mktemp("trained") / "tango"
    run("tango", turns=1, seed=3, out=folder, settings=TINY | {"options": {"warmup": 1, "n_generator": 1}}, quiet=True)
    return folder


@pytest.fixture
def milonga(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    """The command in this process: what it prints, and the code it exits with."""
    from helpers import Done
    from milonga.cli import main

    def call(*arguments: str | Path) -> Done:
        monkeypatch.setattr(sys, "argv", ["milonga", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as exit:
            main()
        out, err = capsys.readouterr()
        return Done(exit.value.code if isinstance(exit.value.code, int) else -1, out, err)

    return call
