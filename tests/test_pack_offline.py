"""The way to a machine without a net: what is lacking, files cut and joined, and parts that were damaged on the way."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[1] / "scripts" / "pack_offline.py"
MIB = 1 << 20


@pytest.fixture(scope="module")
def pack() -> Any:
    spec = importlib.util.spec_from_file_location("pack_offline", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "here" / "weights.bin"
    path.parent.mkdir()
    path.write_bytes(os.urandom(2 * MIB + 17))
    return path


def carried(file: Path) -> Path:
    """The parts and the checksums in another folder, without the file."""
    there = file.parents[1] / "there"
    shutil.copytree(file.parent, there)
    (there / file.name).unlink()
    return there / file.name


def test_only_what_is_lacking_is_fetched_at_its_pinned_version(pack: Any) -> None:
    pinned = pack.pins("torch==2.13.0\nmath-verify==0.9.0\nPyYAML==6.0.3  # a note\n# nothing\n-e .\n")
    assert pinned == {"torch": "torch==2.13.0", "math-verify": "math-verify==0.9.0", "pyyaml": "pyyaml==6.0.3"}
    there = pack.pins("Torch==2.4.1+cu124\n")
    assert pack.lacking([], pinned, there) == ["math-verify==0.9.0", "pyyaml==6.0.3"]
    assert pack.lacking(["math_verify"], pinned, {}) == ["math-verify==0.9.0"]
    with pytest.raises(SystemExit, match=r"not in constraints\.txt: numpyy"):
        pack.lacking(["numpyy"], pinned, {})
    assert "peft" in pack.pins(pack.CONSTRAINTS.read_text())


def test_a_machine_that_has_everything_gets_nothing(pack: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    there = tmp_path / "there.txt"
    there.write_text("peft==0.1\nsafetensors==0.1\n")
    arguments = ["--into", str(tmp_path / "packed"), "--python", "3.12", "--installed", str(there)]
    pack.main(["packages", "peft", "safetensors", *arguments])
    assert capsys.readouterr().out == "nothing is lacking\n" and not (tmp_path / "packed").exists()


def test_a_file_is_cut_and_joined(pack: Any, file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stale = file.with_name("weights.bin.part-0009")
    stale.write_bytes(b"of an older cut")
    pack.main(["cut", str(file), "--mib", "1"])
    parts = sorted(file.parent.glob("*.part-*"))
    assert [part.stat().st_size for part in parts] == [MIB, MIB, 17] and not stale.exists()
    there = carried(file)
    command = capsys.readouterr().out.splitlines()[-1]
    subprocess.run(command, shell=True, cwd=there.parent, check=True, capture_output=True)
    assert there.read_bytes() == file.read_bytes(), "the printed command needs nothing of ours"
    there.unlink()
    pack.main(["join", str(there)])
    assert there.read_bytes() == file.read_bytes()


def test_an_empty_file_is_one_empty_part(pack: Any, file: Path) -> None:
    file.write_bytes(b"")
    pack.main(["cut", str(file)])
    there = carried(file)
    pack.main(["join", str(there)])
    assert there.read_bytes() == b""


@pytest.mark.parametrize(
    ("damage", "says"), [("changed", "does not match"), ("missing", "is missing"), ("list", "does not exist")]
)
def test_a_damaged_part_is_named_and_nothing_is_written(pack: Any, file: Path, damage: str, says: str) -> None:
    pack.main(["cut", str(file), "--mib", "1"])
    there = carried(file)
    part = there.with_name("weights.bin.part-0001")
    if damage == "changed":
        content = part.read_bytes()
        part.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    elif damage == "missing":
        part.unlink()
    else:
        there.with_name("weights.bin.sha256").unlink()
    with pytest.raises(SystemExit, match=says) as caught:
        pack.main(["join", str(there)])
    assert ("part-0001" in str(caught.value)) == (damage != "list")
    assert not there.exists() and not list(there.parent.glob("*.draft"))
