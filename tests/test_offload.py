"""What rests in host memory between uses: the same bits with and without, and nobody computes with what is away.

On a CPU both places are the same memory, but the moves are made. A guard sees every operation of torch, and refuses all but
copies of tensors that are away: what would be an error of mixed devices on a GPU is one here. `scripts/check_gpu.py` has the
same on a device, with the memory that it saves.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import milonga
from engine_helpers import (
    constant,
    model_folder,
    prompts,
    requests,
    same_bits,
    sample_rollouts,
    section,
    stirred,
    train_batch,
    weights,
)
from milonga.engine import Decoding
from milonga.engine.local import LocalEngine, memory
from milonga.engine.local import offload as offloading
from milonga.objectives import make_objective
from milonga.types import TrainBatch

MOVES = {"copy_", "clone", "detach", "empty_like", "_to_copy", "alias"}


class Guard(TorchDispatchMode):
    """Knows what is away, and that nothing else lies where it lay."""

    def __init__(self) -> None:
        super().__init__()
        self.away: dict[int, torch.Tensor] = {}

    def note(self, tensors: Iterable[torch.Tensor]) -> None:
        for tensor in tensors:
            self.away[tensor.data_ptr()] = tensor.data  # held, so that its place is never another's

    def has(self, tensor: torch.Tensor) -> bool:
        return tensor.data_ptr() in self.away

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket.__name__ not in MOVES:
            for value in tree_leaves((args, kwargs or {})):
                if isinstance(value, torch.Tensor) and value.numel() and value.untyped_storage().data_ptr() in self.away:
                    raise AssertionError(f"{func} computes with a tensor that is away")
        return func(*args, **(kwargs or {}))


@pytest.fixture
def guard(monkeypatch: pytest.MonkeyPatch) -> Guard:
    made, real = Guard(), offloading.move_to_host

    def noted(tensors: Iterable[torch.Tensor], device: torch.device) -> None:
        moved = list(tensors)
        real(moved, device)
        made.note(moved)

    monkeypatch.setattr(offloading, "move_to_host", noted)
    return made


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


RICH = {"ema": 0.9, "optimism": True, "minibatches": 2, "epochs": 2}
KINDS: dict[str, dict[str, Any]] = {
    "whole": {"arch": "llama", **RICH},
    "adapter": {"arch": "qwen2", "lora": {"rank": 4}, **RICH},
    "another architecture": {"arch": "gpt2", **RICH},
    "head": {"arch": "qwen2", "kind": "scalar", "ema": 0.9},
}


def engine_of(root: Path, offload: bool, arch: str, names: str = "p", **options: Any) -> LocalEngine:
    made = section(model_folder(root, arch), lr=1e-3, offload=offload, **options)
    return stirred(LocalEngine(dict.fromkeys(names, made), device="cpu"))


def taught(engine: LocalEngine, seed: int) -> TrainBatch:
    if engine.policy("p").head is None:
        rows = sample_rollouts(engine, seed=seed)
        return train_batch(rows, [1.0, -1.0] * 4, kl_coef=0.1)
    rows = sample_rollouts(LocalEngine({"p": section(engine.policy("p").section.model)}, device="cpu"), seed=seed)
    targets = [np.where(row.mask, value, np.nan) for row, value in zip(rows, [0.0, 1.0] * 4, strict=True)]
    return TrainBatch("p", make_objective("value_bce", {"kl_coef": 0.1}).loss, rows, targets=targets)


def run_policy(engine: LocalEngine, turns: int = 2) -> list[Any]:
    """What a run does with a policy; and what it sees of it."""
    seen: list[Any] = []
    policy = engine.policy("p")
    rows = taught(engine, 9).rollouts
    for turn in range(turns):
        report = engine.learn(taught(engine, turn))
        engine.publish("p")
        engine.snapshot("p", f"turn-{turn}")
        seen.append((report.loss, report.grad_norm, report.steps))
        for tag in ("live", "ref", "ema", "turn-0"):
            seen += [found.tolist() for found in (engine.score if policy.head is None else engine.values)("p", rows, tag)]
            if policy.head is None:
                done = engine.sample("p", requests(prompts(4)), Decoding(6), tag)
                seen += [(d.ids.tolist(), d.logprobs.tolist()) for d in done]
    return seen


def offloaded_tensors(engine: LocalEngine) -> list[torch.Tensor]:
    policy = engine.policy("p")
    return [*policy.list_moments(), *(policy.gradients or ()), *(t for tensors in policy.tags.values() for t in tensors)]


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_bits_and_nothing_computes_with_what_is_away(root: Path, guard: Guard, kind: str) -> None:
    plain, thrifty = (engine_of(root, offload, **KINDS[kind]) for offload in (False, True))
    with guard:
        found = run_policy(thrifty)
    assert found == run_policy(plain)
    assert same_bits(weights(plain), weights(thrifty))
    assert plain.policy("p").fingerprint() == thrifty.policy("p").fingerprint()
    left, right = plain.policy("p").get_state(), thrifty.policy("p").get_state()
    assert left.keys() == right.keys() and same_bits(list(left.values()), list(right.values()))
    held = offloaded_tensors(thrifty)
    assert len(held) > 4 * len(weights(plain)) and all(guard.has(tensor) for tensor in held)
    assert not any(guard.has(tensor) for tensor in thrifty.policy("p").list_weights())


def test_moments_are_there_for_the_step_alone(root: Path, guard: Guard, monkeypatch: pytest.MonkeyPatch) -> None:
    """While gradients are computed they are not: that is when memory is short."""
    engine = engine_of(root, True, "llama")
    policy, seen = engine.policy("p"), []
    engine.learn(taught(engine, 0))
    step, norm = policy.optimizer.step, policy.gradient_norm

    def away() -> set[bool]:
        return {guard.has(tensor) for tensor in policy.list_moments()}

    monkeypatch.setattr(policy, "gradient_norm", lambda: seen.append(away()) or norm())
    monkeypatch.setattr(policy.optimizer, "step", lambda: seen.append(away()) or step())
    engine.learn(taught(engine, 1))
    assert seen == [{True}, {False}] and away() == {True}


def test_the_guard_sees_a_forgotten_tensor(root: Path, guard: Guard) -> None:
    engine = engine_of(root, True, "llama", ema=0.9)
    with guard, pytest.raises(AssertionError, match="lerp"):
        engine.policy("p").tags["ema"][0].lerp_(engine.policy("p").parameters[0].detach(), 0.5)
    rows = taught(engine, 0).rollouts
    engine.policy("p")._point_to(engine.policy("p").get_tag("ref"))
    with guard, pytest.raises(AssertionError, match="away"):
        engine.score("p", rows)


def test_a_refused_update_leaves_everything_at_rest(root: Path, guard: Guard) -> None:
    engine = engine_of(root, True, "llama", **RICH)
    engine.learn(taught(engine, 0))
    before, rows = engine.policy("p").get_state(), sample_rollouts(engine)
    kept = {key: tensor.clone() for key, tensor in before.items()}
    with guard:
        wrong = TrainBatch("p", make_objective("grpo", {}).loss, rows, constant(rows, [float("inf"), -1.0] * 4))
        assert engine.learn(wrong).skipped
    after = engine.policy("p").get_state()
    assert all(torch.equal(kept[key], after[key]) for key in kept)
    assert all(guard.has(tensor) for tensor in offloaded_tensors(engine))


@pytest.mark.parametrize("kind", ["whole", "adapter"])
@pytest.mark.parametrize("offload", [True, False], ids=["to the host", "to the device"])
def test_a_checkpoint_goes_on_with_the_same_bits(root: Path, tmp_path: Path, guard: Guard, kind: str, offload: bool) -> None:
    """Whether what wrote it offloads or not, and whether what reads it does."""
    first, other = (engine_of(root, way, **KINDS[kind]) for way in (not offload, offload))
    run_policy(first)
    first.save(tmp_path)
    other.load(tmp_path)
    assert all(guard.has(tensor) is offload for tensor in offloaded_tensors(other))
    asked = taught(first, 5)
    one, two = (engine.learn(asked) for engine in (first, other))
    assert (one.loss, one.grad_norm) == (two.loss, two.grad_norm) and same_bits(weights(first), weights(other))
    assert other.checkpoint_bytes() == first.checkpoint_bytes()


def test_copies_and_exports(root: Path, tmp_path: Path) -> None:
    plain, thrifty = (engine_of(root, offload, "llama", names="pq") for offload in (False, True))
    for engine in (plain, thrifty):
        engine.learn(taught(engine, 0))
        engine.snapshot("p", "early")
        engine.learn(taught(engine, 1))
        engine.copy("q", "p", "early")
        engine.copy("p", "p", "ref")
        assert not engine.policy("p").list_moments()
        engine.export("q", tmp_path / f"{engine is plain}")
    for policy in "pq":
        assert same_bits(weights(plain, policy), weights(thrifty, policy))
    one, two = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("True", "False"))
    assert one == two


def test_weights_are_away_while_vllm_computes(root: Path, guard: Guard) -> None:
    """A base that adapters share is moved once, and comes back as it was."""
    engine = engine_of(root, True, "qwen2", names="pq", lora={"rank": 4})
    before = {id(t): t.detach().clone() for policy in engine.policies.values() for t in policy.list_weights()}
    with engine._offload_weights():
        assert len(guard.away) >= len(before)
        assert all(guard.has(t) for policy in engine.policies.values() for t in policy.list_weights())
    tensors = [t for policy in engine.policies.values() for t in policy.list_weights()]
    assert not any(guard.has(t) for t in tensors)
    assert all(torch.equal(before[id(t)], t) for t in tensors)
    still = engine_of(root, False, "qwen2")
    places = [t.data_ptr() for t in still.policy("p").list_weights()]
    with still._offload_weights():
        assert places == [t.data_ptr() for t in still.policy("p").list_weights()]


def test_engines_of_vllm_forget_weights_in_sleep_only_where_all_are_handed_over(root: Path) -> None:
    whole, adapted = section(model_folder(root)), section(model_folder(root), lora={"rank": 4})
    head = section(model_folder(root), lora={"rank": 4}, kind="scalar")
    assert LocalEngine({"p": whole, "q": whole}, device="cpu")._can_discard_weights()
    assert LocalEngine({"p": whole, "q": head}, device="cpu")._can_discard_weights()
    assert not LocalEngine({"p": whole, "q": adapted}, device="cpu")._can_discard_weights()


def test_memory_knows_what_is_away(root: Path) -> None:
    plain, thrifty = (engine_of(root, offload, "llama", ema=0.9).policy("p") for offload in (False, True))
    count = sum(p.numel() for p in plain.parameters)
    half = {"dtype": "bfloat16", "ema": 0.9, "offload": True}
    assert memory.weight_bytes(section("m", **half), plain.model, False) == count * (4 + 2)
    assert memory.weight_bytes(section("m", **half), plain.model, False, copied=False) == count * 4
    assert memory.count_pending_bytes([plain, thrifty]) == memory.count_pending_bytes([plain]) == 3 * 4 * count


TINY: dict[str, Any] = {
    "device": "cpu",
    "threads": 1,
    "turns": 2,
    "task": {"name": "chain", "ops": 2},
    "batch": {"problems": 4, "rollouts": 4},
    "eval": {"problems": 4, "samples": 2, "every": 2, "bench": 4, "greedy": False},
    "options": {"warmup": 0, "n_generator": 1},
}


def test_a_run(tmp_path: Path) -> None:
    """Of two policies, one of them with an average and a KL; and one that offloads resumes what one that does not began."""
    for name, offload in (("plain", False), ("thrifty", True)):
        policies = {
            "generator": {"offload": offload, "ema": 0.9, "objective": {"preset": "grpo", "kl_coef": 0.01}},
            "verifier": {"offload": offload},
        }
        milonga.run("tango", settings={**TINY, "policies": policies}, out=tmp_path / name)
    rows = [(tmp_path / name / "metrics.jsonl").read_text() for name in ("plain", "thrifty")]
    assert rows[0] == rows[1]
    files = sorted(path.relative_to(tmp_path / "plain") for path in (tmp_path / "plain").rglob("*.safetensors"))
    assert len(files) >= 4
    assert all((tmp_path / "plain" / file).read_bytes() == (tmp_path / "thrifty" / file).read_bytes() for file in files)
