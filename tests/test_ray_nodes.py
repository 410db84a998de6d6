"""A machine that is lost with all that ran on it, and another that takes its place: several nodes of Ray on one machine."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray")
psutil = pytest.importorskip("psutil")

from milonga.api import start
from milonga.resolve import resolve
from milonga.runfolder.files import JsonLines
from ray_helpers import TANGO, differing

DRIVER = """
import json, pathlib, sys, milonga
root = pathlib.Path(sys.argv[1])
milonga.run("tango", settings=json.loads((root / "settings.json").read_text()), out=root / "ray")
"""


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


class Nodes:
    """A cluster as `ray start` makes it: a head without cores, and nodes with one each."""

    def __init__(self, folder: str) -> None:
        self.address = f"127.0.0.1:{free_port()}"
        self.environment = os.environ | {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0", "RAY_TMPDIR": folder}
        self.nodes = [self._start("--head", "--port", self.address.rpartition(":")[2], "--num-cpus", "0")]

    def _start(self, *options: str) -> Any:
        ray = str(Path(sys.executable).with_name("ray"))
        command = [ray, "start", "--block", "--object-store-memory", str(128 * 2**20), *options]
        node = subprocess.Popen(command, env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        assert node.stdout is not None and any("Ray runtime started" in line for line in node.stdout), "it has not started"
        return node

    def add(self) -> None:
        self.nodes.append(self._start("--address", self.address, "--num-cpus", "1"))

    def lose(self, node: Any) -> None:
        """With all that runs on it, at once."""
        root = psutil.Process(node.pid)
        for process in [root, *root.children(recursive=True)]:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        node.wait()
        self.nodes.remove(node)


@pytest.fixture
def cluster() -> Iterator[Nodes]:
    """In a folder of its own, or whoever looks for a cluster on this machine finds it; of a short name, since sockets lie
    in it."""
    folder = tempfile.mkdtemp(prefix="nodes-", dir="/tmp")
    made = Nodes(folder)
    try:
        for _ in range(2):
            made.add()
        yield made
    finally:
        for node in made.nodes[:]:
            made.lose(node)
        shutil.rmtree(folder, ignore_errors=True)


def turns_of(folder: Path) -> int:
    file = folder / "metrics.jsonl"
    return len(JsonLines(file).rows()) if file.exists() else 0


def test_a_lost_node_changes_nothing(cluster: Nodes, tmp_path: Path) -> None:
    """Two policies, each on a node of its own; one of them is lost in the middle of the run, and a new one joins."""
    config: dict[str, Any] = TANGO | {"turns": 5}
    start(resolve([config]), tmp_path / "local", quiet=True)
    config |= {"engine": "ray", "placement": {"address": cluster.address, "cpus": 1, "start_s": 90}}
    (tmp_path / "settings.json").write_text(json.dumps(config))
    command = [sys.executable, "-c", DRIVER, str(tmp_path)]
    driver = subprocess.Popen(command, env=cluster.environment, stderr=subprocess.PIPE, text=True)
    try:
        while turns_of(tmp_path / "ray") < 4 and driver.poll() is None:
            time.sleep(0.05)
        cluster.lose(cluster.nodes[1])
        cluster.add()
        told = driver.communicate(timeout=150)[1]
    finally:
        driver.kill()
    assert driver.returncode == 0 and "starting again" in told, told[-3000:]
    assert differing(tmp_path / "ray", tmp_path / "local") == []
