"""The engine for many machines. The driver (this process) holds tokenizers and the ledger; weights live in workers.

Per policy a group of learners, which shard its weights, learn and score; and samplers with whole weights, or none, and then the
learners sample in turns. Policies with adapters on one base share samplers.

Invariants: recipes and the loop see what the local engine shows; results do not depend on the number of workers but for the
order of sums; workers that are lost are replaced, and what they had done is done again from the last saved state, bit by bit,
so that a turn is neither lost nor counted twice; samplers sample from what was published, which a probe has compared.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import ray
from numpy.typing import NDArray

from milonga.config import PlacementSection, PolicySection, VllmSection
from milonga.engine.base import Completion, Decoding, Engine, History, LearnReport, Ledger, Request, read_saved_engine
from milonga.engine.local.codec import Codec, load_codecs
from milonga.engine.local.engine import group_by_sampler
from milonga.engine.pinned import PinnedSampler
from milonga.engine.ray import cluster, layout
from milonga.engine.ray.group import Group, Lost, add_charges, report_loss
from milonga.engine.ray.learners import Learners, strip_rollouts
from milonga.engine.ray.samplers import Handed, Handover, Sampler, Wanted, split_requests
from milonga.engine.ray.worker import Facts, Setup
from milonga.errors import ConfigError, suggest_name
from milonga.types import Floats, Prompt, Rollouts, TrainBatch


class PublishedSampler(PinnedSampler):
    """A view of the weights that were published at one moment, for asynchronous rollouts."""

    def __init__(self, engine: RayEngine, handed: Mapping[str, Handed | None]) -> None:
        super().__init__(engine, engine.versions)
        self.ray, self.handed = engine, handed

    def draw(self, policy: str, requests: Sequence[Request], decoding: Decoding) -> list[Completion]:
        return self.ray.sample_from(policy, requests, decoding, "live", lambda: self.handed[policy], self.ledger)


class RayEngine(Engine):
    """Policies in workers that Ray places."""

    def __init__(
        self,
        policies: Mapping[str, PolicySection],
        placement: PlacementSection,
        device: str = "auto",
        rows: int = 512,
        vllm: VllmSection | None = None,
        threads: int | None = None,
        staleness: int = 0,
    ) -> None:
        self.sections, self.placement, self.vllm = policies, placement, vllm
        self.rows, self.threads = rows, threads
        self.staleness = staleness
        """Turns by which rollouts may be ahead of learning: samplers are then busy when weights are published."""
        self.ledger = Ledger()
        self.codecs = load_codecs(policies)
        self.versions = dict.fromkeys(policies, 0)
        sizes = {name: layout.compute_size(section) for name, section in policies.items()}
        self.learners: dict[str, Learners] = {}
        self.samplers: dict[str, list[Sampler]] = {}
        self.started = cluster.connect(placement, layout.store_bytes(sizes, staleness))
        try:
            machines = layout.list_machines()
            layout.place_workers(layout.compute_needs(policies, sizes, placement, device, vllm, machines), machines)
            gpus = {name: layout.choose_gpus(placement.for_policy(name), device, machines) for name in policies}
            self.learners = {n: Learners(n, self._make_group(f"learners of {n}", [n], gpus[n])) for n in policies}
            self.samplers = self._make_samplers(gpus)
            self.handover = Handover(self.samplers, self.learners, placement)
            self._start_all()
        except BaseException:
            self.close()
            raise

    def _make_group(self, title: str, policies: Sequence[str], gpus: float, alone: bool = False) -> Group:
        placement = self.placement.for_policy(policies[0]).model_copy(update={"gpus": gpus})
        threads = self.threads or max(1, int(placement.cpus))
        sections = {name: self.sections[name] for name in policies}
        transfer = layout.choose_transfer(self.sections[policies[0]], placement) if alone else None
        setup = Setup(sections, "cuda" if gpus else "cpu", self.rows, self.vllm, threads, 0 < gpus < 1, transfer)
        return Group(title, setup, 1 if alone else placement.learners, placement)

    def _make_samplers(self, gpus: Mapping[str, float]) -> dict[str, list[Sampler]]:
        """Make the samplers of each policy; policies with adapters on one base share them."""
        made: dict[str, list[Sampler]] = {name: [] for name in self.sections}
        for names in group_by_sampler(self.sections):
            count = max(self.placement.for_policy(name).samplers for name in names)
            title = f"samplers of {', '.join(names)}"
            group = [Sampler(self._make_group(title, names, gpus[names[0]], alone=True)) for _ in range(count)]
            made |= dict.fromkeys(names, group)
        return made

    def _start_all(self) -> None:
        """Start all groups in parallel; lost workers are started again."""
        for group in self._list_groups():
            group.begin()
        for group in self._list_groups():
            try:
                group.complete()
            except Lost as lost:
                report_loss(group, lost, 0)
        for learners in self.learners.values():
            learners.call_workers("checkpoint_bytes")
        self.facts: dict[str, Facts] = {name: learners.group.facts[name] for name, learners in self.learners.items()}

    def _list_groups(self) -> list[Group]:
        shared = {id(s): s.group for samplers in self.samplers.values() for s in samplers}
        return [learners.group for learners in self.learners.values()] + list(shared.values())

    # Text: no weights are needed for it.

    def _get_codec(self, policy: str) -> Codec:
        if policy not in self.codecs:
            raise ConfigError(f"unknown policy '{policy}': {suggest_name(policy, self.codecs)}")
        return self.codecs[policy]

    def encode_all(self, policy: str, prompts: Sequence[Prompt]) -> list[NDArray[np.int64]]:
        return self._get_codec(policy).encode_all(prompts)

    def encode_next_turns(self, policy: str, prompts: Sequence[Prompt], last: Sequence[int]) -> list[NDArray[np.int64]]:
        return self._get_codec(policy).encode_next_turns(prompts, last)

    def encode_completion(self, policy: str, text: str, end: bool = True) -> Completion:
        return self._get_codec(policy).encode_completion(text, end)

    def uses_chat(self, policy: str) -> bool:
        return self.codecs[policy].chat

    def has_same_vocabulary(self, policy: str, other: str) -> bool:
        mine, theirs = (self._get_codec(name).tokenizer.get_vocab() for name in (policy, other))
        return bool(mine == theirs)

    def context_limit(self, policy: str) -> int:
        self._get_codec(policy)
        return self.facts[policy].context

    # Sampling.

    def sample(
        self,
        policy: str,
        requests: Sequence[Request],
        decoding: Decoding,
        tag: str = "live",
        history: History | None = None,
    ) -> list[Completion]:
        """Sample completions. Requests with one prompt go to one worker: it is computed, and charged, once. There is no prefix
        cache between calls."""
        return self.sample_from(policy, requests, decoding, tag, lambda: self.handover.get_newest(policy, tag), self.ledger)

    def sample_from(
        self,
        policy: str,
        requests: Sequence[Request],
        decoding: Decoding,
        tag: str,
        wanted: Wanted,
        ledger: Ledger,
    ) -> list[Completion]:
        """Sample from the weights that `wanted` returns, and charge `ledger`. If there are samplers, no learner is called,
        unless `wanted` does: it can run while learning goes on."""
        self._get_codec(policy)
        if self.sections[policy].kind == "scalar":
            raise ValueError(f"policy '{policy}' has a value head: it judges, and cannot be sampled from")
        samplers = self.samplers[policy]
        parts = split_requests(requests, len(samplers) or self.learners[policy].group.size)
        asked = [[requests[i] for i in part] for part in parts]
        if samplers:
            found = self.handover.sample(policy, asked, decoding, tag, wanted, ledger)
        else:
            found, charges = self.learners[policy].call_workers("sample", policy, asked, decoding, tag)
            add_charges(ledger, charges)
        out: dict[int, Completion] = {}
        for part, done in zip(parts, found, strict=True):
            out |= dict(zip(part, done, strict=True))
        return [out[i] for i in range(len(requests))]

    def sampling_view(self) -> PublishedSampler:
        """A view of the published weights. It gathers those that samplers do not have yet, so that they need no learner."""
        return PublishedSampler(
            self, {policy: self.handover.get_newest(policy) for policy in self.samplers if self.samplers[policy]}
        )

    # Learning.

    def score(self, policy: str, rollouts: Rollouts, tag: str = "live") -> list[Floats]:
        return self._score_rollouts("score", policy, rollouts, tag)

    def values(self, policy: str, rollouts: Rollouts, tag: str = "live") -> list[Floats]:
        return self._score_rollouts("values", policy, rollouts, tag)

    def _score_rollouts(self, method: str, policy: str, rollouts: Rollouts, tag: str) -> list[Floats]:
        self._get_codec(policy)
        values, charges = self.learners[policy].call_workers(method, policy, ray.put(strip_rollouts(rollouts)), tag)
        add_charges(self.ledger, charges)
        return [array.copy() for array in values[0]]  # what lies in the store cannot be written to

    def learn(self, train_batch: TrainBatch) -> LearnReport:
        self._get_codec(train_batch.policy)
        sent = ray.put(replace(train_batch, rollouts=strip_rollouts(train_batch.rollouts)))
        values, charges = self.learners[train_batch.policy].call_workers("learn", sent, changes=True)
        add_charges(self.ledger, charges)
        report: LearnReport = values[0]
        return report

    def publish(self, policy: str) -> int:
        """Count the version, move the average, and hand the weights to the samplers."""
        self._get_codec(policy)
        self._change("publish", policy)
        self.versions[policy] += 1
        self.handover.mark_changed(policy, "live", "ema")
        if not self.staleness:  # else they are busy, and take it when they are next asked
            self.handover.supply(self.samplers[policy], policy, "live", lambda: self.handover.get_newest(policy))
        return self.versions[policy]

    def version(self, policy: str) -> int:
        self._get_codec(policy)
        return self.versions[policy]

    def snapshot(self, policy: str, tag: str) -> None:
        self._get_codec(policy)
        self._change("snapshot", policy, tag)
        self.handover.mark_changed(policy, tag)

    def copy(self, policy: str, source: str, tag: str = "live") -> None:
        for name in (policy, source):
            self._get_codec(name)
        if policy == source:
            self._change("copy", policy, tag)
        else:
            if self.facts[policy].shapes != self.facts[source].shapes:
                raise ConfigError(f"policy '{policy}' cannot take the weights of '{source}': their shapes differ")
            values, _ = self.learners[source].call_workers("weights", source, tag)
            # Kept by this process: the source may be lost before the copy has to be made again.
            self._change("take", policy, ray.put(values[0]))
        self.handover.mark_changed(policy, "live")

    def _change(self, method: str, policy: str, *args: Any) -> None:
        self.learners[policy].call_workers(method, policy, *args, changes=True)

    # Files. They are written and read by workers: all machines must see the run folder.

    def save(self, folder: Path) -> None:
        state: dict[str, Any] = {"ledger": self.ledger.to_json(), "policies": {}}
        for name, learners in self.learners.items():
            values, _ = learners.call_workers("save", name, folder.resolve())
            state["policies"][name] = values[0]
        (folder / "engine.json").write_text(json.dumps(state, indent=1))
        for name, learners in self.learners.items():
            learners.mark_saved(folder.resolve(), state["policies"][name])

    def load(self, folder: Path) -> None:
        state = read_saved_engine(folder, self.learners)
        self.ledger.from_json(state.ledger)
        for name, learners in self.learners.items():
            saved = asdict(state.policies[name])
            learners.call_workers("load", name, folder.resolve(), saved)
            learners.mark_saved(folder.resolve(), saved)
            self.versions[name] = saved["version"]
        self.handover.mark_all_changed()

    def export(self, policy: str, folder: Path, merged: bool = False) -> None:
        self._get_codec(policy)
        folder.mkdir(parents=True, exist_ok=True)
        self.learners[policy].call_workers("export", policy, folder.resolve(), merged)

    def checkpoint_bytes(self) -> int:
        return sum(int(learners.call_workers("checkpoint_bytes")[0][0]) for learners in self.learners.values())

    def close(self) -> None:
        """End all workers; and the cluster, where it was started for this engine."""
        if ray.is_initialized():
            for group in self._list_groups():
                group.stop()
        if self.started:
            ray.shutdown()
            self.started = False


def preview(
    policies: Mapping[str, PolicySection], placement: PlacementSection, device: str, vllm: VllmSection | None
) -> list[str]:
    """Describe where workers would be placed: on the cluster that would be joined, or on this machine without starting Ray."""
    sizes = {name: layout.compute_size(section) for name, section in policies.items()}
    machines = [layout.describe_this_machine()]
    if cluster.find_address(placement) is not None:
        joined = not ray.is_initialized()
        cluster.connect(placement, 0)
        machines = layout.list_machines()
        if joined:
            ray.shutdown()
    return layout.format_lines(layout.compute_needs(policies, sizes, placement, device, vllm, machines), machines)
