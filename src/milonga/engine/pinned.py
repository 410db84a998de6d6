"""The weights that were published at one moment, as an engine: asynchronous rollouts sample from it while learning goes on.

Invariants: it samples from the weights of its moment, whatever was published since; it never calls a learner; its cost is
counted in a ledger of its own, which is added to the run's ledger when the turn is learned from, so that no sum depends on
timing.
"""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from milonga.engine.base import Completion, Decoding, Engine, History, LearnReport, Ledger, Request
from milonga.types import Floats, Prompt, Rollouts, TrainBatch


class Stopped(Exception):
    """Raised in the rollout thread when its turn is no longer needed."""


def refuse_in_prefetch(what: str) -> NoReturn:
    """Raise an error for an operation that asynchronous rollouts cannot do while learning goes on."""
    raise ValueError(
        f"asynchronous rollouts cannot {what}: a recipe that needs it says in `overlap` why its turns wait for each other"
    )


class PinnedSampler(Engine):
    """An engine that can encode text and sample from the weights of one moment, and nothing else."""

    def __init__(self, engine: Engine, versions: Mapping[str, int]) -> None:
        self.engine, self.versions = engine, dict(versions)
        self.ledger = Ledger()
        self.stop = threading.Event()
        """Set by the owner when nothing more is to be sampled."""

    @abstractmethod
    def draw(self, policy: str, requests: Sequence[Request], decoding: Decoding) -> list[Completion]:
        """Sample from the live weights of this moment."""

    def encode_all(self, policy: str, prompts: Sequence[Prompt]) -> list[NDArray[np.int64]]:
        return self.engine.encode_all(policy, prompts)

    def encode_next_turns(self, policy: str, prompts: Sequence[Prompt], last: Sequence[int]) -> list[NDArray[np.int64]]:
        return self.engine.encode_next_turns(policy, prompts, last)

    def encode_completion(self, policy: str, text: str, end: bool = True) -> Completion:
        return self.engine.encode_completion(policy, text, end)

    def uses_chat(self, policy: str) -> bool:
        return self.engine.uses_chat(policy)

    def has_same_vocabulary(self, policy: str, other: str) -> bool:
        return self.engine.has_same_vocabulary(policy, other)

    def context_limit(self, policy: str) -> int:
        return self.engine.context_limit(policy)

    def sample(
        self,
        policy: str,
        requests: Sequence[Request],
        decoding: Decoding,
        tag: str = "live",
        history: History | None = None,
    ) -> list[Completion]:
        if tag != "live":
            refuse_in_prefetch(f"sample from {policy}@{tag}")
        if self.stop.is_set():
            raise Stopped
        return self.draw(policy, requests, decoding)

    def version(self, policy: str) -> int:
        return self.versions[policy]

    def score(self, policy: str, rollouts: Rollouts, tag: str = "live") -> list[Floats]:
        refuse_in_prefetch("score rollouts")

    def values(self, policy: str, rollouts: Rollouts, tag: str = "live") -> list[Floats]:
        refuse_in_prefetch("ask a value head")

    def learn(self, train_batch: TrainBatch) -> LearnReport:
        refuse_in_prefetch("learn")

    def publish(self, policy: str) -> int:
        refuse_in_prefetch("publish")

    def snapshot(self, policy: str, tag: str) -> None:
        refuse_in_prefetch("take a snapshot")

    def copy(self, policy: str, source: str, tag: str = "live") -> None:
        refuse_in_prefetch("copy weights")

    def save(self, folder: Path) -> None:
        refuse_in_prefetch("save")

    def load(self, folder: Path) -> None:
        refuse_in_prefetch("load")

    def export(self, policy: str, folder: Path, merged: bool = False) -> None:
        refuse_in_prefetch("export")

    def checkpoint_bytes(self) -> int:
        refuse_in_prefetch("be saved")
