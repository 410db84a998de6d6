"""The other side of the comparison with TRL is paid and warmed up as ours is. These parts run without TRL."""

from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path
from types import ModuleType

import pytest
import torch

from milonga.tasks import make_task


@pytest.fixture(scope="module")
def trl_grpo() -> ModuleType:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(Path(__file__).parents[1] / "benchmarks"))
        import trl_grpo

        return trl_grpo


def test_the_reward_is_the_grade_of_the_task(trl_grpo: ModuleType, tmp_path: Path) -> None:
    pytest.importorskip("math_verify", reason="answers are graded by math-verify, which is not installed")
    rows = [{"question": f"How much is {n} / 2?", "answer": str(n / 2)} for n in range(1, 41)]
    (tmp_path / "problems.jsonl").write_text("\n".join(map(json.dumps, rows)))
    task = make_task({"name": "jsonl", "path": str(tmp_path / "problems.jsonl")})
    problems = task.draw_problems("train", 0, 2)
    half = float(problems[1].answer)
    texts = [f"It is \\boxed{{\\frac{{{2 * half:.0f}}}{{2}}}}.", f"It is {half}", f"{half} or \\boxed{{-1}}", "It is."]
    texts.append(f"\\boxed{{{'x' * 3000}}}")  # too long to be read: wrong
    completions = [[{"role": "assistant", "content": text}] for text in texts]
    reward = trl_grpo.make_reward(task, problems)
    assert reward(completions=completions, problem=[1] * 5, prompts=[], trainer_state=None) == [1.0, 1.0, 0.0, 0.0, 0.0]


def test_the_step_at_the_end_of_the_warm_up_is_the_first_whole_one(trl_grpo: ModuleType) -> None:
    for warmup, rates in ((0, [0.8] * 4), (4, [0.2, 0.4, 0.6, 0.8])):
        optimizer, schedule = trl_grpo.make_optimizer(Namespace(lr=0.8, warmup=warmup), torch.nn.Linear(1, 1))
        found = []
        for _ in range(4):
            found.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            schedule.step()
        assert found == pytest.approx(rates)


def test_vllm_has_room_for_a_prompt_and_its_completion(trl_grpo: ModuleType) -> None:
    assert trl_grpo.make_sampler(Namespace(vllm=None)) == {}
    found = trl_grpo.make_sampler(Namespace(vllm=0.15, max_tokens=512))
    assert (found["vllm_gpu_memory_utilization"], found["vllm_max_model_length"]) == (0.15, 2048)
    assert not found["vllm_importance_sampling_correction"]
