"""What an engine is: where weights live. It samples, scores, learns and publishes, and knows neither roles nor recipes.

Engines address weights as policy@tag. Tags: `live` (being trained), `ref` (the policy's start), `ema`, and named snapshots.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from milonga.types import Finish, Floats, Lesson, Prompt, Traces

if TYPE_CHECKING:
    from milonga.engine.lagged import Lagged


@dataclass(frozen=True)
class Request:
    """Token ids to continue, and the key of the randomness to continue them with."""

    context: NDArray[np.int64]
    key: int


@dataclass(frozen=True)
class Decoding:
    """How to continue. Greedy decoding is for evaluation only; it reports log-probabilities at temperature 1."""

    max_tokens: int
    temperature: float = 1.0
    stop: tuple[str, ...] = ()
    greedy: bool = False


@dataclass(frozen=True)
class Completion:
    """What was sampled: ids (the end-of-sequence token included), their log-probabilities, and the text in token steps."""

    ids: NDArray[np.int64]
    logprobs: Floats
    finish: Finish
    text: str
    """Without the end-of-sequence token, and without anything after a stop string."""
    ends: NDArray[np.int64]
    """For each token the number of characters of text that are complete after it."""


class History:
    """Conversations that are going on. Rows that are sampled with the same history may share what was computed for their common
    beginnings, within a call and from call to call; no result depends on it. This one keeps nothing."""

    def close(self) -> None:
        """The conversations are over: give back what was kept."""
        return None


@dataclass
class LearnReport:
    """What an update did. `skipped` says why the weights were left as they were, if they were."""

    loss: float = 0.0
    grad_norm: float = 0.0
    entropy: float | None = None
    """Of the tokens that could move the weights; None, as the three below, where there were none."""
    kl: float | None = None
    clip_fraction: float | None = None
    accuracy: float | None = None
    """Share of the labels, or pairs, that the learner's score had right before each step."""
    mismatch: float | None = None
    """Mean absolute difference between sampling and learning log-probabilities before the first step."""
    stale_weight: float = 1.0
    """Mean importance weight of the tokens with credit in rows that older versions sampled."""
    stale_truncated: float = 0.0
    """Share of them whose weight was cut off."""
    peak_gib: float | None = None
    """Most memory of the device that was held at once; None on a CPU."""
    tokens: int = 0
    steps: int = 0
    skipped: str | None = None


@dataclass
class Usage:
    """Tokens that one policy processed, by kind of work, and an estimate of the floating-point operations."""

    prefill: int = 0
    decode: int = 0
    score: int = 0
    learn: int = 0
    flops: float = 0.0
    """NaN where some of the work was done by a model of unknown size; a sum with it is unknown too."""

    @property
    def tokens(self) -> int:
        return self.prefill + self.decode + self.score + self.learn


@dataclass
class Ledger:
    """The compute each policy used. Evaluations are kept apart: they do not count against a budget."""

    policies: dict[str, Usage] = field(default_factory=dict)
    paused: bool = False

    def charge(self, policy: str, work: str, tokens: int, flops: float) -> None:
        if self.paused:
            return
        usage = self.policies.setdefault(policy, Usage())
        setattr(usage, work, getattr(usage, work) + tokens)
        usage.flops += flops

    def add(self, other: Ledger) -> None:
        """What was counted elsewhere."""
        for policy, used in other.policies.items():
            usage = self.policies.setdefault(policy, Usage())
            for kind, amount in vars(used).items():
                setattr(usage, kind, getattr(usage, kind) + amount)

    def total(self, what: str) -> float:
        """Sum over the policies of `tokens` or `flops`."""
        return float(sum(getattr(usage, what) for usage in self.policies.values()))

    def to_json(self) -> dict[str, dict[str, float]]:
        return {name: dict(vars(usage)) for name, usage in self.policies.items()}

    def from_json(self, data: Mapping[str, Mapping[str, float]]) -> None:
        self.policies = {}
        for name, saved in data.items():
            counts = {kind: int(count) for kind, count in saved.items() if kind != "flops"}
            self.policies[name] = Usage(**counts, flops=float(saved["flops"]))


class Engine(ABC):
    """Weights and what can be done with them."""

    ledger: Ledger

    def holds(self, policy: str) -> bool:
        """Whether the policy's weights are here. If not, it can be sampled and nothing else, and how likely it found what it
        wrote is not known: that is never trained on."""
        return True

    @abstractmethod
    def encode_all(self, policy: str, prompts: Sequence[Prompt]) -> list[NDArray[np.int64]]:
        """The token ids of prompts for this policy's tokenizer; foreign parts never become special tokens."""

    def encode(self, policy: str, prompt: Prompt) -> NDArray[np.int64]:
        """The same for a single prompt."""
        return self.encode_all(policy, [prompt])[0]

    @abstractmethod
    def follow_all(self, policy: str, prompts: Sequence[Prompt], last: Sequence[int]) -> list[NDArray[np.int64]]:
        """The ids to append to conversations that end in the tokens `last`, when these prompts are said to the model next."""

    @abstractmethod
    def transcribe(self, policy: str, text: str, end: bool = True) -> Completion:
        """A given text as this policy would have sampled it, closed by the end-of-sequence token if `end`."""

    @abstractmethod
    def same_tokens(self, policy: str, other: str) -> bool:
        """Whether two policies read the same ids as the same text."""

    @abstractmethod
    def context_limit(self, policy: str) -> int:
        """Most tokens, prompt and output together, that the model can look at."""

    def history(self) -> History:
        """To be handed to `sample` for every turn of conversations, and closed when they are over."""
        return History()

    @abstractmethod
    def sample(
        self,
        policy: str,
        requests: Sequence[Request],
        decoding: Decoding,
        tag: str = "live",
        history: History | None = None,
    ) -> list[Completion]: ...

    @abstractmethod
    def score(self, policy: str, traces: Traces, tag: str = "live") -> list[Floats]:
        """Log-probabilities of each trace's trained tokens under policy@tag, aligned with its ids."""

    @abstractmethod
    def values(self, policy: str, traces: Traces, tag: str = "live") -> list[Floats]:
        """What policy@tag's value head says at every token (a logit), aligned with each trace's ids."""

    @abstractmethod
    def learn(self, lesson: Lesson) -> LearnReport: ...

    @abstractmethod
    def publish(self, policy: str) -> int:
        """Make what was learned visible to the samplers; returns the new version."""

    @abstractmethod
    def version(self, policy: str) -> int: ...

    @abstractmethod
    def snapshot(self, policy: str, tag: str) -> None:
        """Keep the live weights under a name; under `ema` the running average starts anew from them."""

    @abstractmethod
    def copy(self, policy: str, source: str, tag: str = "live") -> None:
        """Set a policy's live weights to those of source@tag; optimiser state starts anew."""

    @abstractmethod
    def save(self, folder: Path) -> None: ...

    @abstractmethod
    def load(self, folder: Path) -> None: ...

    @abstractmethod
    def export(self, policy: str, folder: Path, merged: bool = False) -> None:
        """Write a policy as an ordinary Hugging Face folder to keep; of adapters a peft folder, unless they are to be merged
        into their base."""

    @abstractmethod
    def checkpoint_bytes(self) -> int:
        """How large one checkpoint is."""

    def frozen(self) -> Lagged:
        """What is published now, to be sampled from in another thread while learning goes on; its ledger is its own."""
        raise NotImplementedError(f"{type(self).__name__} has no samplers that could work while it learns")

    def close(self) -> None:
        """Give back what the engine holds."""
        return None
