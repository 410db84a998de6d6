"""vLLM's own server as an endpoint: a frozen verifier behind it, stop strings and seeds included. Run by `make test-vllm`."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

import milonga
from milonga.auth import bind_socket
from milonga.config import EndpointSection, PolicySection
from milonga.engine import Completion, Decoding, Request
from milonga.engine.local import LocalEngine
from milonga.engine.local.models import resolve_model_path
from milonga.engine.remote.engine import WithEndpoints
from milonga.runfolder.files import JsonLines
from milonga.types import Part

CHECK = (Part("?"), Part("3+4*5%100", foreign=True), Part("\n"), Part("3+4=7\n7*5=36\n#36", foreign=True), Part("\n!"))
TINY = {
    "dialect": "terse",
    "device": "cpu",
    "task": {"name": "chain", "ops": 2},
    "batch": {"problems": 4, "rollouts": 4},
    "eval": {"problems": 4, "samples": 1, "bench": 4, "checks": 1, "greedy": False},
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The embedded model, which has no chat template of its own, behind vLLM."""
    with bind_socket("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
    options = [
        "--dtype",
        "float32",
        "--enforce-eager",
        "--max-model-len",
        "256",
        "--chat-template",
        "{{ messages[0]['content'] }}",
    ]
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--port", str(port), "--host", "127.0.0.1", *options]
    log = (tmp_path_factory.mktemp("vllm") / "log").open("w+")
    environment = os.environ | {"VLLM_CPU_KVCACHE_SPACE": "1"}
    named = ["--model", resolve_model_path("embedded"), "--served-model-name", "tiny"]
    server = subprocess.Popen([*command, *named], stdout=log, stderr=subprocess.STDOUT, env=environment)
    try:
        for _ in range(600):
            assert server.poll() is None, Path(log.name).read_text()[-2000:]
            try:
                httpx.get(f"http://127.0.0.1:{port}/health").raise_for_status()
                break
            except httpx.HTTPError:
                time.sleep(0.5)
        yield f"openai:http://127.0.0.1:{port}/v1#tiny"
    finally:
        server.terminate()
        server.wait(60)
        log.close()


def asked(model: str, decoding: Decoding, section: EndpointSection, keys: range = range(1)) -> list[Completion]:
    engine = WithEndpoints(LocalEngine({}, "cpu"), {"judge": PolicySection(model=model, endpoint=section)})
    try:
        context = engine.encode("judge", CHECK)
        return engine.sample("judge", [Request(context, key) for key in keys], decoding)
    finally:
        engine.close()


def test_it_says_what_the_same_weights_say_here(model: str) -> None:
    local = LocalEngine({"judge": PolicySection()}, "cpu")
    greedy = Decoding(64, greedy=True)
    (ours,) = local.sample("judge", [Request(local.encode("judge", CHECK), 0)], greedy)
    (theirs,) = asked(model, greedy, EndpointSection())
    assert (theirs.text, theirs.finish) == (ours.text, ours.finish)


def test_a_seed_gives_the_same_output_again(model: str) -> None:
    first, second = (asked(model, Decoding(64), EndpointSection(extra={"top_k": -1}), range(8)) for _ in range(2))
    assert [one.text for one in first] == [one.text for one in second] and len({one.text for one in first}) > 1


def test_stop_strings_are_cut_alike_here_and_there(model: str) -> None:
    decoding = Decoding(64, stop=("\n",), greedy=True)
    (here,), (there,) = (asked(model, decoding, EndpointSection(stop=stop)) for stop in ("here", "server"))
    assert here.text == there.text and here.text.endswith("\n") and here.finish == there.finish == "stop"


def test_a_run_with_a_frozen_verifier_behind_it(model: str, tmp_path: Path) -> None:
    milonga.run("frozen", turns=1, out=tmp_path / "run", models={"verifier": model}, settings=TINY, quiet=True)
    row = JsonLines(tmp_path / "run" / "metrics.jsonl").rows()[-1]
    assert row["rollouts/verifier/unparsed_rate"] < 0.5 and row["learn/generator/steps"] == 1
