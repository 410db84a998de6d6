"""The engine interface. An engine holds weights: it samples, scores, learns and publishes. It knows no roles and no recipes.

Engines address weights as policy@tag. Tags: `live` (being trained), `ref` (the policy's start), `ema`, and named snapshots.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from milonga.errors import RunFolderError
from milonga.reading import SETTINGS, UNREADABLE, check_shape, explain_unreadable, read_json
from milonga.types import Finish, Floats, PerToken, Prompt, Rollouts, TrainBatch

if TYPE_CHECKING:
    from milonga.engine.pinned import PinnedSampler


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
    """One sampled completion: ids (the end-of-sequence token included), their log-probabilities, and the text by token.

    `ids`, `logprobs` and `ends` have one entry per sampled token.
    """

    ids: NDArray[np.int64]
    logprobs: Floats
    finish: Finish
    text: str
    """Without the end-of-sequence token, and without anything after a stop string."""
    ends: NDArray[np.int64]
    """For each token the number of characters of text that are complete after it."""


class History:
    """A prefix cache for conversations. Rows that are sampled with the same history may share the keys and values of their
    common prefixes, within a call and between calls. No result depends on it. This base class keeps nothing."""

    def close(self) -> None:
        """Free the cache: the conversations are over."""
        return None


@dataclass
class LearnReport:
    """Statistics of one update. `skipped` says why the weights were left unchanged, if they were."""

    loss: float = 0.0
    grad_norm: float = 0.0
    lr: float | None = None
    """Learning rate of the last optimizer step; None if there was none."""
    entropy: float | None = None
    """Mean entropy of the tokens that could move the weights. This field and the three below are None if there were none."""
    kl: float | None = None
    clip_fraction: float | None = None
    accuracy: float | None = None
    """Share of the labels, or pairs, that the learner's score got right before each optimizer step."""
    mismatch: float | None = None
    """Mean absolute difference between sampling and learning log-probabilities before the first step."""
    stale_weight: float = 1.0
    """Mean importance weight of the tokens with an advantage, in rollouts that older versions sampled."""
    stale_truncated: float = 0.0
    """Share of those tokens whose importance weight was truncated."""
    peak_gib: float | None = None
    """Peak device memory; None on a CPU."""
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
        """Add the counts of another ledger."""
        for policy, used in other.policies.items():
            usage = self.policies.setdefault(policy, Usage())
            for kind, amount in vars(used).items():
                setattr(usage, kind, getattr(usage, kind) + amount)

    def total(self, what: str) -> float:
        """Sum over the policies of `tokens` or `flops`."""
        return float(sum(getattr(usage, what) for usage in self.policies.values()))

    def to_json(self) -> dict[str, dict[str, float]]:
        return {name: dict(vars(usage)) for name, usage in self.policies.items()}

    def from_json(self, data: Mapping[str, Any]) -> None:
        """Load what `to_json` made; another shape is a `ValueError`."""
        self.policies = check_shape(dict[str, Usage], data)


@dataclass(frozen=True)
class SavedPolicy:
    """What a checkpoint says of a policy beside its weights."""

    version: int
    updates: int
    start: str


@dataclass(frozen=True)
class SavedEngine:
    """What `engine.json` of a checkpoint holds."""

    ledger: dict[str, Usage]
    policies: dict[str, SavedPolicy]


def read_saved_engine(folder: Path, policies: Collection[str]) -> SavedEngine:
    """Read what a checkpoint says of these policies and of the compute used."""
    try:
        saved = check_shape(SavedEngine, read_json(folder / "engine.json", SETTINGS, finite=False))
    except UNREADABLE as error:
        raise RunFolderError(f"'{folder / 'engine.json'}' cannot be read: {explain_unreadable(error)}") from None
    for name in policies:
        if name not in saved.policies:
            raise RunFolderError(f"checkpoint '{folder}' holds no policy '{name}'")
    return saved


@dataclass(frozen=True)
class Progress:
    """How far a call of `sample` or `learn` is."""

    policy: str
    work: Literal["sample", "learn"]
    total: int
    done: int
    """Outputs that have ended, or rollouts whose gradients were there, in each epoch anew."""
    writing: int = 0
    """Outputs that are being written; the others wait."""
    tokens: int = 0
    """Tokens of the longest one that is being written."""
    limit: int = 1
    """Most tokens of an output."""


class Engine(ABC):
    """The weights of all policies, and the operations on them."""

    ledger: Ledger
    watch: Callable[[Progress], None] | None = None
    """Told often how far a call of `sample` or `learn` is, where it is this process that computes."""

    def has_weights(self, policy: str) -> bool:
        """Whether the engine has the policy's weights. If not, the policy can only be sampled. The log-probabilities of its
        completions are then unknown, so that they are never trained on."""
        return True

    @abstractmethod
    def encode_all(self, policy: str, prompts: Sequence[Prompt]) -> list[NDArray[np.int64]]:
        """The token ids of prompts for this policy's tokenizer; foreign parts never become special tokens."""

    def encode(self, policy: str, prompt: Prompt) -> NDArray[np.int64]:
        """The same for a single prompt."""
        return self.encode_all(policy, [prompt])[0]

    @abstractmethod
    def encode_next_turns(self, policy: str, prompts: Sequence[Prompt], last: Sequence[int]) -> list[NDArray[np.int64]]:
        """Encode the next user turns: the ids to append to conversations that end in the tokens `last`."""

    @abstractmethod
    def encode_completion(self, policy: str, text: str, end: bool = True) -> Completion:
        """Encode a given text as a completion of this policy, closed by the end-of-sequence token if `end`."""

    @abstractmethod
    def uses_chat(self, policy: str) -> bool:
        """Whether the policy's prompts go through a chat template."""

    @abstractmethod
    def has_same_vocabulary(self, policy: str, other: str) -> bool:
        """Whether two policies have the same vocabulary: the same ids mean the same text."""

    @abstractmethod
    def context_limit(self, policy: str) -> int:
        """The context length of the model: most tokens, prompt and completion together."""

    def open_history(self) -> History:
        """Open a prefix cache. Pass it to `sample` for every turn of some conversations, and close it when they are over."""
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
    def score(self, policy: str, rollouts: Rollouts, tag: str = "live") -> list[PerToken]:
        """Log-probabilities of the trained tokens under policy@tag: one float array per rollout, aligned with its ids."""

    @abstractmethod
    def values(self, policy: str, rollouts: Rollouts, tag: str = "live") -> list[PerToken]:
        """Values (logits) of policy@tag's value head at every token: one float array per rollout, aligned with its ids."""

    @abstractmethod
    def learn(self, train_batch: TrainBatch) -> LearnReport: ...

    @abstractmethod
    def publish(self, policy: str) -> int:
        """Publish the live weights to the samplers; return the new version."""

    @abstractmethod
    def version(self, policy: str) -> int: ...

    @abstractmethod
    def snapshot(self, policy: str, tag: str) -> None:
        """Keep the live weights under a name; under `ema` the running average starts anew from them."""

    @abstractmethod
    def copy(self, policy: str, source: str, tag: str = "live") -> None:
        """Set a policy's live weights to those of source@tag; the optimizer state starts anew."""

    @abstractmethod
    def save(self, folder: Path) -> None: ...

    @abstractmethod
    def load(self, folder: Path) -> None: ...

    @abstractmethod
    def export(self, policy: str, folder: Path, merged: bool = False) -> None:
        """Write a policy as an ordinary Hugging Face folder. An adapter becomes a peft folder, unless it is to be `merged` into
        its base."""

    @abstractmethod
    def checkpoint_bytes(self) -> int:
        """Size of one checkpoint in bytes."""

    def sampling_view(self) -> PinnedSampler:
        """A view of the published weights, to sample from in another thread while learning goes on. It has its own ledger."""
        raise NotImplementedError(f"{type(self).__name__} has no samplers that could work while it learns")

    def close(self) -> None:
        """Free the memory and processes of the engine."""
        return None
