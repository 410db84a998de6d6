"""A wheel in an environment of its own, outside the checkout, with the core dependencies alone: it holds all that it needs."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TINY = [
    "--turns=1",
    "--set=options.warmup=0",
    "--set=options.n_generator=1",
    "--set=options.n_verifier=1",
    "--set=task.name=chain",
    "--set=task.ops=2",
    "--set=batch.problems=4",
    "--set=batch.rollouts=4",
    "--set=eval.problems=4",
    "--set=eval.samples=1",
    "--set=eval.bench=4",
]


def ran(command: list[str], cwd: Path) -> subprocess.CompletedProcess[str]:
    """With nothing of this checkout in its environment."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    environment |= {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy: building leaves files beside the sources, and would take in what is left of an earlier time."""
    copy, out = tmp_path_factory.mktemp("sources"), tmp_path_factory.mktemp("wheel")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    shutil.copytree(ROOT / "src", copy / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    try:
        ready = int(distribution("setuptools").version.partition(".")[0]) >= 77
    except PackageNotFoundError:
        ready = False
    builder = ["--no-build-isolation"] if ready else []
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", *builder, "--wheel-dir", str(out), str(copy)]
    done = ran(pip, copy)
    if done.returncode and not ready:
        pytest.skip(f"setuptools is not installed here, nor can it be: {done.stderr.strip().splitlines()[-1:]}")
    assert done.returncode == 0, done.stderr
    (found,) = out.glob("milonga-*.whl")
    return found


def core() -> list[Distribution]:
    """What the project needs without any extra, and all that this needs in turn, as it is installed here."""
    from packaging.requirements import Requirement

    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    waiting, found = [(Requirement(text), "") for text in wanted], dict[str, Distribution]()
    seen: set[tuple[str, str]] = set()
    while waiting:
        requirement, extra = waiting.pop()
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": extra}):
            continue
        name = requirement.name.lower()
        for asked in {(name, ""), *((name, inner) for inner in requirement.extras)} - seen:
            seen.add(asked)
            with contextlib.suppress(PackageNotFoundError):  # not needed on this system
                found[name] = distribution(name)
                waiting += [(Requirement(text), asked[1]) for text in found[name].requires or ()]
    return list(found.values())


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel installed; of what is installed here, links to the core dependencies."""
    folder = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    python = folder / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps", "--no-index", str(wheel)]
    done = ran(pip, folder)
    assert done.returncode == 0, done.stderr
    (packages,) = folder.glob("lib/python*/site-packages")
    for package in core():
        tops = {str(file).split("/")[0] for file in package.files or () if not str(file).startswith((".", "/", "__pycache__"))}
        for top in tops:
            source = Path(str(package.locate_file(top)))
            if source.exists() and not (packages / top).exists():
                (packages / top).symlink_to(source)
    return folder


def test_the_wheel_has_every_file_of_the_package(wheel: Path) -> None:
    files = (path for path in (ROOT / "src").rglob("*") if path.is_file())
    sources = {str(path.relative_to(ROOT / "src")) for path in files if "__pycache__" not in path.parts}
    expected = {name for name in sources if ".egg-info" not in name}
    with zipfile.ZipFile(wheel) as opened:
        packed = set(opened.namelist())
    assert expected <= packed, sorted(expected - packed)
    assert {"milonga/py.typed", "milonga/embedded/base/model.safetensors", "milonga/board/static/board.js"} <= packed
    assert {name.split("/")[0] for name in packed if ".dist-info/" not in name} == {"milonga"}


def test_the_demo_runs_from_a_wheel_with_the_core_alone(environment: Path, tmp_path: Path) -> None:
    python = str(environment / "bin" / "python")
    where = ran([python, "-c", "import milonga; print(milonga.__file__)"], tmp_path)
    assert Path(where.stdout.strip()).is_relative_to(environment), where.stderr
    for extra in ("nicegui", "peft", "ray", "reasoning_gym", "pytest"):
        assert ran([python, "-c", f"import {extra}"], tmp_path).returncode != 0, f"{extra} is no core dependency"
    done = ran([str(environment / "bin" / "milonga"), "run", "tango", "--out", "first", *TINY], tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "first" / "report.html").is_file() and (tmp_path / "first" / "models" / "generator").is_dir()
    assert str(ROOT) not in done.stdout + (tmp_path / "first" / "report.html").read_text()


def test_a_new_task_is_written_from_its_template(environment: Path, tmp_path: Path) -> None:
    done = ran([str(environment / "bin" / "milonga"), "new", "task", "anagrams"], tmp_path)
    assert done.returncode == 0, done.stderr
    assert list(tmp_path.rglob("*anagrams*"))
