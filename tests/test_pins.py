"""The pinned set: it resolves for every Python that is promised, against the index as any user sees it."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PYTHONS = [name.rpartition(" ")[2] for name in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", name)]
OWN_SETTINGS = ("PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL", "PIP_NO_INDEX", "PIP_CONSTRAINT", "PIP_ONLY_BINARY", "PIP_NO_BINARY")
"""What lets a machine install something else than the index serves, such as a torch without CUDA from its disk."""


def interpreter(version: str) -> str:
    """A Python of this version: this one, one on the path, or one of pyenv's."""
    if version == f"{sys.version_info.major}.{sys.version_info.minor}":
        return sys.executable
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    for found in (*sorted(root.glob(f"versions/{version}.*/bin/python")), shutil.which(f"python{version}")):
        if found is not None and subprocess.run([str(found), "--version"], capture_output=True, check=False).returncode == 0:
            return str(found)
    pytest.skip(f"there is no Python {version} here")


def dry_run(python: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Our pip, which takes metadata alone where the index has it, resolving for another interpreter. Installs nothing."""
    settings = {name: value for name, value in os.environ.items() if name not in OWN_SETTINGS and name != "PYTHONPATH"}
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--dry-run", "--ignore-installed", "--quiet"]
    environment = settings | {"PIP_CONFIG_FILE": os.devnull}
    return subprocess.run([*pip, *arguments], env=environment, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def index() -> None:
    probe = dry_run(sys.executable, "--no-deps", "--retries", "0", "--timeout", "10", "pip")
    if probe.returncode:
        pytest.skip(f"the index of packages cannot be reached: {probe.stderr.strip().splitlines()[-1:]}")


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What pip needs of the project to know what it asks for: in a place of its own, where its traces do no harm."""
    folder = tmp_path_factory.mktemp("project")
    for name in ("pyproject.toml", "README.md", "LICENSE", "constraints.txt"):
        shutil.copy(ROOT / name, folder)
    (folder / "src" / "milonga").mkdir(parents=True)
    (folder / "src" / "milonga" / "__init__.py").touch()
    return folder


def plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def pins() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return {plain(name): version for name, _, version in (line.partition("==") for line in lines if "==" in line)}


@pytest.mark.slow
@pytest.mark.parametrize("version", PYTHONS)
@pytest.mark.usefixtures("index")
def test_the_pins_resolve(project: Path, tmp_path: Path, version: str) -> None:
    report = tmp_path / "report.json"
    python = interpreter(version)
    done = dry_run(python, "--report", str(report), "--constraint", str(project / "constraints.txt"), f"{project}[dev]")
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, Any] = {plain(one["metadata"]["name"]): one for one in json.loads(report.read_text())["install"]}
    assert {"torch", "transformers", "ray", "nicegui", "sphinx", "reasoning-gym"} <= found.keys()
    given = {name: one["metadata"]["version"] for name, one in found.items()}
    assert {name: given[name] for name in pins() if name in given} == {n: v for n, v in pins().items() if n in given}
    core = [plain(re.split(r"[<>=; \[]", name)[0]) for name in PROJECT["dependencies"]]
    sources = [name for name in core if not found[name]["download_info"]["url"].endswith(".whl")]
    assert not sources, f"without a wheel for Python {version}: {sources}"


def test_every_python_that_is_promised_is_asked_for() -> None:
    assert PYTHONS == ["3.11", "3.12", "3.13"]


def test_pins_are_exact_and_each_is_there_once() -> None:
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if line and not line.startswith("#")]
    assert all(re.fullmatch(r"[A-Za-z0-9_.-]+==[A-Za-z0-9.]+", line) for line in lines)
    assert len(pins()) == len(lines)
