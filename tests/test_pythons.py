"""What differs from one Python to the next, or from one way of building it to another."""

from __future__ import annotations

import os
import sys
import sysconfig
from pathlib import Path

import pytest

from milonga.sandbox import isolation
from milonga.sandbox.executor import try_level
from milonga.tasks.expressions import Budget, evaluate
from milonga.tasks.grading import Worker


def test_a_shared_library_is_looked_for_where_the_sandbox_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sysconfig, "get_config_var", lambda name: {"Py_ENABLE_SHARED": 1}.get(name))
    assert isolation.find_own_library("isolated") == {"LD_LIBRARY_PATH": "/python/lib"}
    assert isolation.find_own_library("limited") == {"LD_LIBRARY_PATH": f"{sys.base_prefix}/lib"}
    monkeypatch.setattr(sysconfig, "get_config_var", lambda name: {"Py_ENABLE_SHARED": 0}.get(name))
    assert isolation.find_own_library("isolated") == {}


def test_a_confined_grader_is_told_where_it_is_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """A system that has the same Python of its own would hide that it is not told: its library is found instead."""
    pytest.importorskip("reasoning_gym")
    if (reason := try_level("isolated")) is not None:
        pytest.skip(f"no isolation here: {reason}")
    monkeypatch.setenv("LD_LIBRARY_PATH", "/nowhere")
    worker = Worker("gym", 4 << 30, confined=True)
    try:
        told = Path(f"/proc/{worker.process.pid}/environ").read_bytes().split(b"\0")
        found = [line.decode().partition("=")[2] for line in told if line.startswith(b"LD_LIBRARY_PATH=")]
        assert found == list(isolation.find_own_library("isolated").values() or ["/nowhere"])
    finally:
        worker.close()


@pytest.mark.parametrize("reverse", ["[]", "'ab'", "[1]", "a"])
def test_the_dialect_does_not_change_with_python(reverse: str) -> None:
    """Python 3.13 takes anything for `reverse`; until then a number was asked for."""
    found = evaluate(f"sorted(a,reverse={reverse})", {"a": [2, 1]}, Budget())
    assert (found.status, found.value) == ("exception", None)


def test_what_could_not_be_written_is_not_kept_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a full disk stays full: a file that is removed and open takes its place as before."""
    if not Path("/proc/self/fd").is_dir():
        pytest.skip("this system does not list what a process has open")
    pq = pytest.importorskip("pyarrow.parquet")
    import pyarrow as pa

    from milonga.runfolder.rollouts import write_table

    def fail(*_: object, **__: object) -> None:
        raise ValueError("in the middle")

    monkeypatch.setattr(pq.ParquetWriter, "write_table", fail)
    path = tmp_path / "rows.parquet"
    with pytest.raises(ValueError, match="in the middle") as kept:
        write_table(path, pa.table({"a": [1]}))
    opened = [os.path.realpath(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd")]
    assert not [name for name in opened if str(path) in name]
    assert list(tmp_path.iterdir()) == [] and kept.value is not None
