"""Asynchronous rollouts with real actors: the lag is exact, whoever is fast, slow or killed."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("ray")
pytest.importorskip("peft")

import ray

import milonga
from cases import CASES
from milonga.api import make_engine, start
from milonga.context import Context
from milonga.engine import Completion, Decoding, LearnReport, Request
from milonga.engine.local import LocalEngine
from milonga.engine.pinned import PinnedSampler
from milonga.engine.ray.engine import PublishedSampler
from milonga.loop import Loop
from milonga.resolve import Plan, resolve
from milonga.runfolder.files import JsonLines
from milonga.runfolder.rollouts import read_rollouts
from milonga.types import Rollouts
from ray_helpers import files_of, one_cluster, pid, state

GRPO: dict[str, Any] = {
    "recipe": "grpo",
    "turns": 4,
    "device": "cpu",
    "threads": 1,
    "task": {"name": "chain", "ops": 2},
    "batch": {"problems": 4, "rollouts": 4},
    "policies": {"generator": {"lr": 3e-4}},
    "eval": {"problems": 4, "samples": 2, "every": 100, "bench": 0, "greedy": False},
    "keep": {"checkpoint_every": 4, "rollouts_every": 1},
}
RAY: dict[str, Any] = {"engine": "ray", "placement": {"cpus": 0.1, "samplers": 1}}


@pytest.fixture(scope="module", autouse=True)
def joined() -> Iterator[None]:
    with one_cluster():
        yield


def planned(*layers: dict[str, Any], staleness: int = 1) -> Plan:
    return resolve([GRPO, RAY, {"staleness": staleness}, *layers])


def rows_of(folder: Path) -> list[dict[str, Any]]:
    return JsonLines(folder / "metrics.jsonl").rows()


@pytest.fixture(scope="module")
def lagged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight turns of grpo with a lag of one, in two spans."""
    folder = tmp_path_factory.mktemp("lagged") / "run"
    start(planned({"turns": 8}), folder, quiet=True)
    return folder


class Tagged(PinnedSampler):
    """By hand: what a policy was, from a snapshot of a local engine."""

    def __init__(self, engine: LocalEngine, tag: str, version: int) -> None:
        super().__init__(engine, {"generator": version})
        self.tag = tag

    def draw(self, policy: str, requests: Sequence[Request], decoding: Decoding) -> list[Completion]:
        return self.engine.sample(policy, requests, decoding, self.tag)


def by_hand(plan: Plan, turns: int) -> tuple[LocalEngine, list[LearnReport], list[Rollouts]]:
    """The same turns one after another in this process: turn n from the snapshot after turn n - 2, in spans of four."""
    engine, reports, sampled = make_engine(plan), [], []
    engine.snapshot("generator", "after 0")
    run_context = plan.make_run_context(engine)
    drawn = 0
    for turn in range(1, turns + 1):
        source = max((turn - 1) // 4 * 4, turn - 2)
        view = Tagged(engine, f"after {source}", source)
        ctx = Context(replace(run_context, engine=view), turn, "generator", start=drawn, progress=(turn - 1) / turns)
        rollouts = plan.recipe.rollout(ctx)
        drawn += ctx.drawn
        (train_batch,) = plan.recipe.credit(replace(ctx, run=run_context), rollouts)
        sampled.append(rollouts)
        reports.append(engine.learn(replace(train_batch, stale_cap=2.0) if source < turn - 1 else train_batch))
        engine.publish("generator")
        engine.snapshot("generator", f"after {turn}")
    return engine, reports, sampled


def test_a_lag_of_one_is_what_it_is_by_hand(lagged: Path) -> None:
    engine, reports, sampled = by_hand(resolve([GRPO, {"turns": 8}]), 8)
    for row, report, rollouts in zip(rows_of(lagged)[1:], reports, sampled, strict=True):
        assert (row["learn/generator/loss"], row["learn/generator/grad_norm"]) == (report.loss, report.grad_norm), row["turn"]
        assert row["learn/generator/stale_weight"] == report.stale_weight
        kept = read_rollouts(lagged / "rollouts" / f"turn-{row['turn']:06d}.parquet")
        assert [rollout["ids"] for rollout in kept] == [rollout.ids.tolist() for rollout in rollouts]
        assert {rollout["version"] for rollout in kept} == {rollout.segments[-1].version for rollout in rollouts}
    weights = state(lagged / "checkpoints" / "turn-000008", "generator")
    learned = engine.policy("generator").get_state()
    assert any(key.startswith("optimizer:exp_avg/") for key in weights)
    assert all(torch.equal(weights[key], learned[key]) for key in weights)


def test_staleness_and_its_correction_are_measured(lagged: Path) -> None:
    rows = rows_of(lagged)[1:]
    assert [row["learn/generator/staleness"] for row in rows] == [0, 1, 1, 1, 0, 1, 1, 1]
    for row in rows:
        weight, cut = row["learn/generator/stale_weight"], row["learn/generator/stale_truncated"]
        assert (weight, cut) == (1, 0) if row["learn/generator/staleness"] == 0 else 0.5 < weight < 1.5 and 0 <= cut < 0.5
        assert weight != 1 or row["learn/generator/staleness"] == 0
    timing = [row for row in JsonLines(lagged / "timing.jsonl").rows() if row["turn"]]
    assert max(row["overlap_s"] for row in timing) > 0 and min(row["overlap_s"] for row in timing) >= 0
    for row in timing:
        works = sum(row.get(f"{work}_s", 0.0) for work in ("sample", "score", "learn", "publish"))
        assert works + row["idle_s"] >= row["turn_s"] + row["overlap_s"] - 1e-6


@pytest.mark.parametrize("workers", [{"samplers": 2}, {"learners": 2}])
def test_the_lag_is_the_same_with_more_workers(lagged: Path, tmp_path: Path, workers: dict[str, int]) -> None:
    """But for the order of sums, which hangs on who computes which rows: the same tokens from the same versions, the same
    weights of older samples, gradients and weights."""
    start(planned({"placement": workers}), tmp_path / "run", quiet=True)
    found, expected = rows_of(tmp_path / "run")[1:], rows_of(lagged)[1:5]
    for one, other in zip(found, expected, strict=True):
        for key in ("loss", "grad_norm", "staleness", "stale_weight", "stale_truncated"):
            name = f"learn/generator/{key}"
            assert one[name] == pytest.approx(other[name], rel=1e-4, abs=1e-6), (one["turn"], key)
        assert one["compute/tokens"] == other["compute/tokens"]
        ours, theirs = (
            read_rollouts(folder / "rollouts" / f"turn-{one['turn']:06d}.parquet") for folder in (tmp_path / "run", lagged)
        )
        assert [(t["ids"], t["version"]) for t in ours] == [(t["ids"], t["version"]) for t in theirs]
        assert max(np.abs(np.subtract(a["logprobs"], b["logprobs"])).max() for a, b in zip(ours, theirs, strict=True)) < 1e-4
    mine, known = (state(folder / "checkpoints" / "turn-000004", "generator") for folder in (tmp_path / "run", lagged))
    assert mine.keys() == known.keys() and all(torch.allclose(mine[key], known[key], atol=1e-4) for key in known)


def test_no_lag_is_the_local_engine(tmp_path: Path) -> None:
    start(planned(staleness=0), tmp_path / "ray", quiet=True)
    start(resolve([GRPO]), tmp_path / "local", quiet=True)
    found, expected = files_of(tmp_path / "ray"), files_of(tmp_path / "local")
    assert found.keys() == expected.keys() and [name for name in found if found[name] != expected[name]] == []
    assert not [key for row in rows_of(tmp_path / "ray") for key in row if "stale" in key]


def doomed(folder: Path, address: str, count: int) -> None:
    """A driver that is killed when it is to write so many rows: others are being sampled then."""
    append, calls = JsonLines.append, 0

    def deadly(self: JsonLines, *rows: Any) -> None:
        nonlocal calls
        calls += self.path.name == "metrics.jsonl"
        if calls == count:
            os.kill(os.getpid(), signal.SIGKILL)
        append(self, *rows)

    JsonLines.append = deadly  # type: ignore[method-assign]
    start(planned({"turns": 8, "placement": {"address": address}}), folder, quiet=True)


def test_a_killed_run_resumes_to_the_same_bits_though_a_sampler_dies_too(
    lagged: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "run"
    address = ray.get_runtime_context().gcs_address
    process = multiprocessing.get_context("spawn").Process(target=doomed, args=(folder, address, 7))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL and [row["turn"] for row in rows_of(folder)] == list(range(6))
    draw, calls = PublishedSampler.draw, []

    def deadly(self: PublishedSampler, *args: Any) -> list[Completion]:
        """Kills the sampler when it is to play turn 7, with the weights after turn 5, while turn 6 is learned."""
        calls.append(self.version("generator"))
        if len(calls) == 3:
            os.kill(pid(self.ray.samplers["generator"][0].group), signal.SIGKILL)
        return draw(self, *args)

    monkeypatch.setattr(PublishedSampler, "draw", deadly)
    with pytest.warns(UserWarning, match="samplers of generator: .*starting again"):
        milonga.resume(folder, quiet=True)
    assert calls == [4, 4, 5, 6]
    found, expected = files_of(folder), files_of(lagged)
    assert found.keys() == expected.keys() and [name for name in found if found[name] != expected[name]] == []


TANGO: dict[str, Any] = {
    "recipe": "tango",
    "turns": 6,
    "binding": "lora",
    "policies": {agent: {"lr": 1e-3} for agent in ("generator", "verifier")},
    "options": {"warmup": 1, "n_generator": 3, "n_verifier": 2},
    "eval": {"every": 4},
    "keep": {"checkpoint_every": 100},
}


def test_prefetching_stops_where_the_next_turn_must_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tango on adapters with a lag of two: the verifier; three turns of the generator; two of the verifier; one of the
    generator, and an evaluation; two more."""
    spans: list[list[int]] = []
    list_turns = Loop.list_prefetchable_turns

    def noted(self: Loop, *args: Any) -> Any:
        turns = list(list_turns(self, *args))
        spans.append([place.turn + 1 for place, _ in turns])
        return iter(turns)

    monkeypatch.setattr(Loop, "list_prefetchable_turns", noted)
    start(planned(TANGO, staleness=2), tmp_path / "run", quiet=True)
    assert spans == [[1], [2, 3, 4], [5, 6], [7], [8, 9]]
    rows = {row["turn"]: row for row in rows_of(tmp_path / "run")}
    assert [rows[n][f"learn/{rows[n]['learner']}/staleness"] for n in range(1, 10)] == [0, 0, 1, 2, 0, 1, 0, 0, 1]
    kept = read_rollouts(tmp_path / "run" / "rollouts" / "turn-000006.parquet")
    assert {(t["policy"], t["version"]) for t in kept} == {("generator", 3), ("verifier", 1)}
    assert {tuple(t["versions"]) for t in kept} == {(("generator", 3), ("verifier", 1))}, "a solution has its judge's too"


def test_it_still_learns(tmp_path: Path) -> None:
    """As much as it must without a lag (the case of `grpo` in cases.py, two turns longer)."""
    case = CASES["grpo"]
    report = start(resolve([case.settings, RAY, {"recipe": "grpo", "turns": 8, "staleness": 1}]), tmp_path / "run", quiet=True)
    accuracy = report["generator"]["accuracy"]
    assert accuracy["end"] > accuracy["start"] + case.margin, accuracy
