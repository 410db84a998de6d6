"""The engine for many machines. The driver (this process) holds tokenizers and the ledger; weights live in workers.

Per policy a group of learners, which shard its weights, learn and score; and samplers with whole weights, or none, and then the
learners sample in turns. Policies with adapters on one base share samplers.

Invariants: recipes and the loop see what the local engine shows; results do not depend on the number of workers but for the
order of sums; workers that are lost are replaced, and what they had done is done again from the last saved state, bit by bit,
so that a turn is neither lost nor counted twice; samplers sample from what was published, which a probe has compared.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import ray
from numpy.typing import NDArray

from milonga.config import PlacementSection, PolicySection, VllmSection
from milonga.engine.base import Completion, Decoding, Engine, History, LearnReport, Ledger, Request
from milonga.engine.lagged import Lagged
from milonga.engine.local.codec import Codec
from milonga.engine.local.engine import sampled_together
from milonga.engine.local.models import load_tokenizer
from milonga.engine.ray import cluster, layout
from milonga.engine.ray.group import Call, Group, Lost
from milonga.engine.ray.worker import Charges, Facts, Setup
from milonga.errors import ConfigError, UserError, nearest
from milonga.types import Floats, Lesson, Problem, Prompt, Reading, Trace, Traces

TOLERANCES = {"torch.float32": 1e-4, "torch.bfloat16": 0.2}
"""Mean absolute difference of log-probabilities that the probe allows."""
NOTHING = -1
"""The stamp of no version."""
AT_START = ("live", "ref", "ema")
"""Versions that a sampler has when it starts. Snapshots it must be given, those of an earlier run too."""
DRAFT = ".draft"
"""How a checkpoint's folder is called while it is written; it loses that when it is complete."""


@dataclass
class Learners:
    """The workers that hold one policy, and what it takes to make them again: a saved state, and what was done since."""

    policy: str
    group: Group
    saved: tuple[Path, Mapping[str, Any]] | None = None
    journal: list[tuple[str, tuple[Any, ...]]] = field(default_factory=list)

    def do(self, method: str, *args: Any, changes: bool = False, fetch: bool = True) -> tuple[list[Any], list[Charges]]:
        """One call of all workers, however often they must be replaced: what each found (or where that lies), and its cost."""
        for attempt in range(self.group.placement.retries + 1):
            try:
                if not self.group.alive:
                    self.rebuild()
                call = self.group.submit(method, *args)
                charges = self.group.finish(call)
                found = self.group.take(call) if fetch else call.values
                break
            except Lost as lost:
                lament(self.group, lost, attempt)
        if changes:
            self.journal.append((method, args))
        return found, charges

    def rebuild(self) -> None:
        """Workers as the last ones were, or none. What is done again was counted before."""
        try:
            self.group.start()
            if self.saved is not None:
                folder, state = self.saved
                self.group.finish(self.group.submit("load", self.policy, settled(folder), state))
            for method, args in self.journal:
                self.group.finish(self.group.submit(method, *args))
        except BaseException:
            self.group.stop()  # half of what was done is nothing to go on from
            raise

    def settle(self, folder: Path, state: Mapping[str, Any]) -> None:
        """From now on this is the state to go back to."""
        self.saved, self.journal = (folder, state), []


@dataclass
class Sampler:
    """A worker that samples, and which version of each policy@tag it holds; what is not listed is as at the start."""

    group: Group
    holds: dict[tuple[str, str], int] = field(default_factory=dict)


@dataclass(frozen=True)
class Handed:
    """Weights for samplers: where they lie, and what the learners compute with them. Nobody need ask the learners again."""

    stamp: int
    weights: Any
    probe: Floats


class Published(Lagged):
    """What samplers were to hold at one moment."""

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
        limit: int = 1024,
        vllm: VllmSection | None = None,
        threads: int | None = None,
        staleness: int = 0,
    ) -> None:
        self.sections, self.placement, self.vllm = policies, placement, vllm
        self.rows, self.limit, self.threads = rows, limit, threads
        self.staleness = staleness
        """Turns that may be played while others are learned: samplers are then busy when something is published."""
        self.ledger = Ledger()
        self.codecs = {name: Codec(load_tokenizer(section.model), section.chat) for name, section in policies.items()}
        self.versions = dict.fromkeys(policies, 0)
        self.stamps: dict[tuple[str, str], int] = {}
        """How often policy@tag has changed."""
        self.sent: dict[tuple[str, str], Handed] = {}
        """Weights that were gathered: the next sampler need not ask for them again."""
        sizes = {name: layout.size_of(section) for name, section in policies.items()}
        self.learners: dict[str, Learners] = {}
        self.samplers: dict[str, list[Sampler]] = {}
        self.started = cluster.connect(placement, layout.store_bytes(sizes, staleness))
        try:
            machines = layout.machines()
            layout.place(layout.needs_of(policies, sizes, placement, device, vllm, machines), machines)
            gpus = {name: layout.gpus_of(placement.of(name), device, machines) for name in policies}
            self.learners = {n: Learners(n, self._group(f"learners of {n}", [n], gpus[n])) for n in policies}
            self.samplers = self._make_samplers(gpus)
            self._start_all()
        except BaseException:
            self.close()
            raise

    def _group(self, title: str, policies: Sequence[str], gpus: float, alone: bool = False) -> Group:
        placement = self.placement.of(policies[0]).model_copy(update={"gpus": gpus})
        threads = self.threads or max(1, int(placement.cpus))
        sections = {name: self.sections[name] for name in policies}
        transfer = layout.transfer_of(self.sections[policies[0]], placement) if alone else None
        setup = Setup(sections, "cuda" if gpus else "cpu", self.rows, self.limit, self.vllm, threads, 0 < gpus < 1, transfer)
        return Group(title, setup, 1 if alone else placement.learners, placement)

    def _make_samplers(self, gpus: Mapping[str, float]) -> dict[str, list[Sampler]]:
        """By policy; those with adapters on one base have the same."""
        made: dict[str, list[Sampler]] = {name: [] for name in self.sections}
        for names in sampled_together(self.sections):
            count = max(self.placement.of(name).samplers for name in names)
            title = f"samplers of {', '.join(names)}"
            group = [Sampler(self._group(title, names, gpus[names[0]], alone=True)) for _ in range(count)]
            made |= dict.fromkeys(names, group)
        return made

    def _start_all(self) -> None:
        """All side by side; whoever is lost on the way is started again."""
        for group in self._groups():
            group.begin()
        for group in self._groups():
            try:
                group.complete()
            except Lost as lost:
                lament(group, lost, 0)
        for learners in self.learners.values():
            learners.do("checkpoint_bytes")
        self.facts: dict[str, Facts] = {name: learners.group.facts[name] for name, learners in self.learners.items()}

    def _groups(self) -> list[Group]:
        shared = {id(s): s.group for samplers in self.samplers.values() for s in samplers}
        return [learners.group for learners in self.learners.values()] + list(shared.values())

    # Text: no weights are needed for it.

    def _codec(self, policy: str) -> Codec:
        if policy not in self.codecs:
            raise ConfigError(f"unknown policy '{policy}': {nearest(policy, self.codecs)}")
        return self.codecs[policy]

    def encode_all(self, policy: str, prompts: Sequence[Prompt]) -> list[NDArray[np.int64]]:
        return self._codec(policy).encode_all(prompts)

    def follow_all(self, policy: str, prompts: Sequence[Prompt], last: Sequence[int]) -> list[NDArray[np.int64]]:
        return self._codec(policy).follow_all(prompts, last)

    def transcribe(self, policy: str, text: str, end: bool = True) -> Completion:
        return self._codec(policy).transcribe(text, end)

    def same_tokens(self, policy: str, other: str) -> bool:
        mine, theirs = (self._codec(name).tokenizer.get_vocab() for name in (policy, other))
        return bool(mine == theirs)

    def context_limit(self, policy: str) -> int:
        self._codec(policy)
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
        """Requests with one context stay together: it is computed, and charged, once. Nothing is kept of conversations."""
        return self.sample_from(policy, requests, decoding, tag, lambda: self._handed(policy, tag), self.ledger)

    def sample_from(
        self,
        policy: str,
        requests: Sequence[Request],
        decoding: Decoding,
        tag: str,
        handed: Callable[[], Handed | None],
        ledger: Ledger,
    ) -> list[Completion]:
        """The same, from what was handed over (None: what samplers start with), and charged there. Where there are samplers,
        nothing but them is touched: it may go on beside learning."""
        self._codec(policy)
        if self.sections[policy].kind == "scalar":
            raise ValueError(f"policy '{policy}' has a value head: it judges, and cannot be sampled from")
        samplers = self.samplers[policy]
        parts = split(requests, len(samplers) or self.learners[policy].group.size)
        asked = [[requests[i] for i in part] for part in parts]
        if samplers:
            found = self._by_samplers(policy, asked, decoding, tag, handed, ledger)
        else:
            found, charges = self.learners[policy].do("sample", policy, asked, decoding, tag)
            charge(ledger, charges)
        out: dict[int, Completion] = {}
        for part, done in zip(parts, found, strict=True):
            out |= dict(zip(part, done, strict=True))
        return [out[i] for i in range(len(requests))]

    def _by_samplers(
        self,
        policy: str,
        asked: Sequence[list[Request]],
        decoding: Decoding,
        tag: str,
        handed: Callable[[], Handed | None],
        ledger: Ledger,
    ) -> list[list[Completion]]:
        """All samplers at once; the part of one that is lost is asked of the one that takes its place, with the same keys."""
        samplers = self.samplers[policy]
        found: dict[int, list[Completion]] = {i: [] for i, part in enumerate(asked) if not part}
        for attempt in range(self.placement.retries + 1):
            calls: dict[int, Call] = {}
            missing = [i for i in range(len(asked)) if i not in found]
            for i in missing:
                self._supplied(samplers[i], policy, tag, handed)
                calls[i] = samplers[i].group.submit("sample", policy, [asked[i]], decoding, tag)
            for i, call in calls.items():
                try:
                    charges = samplers[i].group.finish(call)
                    found[i] = samplers[i].group.take(call)[0]
                    charge(ledger, charges)
                except Lost as lost:
                    lament(samplers[i].group, lost, attempt)
            if len(found) == len(asked):
                break
        return [found[i] for i in range(len(asked))]

    def _supplied(self, sampler: Sampler, policy: str, tag: str, handed: Callable[[], Handed | None]) -> None:
        """See that a sampler is there, and holds what was handed over as policy@tag."""
        key = (policy, tag)
        for attempt in range(self.placement.retries + 1):
            try:
                if not sampler.group.alive:
                    sampler.group.start()
                    sampler.holds = {}
                backend = sampler.group.setup.transfer
                if backend is not None and tag == "live":
                    self._transferred(sampler, policy, backend)
                    return
                if backend is not None:
                    sampler.holds[policy, "live"] = NOTHING  # there vLLM holds one version at a time
                wanted = handed()
                if wanted is not None and sampler.holds.get(key, 0) != wanted.stamp:
                    sampler.group.finish(sampler.group.submit("hold", policy, tag, wanted.weights))
                    self._compare(sampler, policy, tag, wanted.probe)
                    sampler.holds[key] = wanted.stamp
                return
            except Lost as lost:
                self.sent.pop(key, None)  # it may be these that were lost
                lament(sampler.group, lost, attempt)

    def _transferred(self, sampler: Sampler, policy: str, backend: str) -> None:
        """Live weights by vLLM's own transfer. One that breaks off leaves both ends waiting: both are made again."""
        wanted, learners = self.stamps.get((policy, "live"), 0), self.learners[policy]
        if sampler.holds.get((policy, "live"), 0) == wanted:
            return
        if not learners.group.alive:
            learners.rebuild()
        number, (worker,) = self.samplers[policy].index(sampler), sampler.group.workers
        learners.group.finish(learners.group.submit("send", policy, number, worker, backend))
        self._compare(sampler, policy, "live", learners.do("probe", policy, "live")[0][0])
        sampler.holds[policy, "live"] = wanted

    def _handed(self, policy: str, tag: str) -> Handed | None:
        """Policy@tag as the learners have it now; None where it is as at the start."""
        key, stamp = (policy, tag), self.stamps.get((policy, tag), 0 if tag in AT_START else 1)
        if not stamp:
            return None
        found = self.sent.get(key)  # once: who plays ahead may forget it meanwhile
        if found is None or found.stamp != stamp:
            values, _ = self.learners[policy].do("weights", policy, tag, fetch=False)
            found = self.sent[key] = Handed(stamp, values[0], self.learners[policy].do("probe", policy, tag)[0][0])
        return found

    def _compare(self, sampler: Sampler, policy: str, tag: str, ours: Floats) -> None:
        """Stop where a sampler does not compute what the learners compute."""
        call = sampler.group.submit("probe", policy, tag)
        sampler.group.finish(call)
        theirs = sampler.group.take(call)[0]
        apart = np.abs(theirs - ours)
        allowed = self.placement.tolerance or TOLERANCES[self.facts[policy].dtype]
        if not apart.mean() <= allowed:  # so that NaN is refused too
            raise UserError(
                f"policy '{policy}': its samplers do not compute what its learners compute. Over {len(apart)} fixed tokens the "
                f"log-probabilities differ by {apart.mean():.2g} on average and {apart.max():.2g} at most, and {allowed:.2g} "
                "on average is allowed (placement.tolerance)"
            )

    def frozen(self) -> Engine:
        """Gathers what was published and not yet handed over: samplers then need no learner."""
        return Published(self, {policy: self._handed(policy, "live") for policy in self.samplers if self.samplers[policy]})

    # Learning.

    def score(self, policy: str, traces: Traces, tag: str = "live") -> list[Floats]:
        return self._read("score", policy, traces, tag)

    def values(self, policy: str, traces: Traces, tag: str = "live") -> list[Floats]:
        return self._read("values", policy, traces, tag)

    def _read(self, method: str, policy: str, traces: Traces, tag: str) -> list[Floats]:
        self._codec(policy)
        values, charges = self.learners[policy].do(method, policy, ray.put(bare(traces)), tag)
        charge(self.ledger, charges)
        return [array.copy() for array in values[0]]  # what lies in the store cannot be written to

    def learn(self, lesson: Lesson) -> LearnReport:
        self._codec(lesson.policy)
        sent = ray.put(replace(lesson, traces=bare(lesson.traces)))
        values, charges = self.learners[lesson.policy].do("learn", sent, changes=True)
        charge(self.ledger, charges)
        report: LearnReport = values[0]
        return report

    def publish(self, policy: str) -> int:
        """Count the version, move the average, and hand the weights to the samplers."""
        self._codec(policy)
        self._change("publish", policy)
        self.versions[policy] += 1
        self._stamp(policy, "live", "ema")
        if not self.staleness:  # else they are busy, and take it when they are next asked
            for sampler in self.samplers[policy]:
                self._supplied(sampler, policy, "live", lambda: self._handed(policy, "live"))
        return self.versions[policy]

    def version(self, policy: str) -> int:
        self._codec(policy)
        return self.versions[policy]

    def snapshot(self, policy: str, tag: str) -> None:
        self._codec(policy)
        self._change("snapshot", policy, tag)
        self._stamp(policy, tag)

    def copy(self, policy: str, source: str, tag: str = "live") -> None:
        for name in (policy, source):
            self._codec(name)
        if policy == source:
            self._change("copy", policy, tag)
        else:
            if self.facts[policy].shapes != self.facts[source].shapes:
                raise ConfigError(f"policy '{policy}' cannot take the weights of '{source}': their shapes differ")
            values, _ = self.learners[source].do("weights", source, tag)
            # Kept by this process: the source may be lost before the copy has to be made again.
            self._change("take", policy, ray.put(values[0]))
        self._stamp(policy, "live")

    def _change(self, method: str, policy: str, *args: Any) -> None:
        self.learners[policy].do(method, policy, *args, changes=True)

    def _stamp(self, policy: str, *tags: str) -> None:
        for tag in tags:
            self.stamps[policy, tag] = self.stamps.get((policy, tag), 1) + 1

    # Files. They are written and read by workers: all machines must see the run folder.

    def save(self, folder: Path) -> None:
        state: dict[str, Any] = {"ledger": self.ledger.to_json(), "policies": {}}
        for name, learners in self.learners.items():
            values, _ = learners.do("save", name, folder.resolve())
            state["policies"][name] = values[0]
        (folder / "engine.json").write_text(json.dumps(state, indent=1))
        for name, learners in self.learners.items():
            learners.settle(folder.resolve(), state["policies"][name])

    def load(self, folder: Path) -> None:
        state = json.loads((folder / "engine.json").read_text())
        self.ledger.from_json(state["ledger"])
        for name, learners in self.learners.items():
            saved = state["policies"][name]
            learners.do("load", name, folder.resolve(), saved)
            learners.settle(folder.resolve(), saved)
            self.versions[name] = saved["version"]
        known = {(policy, tag) for policy in self.sections for tag in ("live", "ema")} | self.stamps.keys()
        held = {key for samplers in self.samplers.values() for sampler in samplers for key in sampler.holds}
        for policy, tag in known | held:
            self._stamp(policy, tag)

    def export(self, policy: str, folder: Path, merged: bool = False) -> None:
        self._codec(policy)
        folder.mkdir(parents=True, exist_ok=True)
        self.learners[policy].do("export", policy, folder.resolve(), merged)

    def checkpoint_bytes(self) -> int:
        return sum(int(learners.do("checkpoint_bytes")[0][0]) for learners in self.learners.values())

    def close(self) -> None:
        """End all workers; and the cluster, where it was started for this engine."""
        if ray.is_initialized():
            for group in self._groups():
                group.stop()
        if self.started:
            ray.shutdown()
            self.started = False


def preview(
    policies: Mapping[str, PolicySection], placement: PlacementSection, device: str, vllm: VllmSection | None
) -> list[str]:
    """Who would go where: on the cluster that would be joined, or on this machine, where Ray need not be started for it."""
    sizes = {name: layout.size_of(section) for name, section in policies.items()}
    machines = [layout.this_machine()]
    if cluster.address_of(placement) is not None:
        joined = not ray.is_initialized()
        cluster.connect(placement, 0)
        machines = layout.machines()
        if joined:
            ray.shutdown()
    return layout.lines(layout.needs_of(policies, sizes, placement, device, vllm, machines), machines)


def lament(group: Group, lost: Lost, attempt: int) -> None:
    """Say what happened, or stop where it has happened too often."""
    group.stop()
    most = group.placement.retries
    if attempt >= most:
        raise UserError(
            f"{group.name}: lost {attempt + 1} times in a row, and {most} retries are allowed (placement.retries): {lost}; "
            "what was saved goes on with 'milonga resume'"
        ) from None
    warnings.warn(f"{group.name}: {lost}; starting again ({attempt + 1} of {most})", stacklevel=2)


def charge(ledger: Ledger, charges: Sequence[Charges]) -> None:
    """What workers used."""
    for worker in charges:
        for policy, used in worker.items():
            kinds = {kind: amount for kind, amount in used.items() if kind != "flops" and amount}
            for kind, tokens in kinds.items():
                ledger.charge(policy, kind, int(tokens), 0.0)
            ledger.charge(policy, "learn", 0, used["flops"])


def settled(folder: Path) -> Path:
    """Where a checkpoint lies by now: it was saved under a draft's name."""
    return folder if folder.exists() else folder.with_name(folder.name.removesuffix(DRAFT))


def split(requests: Sequence[Request], count: int) -> list[list[int]]:
    """Places of the requests in `count` parts of about the same length, those with one context in one part; in order."""
    alike: dict[bytes, list[int]] = {}
    for i, request in enumerate(requests):
        alike.setdefault(request.context.tobytes(), []).append(i)
    parts: list[list[int]] = [[] for _ in range(count)]
    for places in alike.values():
        min(parts, key=len).extend(places)
    return [sorted(part) for part in parts]


def bare(traces: Traces) -> Traces:
    """What learners need of traces: ids, what is trained of them, how it was sampled. No texts travel."""
    nothing, unread = Problem("", "", ""), Reading(None, 0.0)
    return Traces(
        Trace(t.id, t.seat, nothing, t.ids, t.segments, t.logprobs, "", unread, origin=t.origin, temperature=t.temperature)
        for t in traces
    )
