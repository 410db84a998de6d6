"""Every benchmark and every check runs in its tiny mode: the same code on the smallest sizes, on a CPU, once."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[1]
BENCHMARKS = sorted(path.stem for path in (ROOT / "benchmarks").glob("*.py") if path.stem != "shapes")
CHECKS = sorted(path.stem for path in (ROOT / "scripts").glob("check_*.py"))
NEEDS = {
    "sample": "triton",
    "check_gpu": "triton",
    "check_vllm_gpu": "peft",
    "handover": "ray",
    "overlap": "ray",
    "check_ray_gpu": "ray",
    "board": "nicegui",
    "serve": "fastapi",
    "peers": "triton",
    "turn": "math_verify",
    "trl_grpo": "trl",
}
"""The package without which a file cannot run at all."""
HELP = """
import runpy, sys, traceback
for path in sys.argv[1:]:
    sys.path.insert(0, path.rpartition("/")[0])
    sys.argv = [path, "--help"]
    try:
        runpy.run_path(path, run_name="__main__")
    except SystemExit as exit:
        assert not exit.code, (path, exit.code)
    except BaseException:
        traceback.print_exc()
        raise SystemExit(path)
"""
"""Ask scripts for their help one after another, in one process: most of their time is loading torch."""


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests")]), "OMP_NUM_THREADS": "1"}
    environment.pop("TRITON_INTERPRET", None)  # of these tests; a script that needs it sets it itself
    command = [sys.executable, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=600)


def skip_without(name: str) -> None:
    package = NEEDS.get(name)
    if package is not None and importlib.util.find_spec(package) is None:
        pytest.skip(f"{name}.py needs {package}, which is not installed")
    if name == "sandbox" and shutil.which("bwrap") is None:
        pytest.skip("sandbox.py needs bubblewrap, which is not installed")


@pytest.mark.slow
@pytest.mark.parametrize("name", BENCHMARKS)
def test_a_benchmark_runs(name: str, tmp_path: Path) -> None:
    skip_without(name)
    results = sorted((path.name, path.stat().st_mtime_ns) for path in (ROOT / "benchmarks" / "results").iterdir())
    done = run(ROOT / "benchmarks" / f"{name}.py", "--tiny", "--out", tmp_path / "result.json")
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads((tmp_path / "result.json").read_text())
    assert {"hardware", "versions", "date", "command"} <= set(found)
    assert results == sorted((path.name, path.stat().st_mtime_ns) for path in (ROOT / "benchmarks" / "results").iterdir())
    if name == "sample":  # the kernels ran, and what is measured of them alone
        assert found["step ms"] > 0 and found["call ms by kind"] and found["limit tokens/s"] > 0
    if name == "conversation":
        assert found["score"]["same rows"] == found["tiny"]["same rows"] == 1
    if name == "trl_grpo":
        assert [line["learning rate"] for line in found["curve"]] == [1e-5, 2e-5]
        assert (tmp_path / "result" / "adapter_model.safetensors").exists()


def test_the_log_beside_a_new_result_has_a_folder_and_rounding_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    peers = importlib.import_module("peers")
    benchmark = peers.Benchmark(argparse.Namespace(out=tmp_path / "new" / "peers.json", share=0.4), tmp_path)
    benchmark.log.write_text("said")
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["peers.log"]
    call = peers.Call([np.arange(3)], [2], 0)
    for highest, right in ((0.0, True), (1e-7, True), (0.01, False), (np.nan, False)):
        with contextlib.nullcontext() if right else pytest.raises(AssertionError):
            peers.Sampled([np.arange(2)], [np.array([-1.0, highest])]).check(call)


REFUSED = """
import argparse, sys
sys.argv += ["--tiny"]
sys.path.insert(0, {path!r})
import numpy as np
import peers
from milonga.errors import OutOfMemory

side = peers.Ours(argparse.Namespace(device="cpu", tiny=True, model="tiny"))
roomy = side.module.cache_bytes
side.module.cache_bytes = lambda *_: 0
long = peers.Call([np.arange(3, 7)], [2 * side.sampler.steps], 1)
try:
    side.sample(long)
    raise SystemExit("it was not refused")
except OutOfMemory:
    side.module.cache_bytes = roomy
short = peers.Call([np.arange(3, 7)], [2], 0)
side.prepare(None)
side.sample(short).check(short)
"""


@pytest.mark.slow
def test_sampling_goes_on_after_a_case_whose_cache_was_refused() -> None:
    """The weights that are learned are gone by then: those of the first decoder serve the next."""
    skip_without("peers")
    done = run("-c", REFUSED.format(path=str(ROOT / "benchmarks")))
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.slow
@pytest.mark.parametrize("name", CHECKS)
def test_a_check_runs(name: str) -> None:
    skip_without(name)
    done = run(ROOT / "scripts" / f"{name}.py", "--tiny")
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]


def test_there_is_a_tiny_mode_of_each() -> None:
    for path in [*(ROOT / "benchmarks" / f"{n}.py" for n in BENCHMARKS), *(ROOT / "scripts" / f"{n}.py" for n in CHECKS)]:
        assert f"{path.parent.name}/{path.name} --tiny" in path.read_text(encoding="utf-8"), f"{path.name} does not say how"


@pytest.mark.slow
def test_every_script_says_what_it_does() -> None:
    """Those with arguments, by `--help`: nothing that they import is missing."""
    paths = [path for path in sorted((ROOT / "scripts").glob("*.py")) if "ArgumentParser(" in path.read_text(encoding="utf-8")]
    assert len(paths) > 10
    done = run("-c", HELP, *paths)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("usage: ") == len(paths)


def test_scripts_without_arguments_can_be_imported() -> None:
    paths = [path for path in (ROOT / "scripts").glob("*.py") if "ArgumentParser(" not in path.read_text(encoding="utf-8")]
    code = f"import sys; sys.path.insert(0, {str(ROOT / 'scripts')!r}); import {', '.join(path.stem for path in paths)}"
    done = run("-c", code)
    assert done.returncode == 0, done.stderr[-3000:]
