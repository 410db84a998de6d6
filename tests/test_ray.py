"""The engine `ray`, with real actors: it does what the local engine does, and workers that are lost change nothing."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("ray")
pytest.importorskip("peft")

import ray

from engine_helpers import gap, prompts, requests, same_bits
from milonga.api import start
from milonga.engine import Decoding, LearnReport
from milonga.engine.local import LocalEngine
from milonga.engine.ray import RayEngine
from milonga.engine.ray.group import Call, Group, Lost
from milonga.engine.ray.samplers import split_requests
from milonga.errors import MissingExtra, UserError
from milonga.resolve import resolve
from milonga.runfolder.files import JsonLines
from milonga.types import TrainBatch
from numerics import UNIT, promise
from ray_helpers import (
    TANGO,
    VALUES,
    WORKERS,
    apart,
    differing,
    gradients,
    local_engine,
    pid,
    ray_engine,
    rows,
    saved,
    state,
    taught,
)

ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers are told to do what is written here


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="module")
def started(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RayEngine, Path]]:
    engine = ray_engine(root)
    try:
        yield engine, saved(engine, tmp_path_factory.mktemp("start"))
    finally:
        engine.close()


@pytest.fixture
def engine(started: tuple[RayEngine, Path]) -> RayEngine:
    """As at the start, whatever other tests have done with it."""
    engine, folder = started
    engine.load(folder)
    return engine


@pytest.fixture
def local(root: Path) -> LocalEngine:
    return local_engine(root)


@pytest.mark.parametrize("policy", WORKERS)
def test_scores_and_gradients_are_those_of_the_local_engine(
    engine: RayEngine, local: LocalEngine, root: Path, tmp_path: Path, policy: str
) -> None:
    allowed = promise(lambda: local_engine(root), lambda: taught(policy), "ref", policy)
    assert apart(engine.score(policy, rows(), "ref"), local.score(policy, rows(), "ref")) <= 2 * allowed.scores
    ours, theirs = engine.learn(taught(policy)), local.learn(taught(policy))
    assert theirs.grad_norm > 0 and (ours.steps, ours.tokens) == (theirs.steps, theirs.tokens)
    for name in ("loss", "grad_norm", "entropy", "kl", "clip_fraction", "mismatch"):
        near = pytest.approx(getattr(theirs, name), rel=2 * allowed.gradients, abs=2 * allowed.scores)
        assert getattr(ours, name) == near, name
    found, expected = (gradients(saved(e, tmp_path / name), policy) for e, name in ((engine, "ray"), (local, "local")))
    assert gap(found, expected) <= 2 * allowed.gradients
    if WORKERS[policy].get("learners", 1) == 1:
        assert same_bits(found, expected)
    assert engine.ledger.to_json()[policy] == local.ledger.to_json()[policy]


@pytest.mark.parametrize("policy", WORKERS)
def test_samples_are_those_of_the_local_engine_after_every_kind_of_change(
    engine: RayEngine, local: LocalEngine, policy: str
) -> None:
    other = {"one": "two", "two": "one", "lora_one": "lora_two", "lora_two": "lora_one"}[policy]
    asked = requests([*prompts(5), *prompts(5)])

    def agree(tag: str) -> list[list[int]]:
        found = [e.sample(policy, asked, Decoding(8), tag) for e in (engine, local)]
        for mine, theirs in zip(*found, strict=True):
            assert mine.ids.tolist() == theirs.ids.tolist() and mine.text == theirs.text
            assert np.abs(mine.logprobs - theirs.logprobs).max() < 1e-4
        return [done.ids.tolist() for done in found[0]]

    before = agree("live")
    for both in (engine, local):
        both.snapshot(policy, "early")
        for _ in range(3):
            both.learn(taught(policy))
            assert both.publish(policy) == both.version(policy)
    learned = agree("live")
    assert learned != before == agree("ref") == agree("early")
    if policy == "one":
        agree("ema")
    for both in (engine, local):
        both.copy(policy, other)
    assert agree("live") == before
    assert engine.ledger.to_json()[policy] == local.ledger.to_json()[policy]


@pytest.mark.parametrize("policy", ["one", "lora_one"])
def test_a_snapshot_that_came_with_a_checkpoint_is_handed_to_samplers(
    engine: RayEngine, local: LocalEngine, policy: str, tmp_path: Path
) -> None:
    asked = requests(prompts(5))
    for number in range(2):  # and another checkpoint's of the same name takes its place
        local.learn(taught(policy))
        local.snapshot(policy, "of_old")
        local.learn(taught(policy))
        engine.load(saved(local, tmp_path / str(number)))
        for tag in ("of_old", "live"):
            mine, theirs = (e.sample(policy, asked, Decoding(8), tag) for e in (engine, local))
            assert [done.ids.tolist() for done in mine] == [done.ids.tolist() for done in theirs]
            assert apart([done.logprobs for done in mine], [done.logprobs for done in theirs]) < 1e-4


def test_several_steps_with_few_rows_for_each_worker(root: Path, engine: RayEngine, local: LocalEngine) -> None:
    """A worker without rows keeps step, and a train batch in which nothing moves is none for all of them."""
    alone = [0.0] * 8 + [1.0]
    for values in (alone, [0.0] * 9):
        ours, theirs = (e.learn(taught("two", values, kl_coef=0.0)) for e in (engine, local))
        assert (ours.steps, ours.skipped) == (theirs.steps, theirs.skipped)
        assert ours.grad_norm == pytest.approx(theirs.grad_norm, rel=1e-5)
    bad = taught("two")
    assert bad.advantages is not None
    bad.advantages[2][:] = np.inf
    refused = engine.learn(bad)
    assert refused.skipped is not None and refused.skipped == local.learn(bad).skipped
    assert apart(engine.score("two", rows()), local.score("two", rows())) < 1e-4


def moved(source: Path, target: Path, policy: str, to: str) -> Path:
    """A checkpoint in which another policy has what this one had."""
    shutil.copytree(source, target)
    shutil.copy(source / f"{policy}.safetensors", target / f"{to}.safetensors")
    told = json.loads((target / "engine.json").read_text())
    told["policies"][to] = told["policies"][policy]
    (target / "engine.json").write_text(json.dumps(told))
    return target


def test_checkpoints_are_read_by_any_number_of_workers(
    root: Path, engine: RayEngine, local: LocalEngine, tmp_path: Path
) -> None:
    """Local, then two workers, then one, then local again: each goes on from what the last has left, moments included."""
    whole = local_engine(root)
    for policy in ("two", "lora_two"):
        local.snapshot(policy, "early")
        local.learn(taught(policy))
    for policy, times in (("two", 4), ("lora_two", 3)):
        for _ in range(times):
            whole.learn(taught(policy))
    engine.load(saved(local, tmp_path / "local"))
    for policy in ("two", "lora_two"):
        engine.learn(taught(policy))
        engine.publish(policy)
    engine.load(moved(saved(engine, tmp_path / "two"), tmp_path / "for one", "two", "one"))
    assert engine.version("one") == 1
    engine.learn(taught("one"))
    again = local_engine(root)
    again.load(saved(engine, tmp_path / "one"))
    for policy, of, updates in (("one", "two", 4), ("lora_two", "lora_two", 3)):
        again.learn(taught(policy))
        assert again.policy(policy).updates == updates and "early" in again.policy(policy).tags
        for found, expected in zip(again.policy(policy).parameters, whole.policy(of).parameters, strict=True):
            assert torch.allclose(found, expected, atol=3e-5)
    assert sorted(p.suffix for p in (tmp_path / "one").iterdir()) == [".json"] + [".safetensors"] * 4


def test_exports_are_ordinary_models(engine: RayEngine, local: LocalEngine, root: Path, tmp_path: Path) -> None:
    for policy in ("two", "lora_two"):
        for name, both in (("ray", engine), ("local", local)):
            both.learn(taught(policy))
            both.export(policy, tmp_path / name / policy)
        ours, theirs = (sorted(p.name for p in (tmp_path / name / policy).iterdir()) for name in ("ray", "local"))
        assert ours == theirs
        file = "model.safetensors" if policy == "two" else "adapter_model.safetensors"
        tensors = [state((tmp_path / name / policy), file.removesuffix(".safetensors")) for name in ("ray", "local")]
        assert tensors[0].keys() == tensors[1].keys()
        allowed = promise(lambda: local_engine(root), lambda: taught(policy), name=policy).weights()  # noqa: B023
        names = [name.replace(f".{policy}.", ".") for name in local.policy(policy).names]
        for key, bound in zip(names, allowed, strict=True):
            mine, own = (found[key] for found in tensors)
            assert bool(((mine - own).abs() <= 2 * bound + 2 * UNIT * own.abs()).all()), key
        off = torch.cat([(tensors[0][key] - tensors[1][key]).abs().flatten() for key in tensors[0]])
        assert (off > 1e-5).double().mean() < 0.01, "few weights have gradients that are nothing but rounding"


def test_a_killed_sampler_changes_nothing(engine: RayEngine) -> None:
    asked = requests(prompts(6))
    engine.learn(taught("one"))
    engine.publish("one")
    expected = [done.logprobs for done in engine.sample("one", asked, Decoding(8))]
    os.kill(pid(engine.samplers["one"][0].group), signal.SIGKILL)
    with pytest.warns(UserWarning, match="samplers of one: .*starting again"):
        found = engine.sample("one", asked, Decoding(8))
    assert apart([done.logprobs for done in found], expected) == 0


def change(group: Group, method: str, does: Callable[..., None]) -> None:
    """Let a worker do something else when it is asked for this."""
    ray.get(group.workers[0].__ray_call__.remote(lambda worker: setattr(worker.work, method, does)))


def end_itself(*_: Any) -> None:
    """In a worker: its call is under way then."""
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("victim", ["sampler", "learner"])
def test_a_worker_that_dies_while_weights_are_handed_over_changes_nothing(
    engine: RayEngine, started: tuple[RayEngine, Path], tmp_path: Path, victim: str
) -> None:
    """Two turns of a policy with two samplers, undisturbed; and with one that dies at the second publish."""
    asked = requests(prompts(6))

    def rollout(folder: Path, disturbed: bool) -> tuple[list[np.ndarray], dict[str, torch.Tensor], Any]:
        engine.load(started[1])
        engine.learn(taught("one"))
        engine.publish("one")
        engine.learn(taught("one", [-value for value in VALUES]))
        if disturbed:
            group = engine.samplers["one"][1].group if victim == "sampler" else engine.learners["one"].group
            change(group, "hold" if victim == "sampler" else "weights", end_itself)
        assert engine.publish("one") == 2
        done = [completion.logprobs for completion in engine.sample("one", asked, Decoding(8))]
        return done, state(saved(engine, folder), "one"), engine.ledger.to_json()

    expected = rollout(tmp_path / "undisturbed", False)
    with pytest.warns(UserWarning, match=f"{victim}s of one: .*starting again"):
        found = rollout(tmp_path / "disturbed", True)
    assert apart(found[0], expected[0]) == 0 and found[2] == expected[2]
    assert all(torch.equal(found[1][key], expected[1][key]) for key in expected[1])


def test_weights_that_were_lost_on_their_way_are_gathered_again(engine: RayEngine) -> None:
    """Here with the process that was to compute them; or else with the machine that they lay on."""

    lost = ray.remote(num_cpus=0.01, max_retries=0)(end_itself)
    engine.learn(taught("one"))
    engine.publish("one")
    asked = requests(prompts(6))
    expected = [done.logprobs for done in engine.sample("one", asked, Decoding(8))]
    engine.handover.sent["one"] = replace(engine.handover.sent["one"], weights=lost.remote())
    engine.samplers["one"][0].loaded.clear()
    with pytest.warns(UserWarning, match="samplers of one: .*starting again"):
        found = engine.sample("one", asked, Decoding(8))
    assert apart([done.logprobs for done in found], expected) == 0


def test_a_learner_that_calls_a_worker_which_is_lost_is_made_again(engine: RayEngine) -> None:
    """As one that sends weights to a sampler."""

    @ray.remote(num_cpus=0.01)
    class Other:
        def answer(self) -> None:
            return None

    other = Other.remote()
    ray.kill(other)
    change(engine.learners["lora_one"].group, "checkpoint_bytes", lambda: ray.get(other.answer.remote()))
    with pytest.warns(UserWarning, match="learners of lora_one: .*starting again"):
        assert engine.checkpoint_bytes() > 0


def test_weights_may_be_sent_to_one_sampler_after_another(
    engine: RayEngine, local: LocalEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver's part of vLLM's transfer (tests/with_vllm has the rest). Here the learner calls the sampler, and sends as
    many weights as it is asked to."""
    worker = engine.learners["one"].group.workers[0]
    for sampler in engine.samplers["one"]:
        monkeypatch.setattr(sampler.group, "setup", replace(sampler.group.setup, transfer="nccl"))

    def install(learner: Any) -> None:
        def send(policy: str, number: int, sampler: Any, backend: str) -> None:
            ray.get(sampler.call.options(num_returns=2).remote("hold", policy, "live", learner.work.weights(policy, "live")))
            learner.sent = [*getattr(learner, "sent", []), number]

        learner.work.send = send

    ray.get(worker.__ray_call__.remote(install))
    asked = requests(prompts(6))
    for both in (engine, local):
        both.learn(taught("one"))
        both.publish("one")
    for tag in ("live", "ref", "live"):  # vLLM holds one version at a time: the live one is sent again
        mine, theirs = (e.sample("one", asked, Decoding(8), tag) for e in (engine, local))
        assert [done.ids.tolist() for done in mine] == [done.ids.tolist() for done in theirs]
    assert not engine.handover.sent
    assert ray.get(worker.__ray_call__.remote(lambda learner: learner.sent)) == [0, 1, 0, 1]


def test_what_never_arrives_is_not_waited_for_without_end(engine: RayEngine) -> None:
    @ray.remote(num_cpus=0.01)
    def endless() -> None:
        time.sleep(1000)

    never = endless.remote()
    with pytest.raises(Lost, match="what a worker has found was under way for 6 s"):
        engine.samplers["lora_one"][0].group.fetch_values(Call([never], []))
    ray.cancel(never, force=True)


def test_a_hung_sampler_is_replaced(engine: RayEngine) -> None:
    asked = requests(prompts(6))
    expected = [done.logprobs for done in engine.sample("lora_one", asked, Decoding(8))]
    hung = pid(engine.samplers["lora_one"][0].group)
    os.kill(hung, signal.SIGSTOP)
    try:
        with pytest.warns(UserWarning, match="did not answer for 6 s"):
            found = engine.sample("lora_one", asked, Decoding(8))
        assert ended(hung)
    finally:
        end(hung)
    assert apart([done.logprobs for done in found], expected) == 0


def ended(process: int) -> bool:
    """Within some seconds: Ray asks before it kills."""
    for _ in range(100):
        try:
            state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return True
        if state == "Z":
            return True
        time.sleep(0.1)
    return False


def end(process: int) -> None:
    """A stopped process must not outlive its test, if nobody has ended it yet."""
    try:
        os.kill(process, signal.SIGKILL)
    except ProcessLookupError:
        return


def history(engine: RayEngine, folder: Path, disturb: Any = None) -> dict[str, torch.Tensor]:
    """What a sharded policy is after some turns, one of which somebody disturbs."""
    engine.learn(taught("two"))
    engine.snapshot("two", "early")
    engine.publish("two")
    if disturb is not None:
        disturb()
    engine.learn(taught("two", [-value for value in VALUES]))
    assert engine.publish("two") == 2
    return state(saved(engine, folder), "two")


def test_killed_learners_are_made_again_to_the_last_bit(
    engine: RayEngine, started: tuple[RayEngine, Path], tmp_path: Path
) -> None:
    expected, cost = history(engine, tmp_path / "undisturbed"), engine.ledger.to_json()
    engine.load(started[1])

    def disturb() -> None:
        """One of two is killed within the next call, in which the other then waits for it."""
        victim = pid(engine.learners["two"].group, 1)
        os.kill(victim, signal.SIGSTOP)
        threading.Timer(0.5, os.kill, (victim, signal.SIGKILL)).start()

    with pytest.warns(UserWarning, match="learners of two: .*starting again"):
        found = history(engine, tmp_path / "disturbed", disturb)
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[key], expected[key]) for key in expected)
    assert engine.ledger.to_json() == cost


def test_a_worker_without_memory_is_replaced(engine: RayEngine, started: tuple[RayEngine, Path]) -> None:
    expected = engine.score("lora_one", rows())
    engine.learn(taught("lora_one"))
    process = pid(engine.learners["lora_one"].group)
    used = int(Path(f"/proc/{process}/statm").read_text().split()[0]) * resource.getpagesize()
    resource.prlimit(process, resource.RLIMIT_AS, (used, used))
    with pytest.warns(UserWarning, match="learners of lora_one: a worker ran out of memory.*starting again"):
        engine.load(started[1])
    assert apart(engine.score("lora_one", rows()), expected) == 0


def test_wrong_weights_in_a_sampler_stop_the_run_with_the_numbers(engine: RayEngine) -> None:
    sampler, right = engine.samplers["one"][0], engine.handover.get_newest("one")
    assert right is not None
    wrong = replace(right, weights=[array * 1.01 for array in ray.get(right.weights)])
    with pytest.raises(UserError, match=r"Over 96 fixed tokens .* differ by 0\.\d+ on average and .* 0\.0001 on average"):
        engine.handover.supply([sampler], "one", "live", lambda: wrong)


def test_an_error_of_the_user_comes_out_as_what_it_was(engine: RayEngine) -> None:
    with pytest.raises(UserError, match="policy 'one' has no version 'eearly'") as caught:
        engine.score("one", rows(), "eearly")
    assert "in get_tag" in caught.value.__notes__[0], "and a bug would show where it is"
    assert len(engine.score("one", rows())) == 9


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (MissingExtra("lora", "lora"), "lora needs an optional package"),
        (torch.OutOfMemoryError("CUDA out of memory."), "learners of one: the memory of a GPU is full: CUDA out of memory"),
    ],
)
def test_errors_of_workers_are_told_in_a_line(engine: RayEngine, error: Exception, told: str) -> None:
    def fail() -> None:
        raise error

    group = engine.learners["one"].group
    change(group, "checkpoint_bytes", fail)
    try:
        with pytest.raises(UserError, match=told):
            engine.checkpoint_bytes()
    finally:
        ray.get(group.workers[0].__ray_call__.remote(lambda worker: delattr(worker.work, "checkpoint_bytes")))


def test_shards_are_read_though_a_reader_was_killed(engine: RayEngine, local: LocalEngine, tmp_path: Path) -> None:
    """What one that was killed within a load left behind is in nobody's way."""
    folder = saved(local, tmp_path)
    for rank in range(2):
        (folder / f"two.read-{rank}").mkdir()
        (folder / f"two.read-{rank}" / "two.safetensors").symlink_to(folder / "two.safetensors")
    engine.load(folder)
    assert apart(engine.score("two", rows()), local.score("two", rows())) < 1e-4


def test_a_run_from_scratch_is_that_of_the_local_engine_though_a_learner_dies(
    engine: RayEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tango over two turns of each agent: the same files, to the last bit. The generator's worker is killed when it is to learn
    for the second time: the checkpoint that it goes back to has its final name by then."""
    learn, train_batches = RayEngine.learn, []

    def deadly(self: RayEngine, train_batch: TrainBatch) -> LearnReport:
        train_batches.append(train_batch.policy)
        if train_batches.count("generator") == 2 and train_batch.policy == "generator":
            os.kill(pid(self.learners["generator"].group), signal.SIGKILL)
        return learn(self, train_batch)

    monkeypatch.setattr(RayEngine, "learn", deadly)
    with pytest.warns(UserWarning, match="learners of generator: .*starting again"):
        start(resolve([TANGO, {"engine": "ray", "placement": {"cpus": 0.1}}]), tmp_path / "ray", quiet=True)
    start(resolve([TANGO]), tmp_path / "local", quiet=True)
    assert all(r[f"learn/{r['learner']}/grad_norm"] > 0 for r in JsonLines(tmp_path / "ray" / "metrics.jsonl").rows()[1:])
    assert differing(tmp_path / "ray", tmp_path / "local") == []


def test_signals_are_left_to_the_run(engine: RayEngine) -> None:
    """Ray's own answer to SIGTERM would end it without a checkpoint."""
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_requests_with_one_context_stay_together() -> None:
    asked = requests([p for p in prompts(5) for _ in range(3)])
    parts = split_requests(asked, 2)
    assert sorted(i for part in parts for i in part) == list(range(15)) and [len(part) for part in parts] == [9, 6]
    assert all(len({i // 3 for i in part}) * 3 == len(part) for part in parts)
    assert split_requests(asked, 1) == [list(range(15))] and split_requests([], 2) == [[], []]


def test_too_many_losses_end_the_run_with_a_message(engine: RayEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last test: it leaves nobody behind."""
    group = engine.learners["lora_one"].group
    monkeypatch.setattr(group, "placement", group.placement.model_copy(update={"retries": 0}))
    os.kill(pid(group), signal.SIGKILL)
    with pytest.raises(UserError, match=r"learners of lora_one: lost 1 times in a row, and 0 retries .*milonga resume"):
        engine.learn(taught("lora_one"))
