"""Samplers, and how they get the weights that they sample from.

Invariants: a sampler samples from what was handed over, after a probe has shown that it computes what the learners compute; all
samplers that lack something are given it at once; what a lost one was asked is asked of the one that takes its place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from milonga.config import PlacementSection
from milonga.engine.base import Completion, Decoding, Ledger, Request
from milonga.engine.ray.group import Group, Lost, add_charges, report_loss
from milonga.engine.ray.learners import Learners
from milonga.engine.ray.worker import Charges
from milonga.errors import UserError
from milonga.types import Floats

TOLERANCES = {"torch.float32": 1e-4, "torch.bfloat16": 0.2}
"""Mean absolute difference of log-probabilities that the probe allows."""
NOTHING = -1
"""The stamp of no version."""
AT_START = ("live", "ref", "ema")
"""Versions that a sampler has when it starts. Snapshots it must be given, those of an earlier run too."""


@dataclass(eq=False)
class Sampler:
    """A worker that samples, and which version of each policy@tag it holds; what is not listed is as at the start."""

    group: Group
    loaded: dict[tuple[str, str], int] = field(default_factory=dict)


@dataclass(frozen=True)
class Handed:
    """Weights for samplers: a reference to them, and the learners' log-probabilities of the probe."""

    stamp: int
    weights: Any
    probe: Floats


Wanted = Callable[[], Handed | None]
"""Returns the weights to sample from; None: those that samplers start with."""


class Handover:
    """Tracks which weights each sampler holds, and gives it those that it should hold."""

    def __init__(
        self, samplers: Mapping[str, list[Sampler]], learners: Mapping[str, Learners], placement: PlacementSection
    ) -> None:
        self.samplers, self.learners, self.placement = samplers, learners, placement
        self.stamps: dict[tuple[str, str], int] = {}
        """How often policy@tag has changed."""
        self.sent: dict[str, Handed] = {}
        """The newest live weights that were gathered: a sampler that takes another's place need not ask for them again. Of
        other versions nothing is kept: there may be many."""

    def mark_changed(self, policy: str, *tags: str) -> None:
        for tag in tags:
            self.stamps[policy, tag] = self.stamps.get((policy, tag), 1) + 1

    def mark_all_changed(self) -> None:
        """Everything may have changed."""
        self.sent.clear()
        always = {(policy, tag) for policy in self.learners for tag in ("live", "ema")}
        held = {key for samplers in self.samplers.values() for sampler in samplers for key in sampler.loaded}
        for policy, tag in always | held | self.stamps.keys():
            self.mark_changed(policy, tag)

    def get_newest(self, policy: str, tag: str = "live") -> Handed | None:
        """Policy@tag as the learners have it now; None where it is as at the start."""
        stamp = self.stamps.get((policy, tag), 0 if tag in AT_START else 1)
        if not stamp:
            return None
        found = self.sent.get(policy) if tag == "live" else None  # once: the rollout thread may forget it meanwhile
        if found is None or found.stamp != stamp:
            values, _ = self.learners[policy].call_workers("weights", policy, tag, fetch=False)
            found = Handed(stamp, values[0], self.learners[policy].call_workers("probe", policy, tag)[0][0])
            if tag == "live":
                self.sent[policy] = found
        return found

    def sample(
        self, policy: str, asked: Sequence[list[Request]], decoding: Decoding, tag: str, wanted: Wanted, ledger: Ledger
    ) -> list[list[Completion]]:
        """A part of the requests from each sampler, all at once; the part of one that is lost is asked again, with the same
        keys."""
        samplers = self.samplers[policy]
        found: dict[int, list[Completion]] = {i: [] for i, part in enumerate(asked) if not part}
        for attempt in range(self.placement.retries + 1):
            missing = [i for i in range(len(asked)) if i not in found]
            self.supply([samplers[i] for i in missing], policy, tag, wanted)
            calls = [(samplers[i], (policy, [asked[i]], decoding, tag)) for i in missing]
            for sampler, done, charges in _call_together("sample", calls, attempt):
                found[samplers.index(sampler)] = done
                add_charges(ledger, charges)
        return [found[i] for i in range(len(asked))]

    def supply(self, samplers: Sequence[Sampler], policy: str, tag: str, wanted: Wanted) -> None:
        """Ensure that all these samplers are alive and hold the wanted weights as policy@tag."""
        left = list(samplers)
        for attempt in range(self.placement.retries + 1):
            if not left:
                return
            there = _revive_samplers(left, attempt)
            backend = left[0].group.setup.transfer
            if backend is not None and tag == "live":
                self._transfer(there, policy, backend, attempt)
            else:
                self._give_by_store(there, policy, tag, wanted(), attempt)
            left = [sampler for sampler in left if not sampler.group.alive]
            if left:
                self.sent.pop(policy, None)  # it may be these that were lost

    def _give_by_store(self, samplers: Sequence[Sampler], policy: str, tag: str, wanted: Handed | None, attempt: int) -> None:
        """Give weights through Ray's object store to all samplers that lack them, at once."""
        for sampler in samplers:
            if sampler.group.setup.transfer is not None:
                sampler.loaded[policy, "live"] = NOTHING  # there vLLM holds one version at a time
        if wanted is None:
            return
        behind = [sampler for sampler in samplers if sampler.loaded.get((policy, tag), 0) != wanted.stamp]
        given = _call_together("hold", [(sampler, (policy, tag, wanted.weights)) for sampler in behind], attempt)
        for sampler, theirs, _ in _call_together("probe", [(sampler, (policy, tag)) for sampler, *_ in given], attempt):
            self.check_probe(policy, theirs, wanted.probe)
            sampler.loaded[policy, tag] = wanted.stamp

    def _transfer(self, samplers: Sequence[Sampler], policy: str, backend: str, attempt: int) -> None:
        """Live weights by vLLM's own transfer, to one after another. One that breaks off leaves both ends waiting: both are
        made again."""
        stamp, learners = self.stamps.get((policy, "live"), 0), self.learners[policy]
        for sampler in samplers:
            if sampler.loaded.get((policy, "live"), 0) == stamp:
                continue
            number, (worker,) = self.samplers[policy].index(sampler), sampler.group.workers
            try:
                if not learners.group.alive:
                    learners.rebuild()
                learners.group.wait_until_done(learners.group.submit("send", policy, number, worker, backend))
            except Lost as lost:
                report_loss(sampler.group, lost, attempt)
                continue
            ours = learners.call_workers("probe", policy, "live")[0][0]
            for _, theirs, _ in _call_together("probe", [(sampler, (policy, "live"))], attempt):
                self.check_probe(policy, theirs, ours)
                sampler.loaded[policy, "live"] = stamp

    def check_probe(self, policy: str, theirs: Floats, ours: Floats) -> None:
        """Raise an error if a sampler's log-probabilities differ from the learners'."""
        apart = np.abs(theirs - ours)
        allowed = self.placement.tolerance or TOLERANCES[self.learners[policy].group.facts[policy].dtype]
        if not apart.mean() <= allowed:  # so that NaN is refused too
            raise UserError(
                f"policy '{policy}': its samplers do not compute what its learners compute. Over {len(apart)} fixed tokens the "
                f"log-probabilities differ by {apart.mean():.2g} on average and {apart.max():.2g} at most, and {allowed:.2g} "
                "on average is allowed (placement.tolerance)"
            )


def _revive_samplers(samplers: Iterable[Sampler], attempt: int) -> list[Sampler]:
    """Restart lost samplers in parallel; return those that are alive."""
    lost_ones = [sampler for sampler in samplers if not sampler.group.alive]
    for sampler in lost_ones:
        sampler.group.begin()
        sampler.loaded = {}
    for sampler in lost_ones:
        try:
            sampler.group.complete()
        except Lost as lost:
            report_loss(sampler.group, lost, attempt)
    return [sampler for sampler in samplers if sampler.group.alive]


def _call_together(
    method: str, calls: Sequence[tuple[Sampler, tuple[Any, ...]]], attempt: int
) -> list[tuple[Sampler, Any, list[Charges]]]:
    """Call a method on several samplers at once; return those that were not lost, with their values and costs."""
    begun = [(sampler, sampler.group.submit(method, *args)) for sampler, args in calls]
    found = []
    for sampler, call in begun:
        try:
            charges = sampler.group.wait_until_done(call)
            found.append((sampler, sampler.group.fetch_values(call)[0], charges))
        except Lost as lost:
            report_loss(sampler.group, lost, attempt)
    return found


def split_requests(requests: Sequence[Request], count: int) -> list[list[int]]:
    """Places of the requests in `count` parts of about the same length, those with one context in one part; in order."""
    alike: dict[bytes, list[int]] = {}
    for i, request in enumerate(requests):
        alike.setdefault(request.context.tobytes(), []).append(i)
    parts: list[list[int]] = [[] for _ in range(count)]
    for places in alike.values():
        min(parts, key=len).extend(places)
    return [sorted(part) for part in parts]
