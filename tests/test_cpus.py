"""The engine's comparisons on other processors than this one: those that it can stand in for.

Instructions decide how sums are cut, and so how they are rounded. Torch's own loops, oneDNN and MKL each choose for themselves,
and each can be told to do with less than the processor has.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

CAPABILITIES = {"DEFAULT": 0, "AVX2": 1, "AVX512": 2}
SETTINGS = {
    "DEFAULT": {"ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41", "MKL_CBWR": "COMPATIBLE"},
    "AVX2": {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_CBWR": "AVX2"},
    "AVX512": {"ATEN_CPU_CAPABILITY": "avx512", "ONEDNN_MAX_CPU_ISA": "AVX512_CORE", "MKL_CBWR": "AVX512"},
}
CORE = [
    "test_engine_sampler.py::test_sampling_logprobs_equal_a_fresh_forward",
    "test_engine_learner.py::test_gradients_do_not_depend_on_the_micro_batches",
    "test_engine_learner.py::test_the_gradient_is_that_of_the_formula",
    "test_engine_learner.py::test_scores_are_those_of_the_model_alone",
    "test_packed.py::test_value_heads_read_packed_rows",
    "test_rounding.py",
]
"""Sampler and learner, gradients by formula and under any cut, packed and padded rows, the chunked head."""
PROGRAM = """
import sys, torch, pytest
found = torch.backends.cpu.get_cpu_capability()
assert found == sys.argv[1], f"asked for {sys.argv[1]}, got {found}"
sys.exit(pytest.main(["-q", "-n0", "-p", "no:cacheprovider", *sys.argv[2:]]))
"""


@pytest.mark.parametrize("name", SETTINGS)
def test_the_engine_agrees_with_itself(name: str) -> None:
    here = torch.backends.cpu.get_cpu_capability()
    if CAPABILITIES[name] > CAPABILITIES.get(here, 0):
        pytest.skip(f"this processor has no {name}: torch says {here}")
    if name == here:
        pytest.skip(f"all tests run with {name} here")
    tests = Path(__file__).parent
    command = [sys.executable, "-c", PROGRAM, name, *(str(tests / test) for test in CORE)]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")} | SETTINGS[name]
    done = subprocess.run(command, cwd=tests.parent, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
