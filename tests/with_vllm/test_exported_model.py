"""An exported folder in vLLM, in a process of its own, as a user would load it. Run by `make test-vllm`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from milonga.pair import Pair
from milonga.using.export import export

QUESTIONS = ("3+4*5%100", "20-3+6%100", "9*9%100")
PROGRAM = """
import json, sys
from vllm import LLM, SamplingParams

if __name__ == "__main__":
    llm = LLM(sys.argv[1], dtype="float32", enforce_eager=True, max_model_len=128)
    prompts = [f">{question}\\n" for question in sys.argv[2:]]
    made = llm.generate(prompts, SamplingParams(temperature=0, max_tokens=64))
    print(json.dumps([[one.prompt_token_ids, one.outputs[0].text] for one in made]))
"""


def test_vllm_loads_an_exported_folder_and_says_the_same(trained: Path, tmp_path: Path) -> None:
    export(trained, "generator", tmp_path / "model")
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    command = [sys.executable, str(program), str(tmp_path / "model"), *QUESTIONS]
    environment = os.environ | {"VLLM_CPU_KVCACHE_SPACE": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    theirs = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("[[")))
    with Pair.open(trained, ["generator"]) as pair:
        ours = pair.solve([pair.problem(question) for question in QUESTIONS], greedy=True)
    assert theirs == [[t.ids[: t.segments[-1].start].tolist(), t.text] for t in ours]
