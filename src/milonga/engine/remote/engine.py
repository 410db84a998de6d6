"""An engine some of whose policies are behind endpoints. The others are in another engine: recipes see no difference.

Invariants: what lives behind an endpoint is sampled and nothing else; its version is always 0, and nothing of it is saved.
Tokens are counted by the server that used them; what it did for an output that was lost on the way is not known to us.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from milonga.config import EndpointSection, PolicySection
from milonga.engine.base import Completion, Decoding, Engine, History, LearnReport, Ledger, Progress, Request
from milonga.engine.remote import codec
from milonga.engine.remote.address import find_key, parse_address
from milonga.engine.remote.client import Client
from milonga.errors import ConfigError, UserError, suggest_name
from milonga.types import Finish, Floats, Prompt, Rollouts, TrainBatch

UNLIMITED = 2**31
"""The context of a model of which only the server knows how much it can read."""
SEEDS = 2**31
"""Servers take different ranges of seeds; all of them take these."""
STOPPED_AT = ("stop_reason", "matched_stop")
"""Fields in which vLLM and SGLang name the stop string that ended a completion."""


class Endpoint:
    """One policy behind an endpoint."""

    def __init__(self, name: str, section: PolicySection) -> None:
        self.name, self.section = name, section.endpoint or EndpointSection()
        self.address = parse_address(name, section.model)
        self.client = Client(name, self.address, find_key(name, self.address, self.section), self.section)

    def check(self) -> None:
        """Whether the server is there, takes the key, and has the model."""
        known = self.client.list_models()
        if known and self.address.model not in known:
            raise ConfigError(
                f"policies.{self.name}.model: {self.address.url} has no model '{self.address.model}': "
                f"{self.client.sanitise_text(suggest_name(self.address.model, known))}"
            )

    def sample(self, requests: Sequence[Request], decoding: Decoding, ledger: Ledger) -> list[Completion]:
        """A request for each output, so that each has a seed of its own."""
        answers = self.client.complete([self._make_body(one, decoding) for one in requests], [one.key for one in requests])
        for work, name in (("prefill", "prompt_tokens"), ("decode", "completion_tokens")):
            tokens = sum(answer["usage"][name] for answer in answers)
            each = float("nan") if self.section.parameters is None else 2 * self.section.parameters
            ledger.charge(self.name, work, tokens, each * tokens)
        return [self._make_completion(answer["choices"][0], decoding.stop) for answer in answers]

    def _make_body(self, request: Request, decoding: Decoding) -> dict[str, Any]:
        said = codec.decode_messages(request.context)
        if said is None:
            raise UserError(f"policy '{self.name}' lives behind an endpoint: it cannot go on from a part of an output")
        body: dict[str, Any] = {
            "model": self.address.model,
            "messages": said,
            "max_tokens": decoding.max_tokens,
            "temperature": 0.0 if decoding.greedy else decoding.temperature,
            "top_p": 1.0,  # servers take the model's own where nothing is said
            "seed": request.key % SEEDS,
        }
        if decoding.stop and self.section.stop == "server":
            body["stop"] = list(decoding.stop)
        return body | self.section.extra

    def _make_completion(self, choice: Mapping[str, Any], stop: Sequence[str]) -> Completion:
        """An output, cut behind its first stop string. One that ended by anything but itself counts as truncated."""
        text = choice["message"].get("content") or ""
        if self.section.stop == "server" and stop and choice.get("finish_reason") == "stop":
            text += self._find_stop_string(choice, stop)
        whole = codec.cut_at_stop(text, stop)
        if whole is not None:
            return codec.encode_completion(whole, "stop")
        finish: Finish = "eos" if choice.get("finish_reason") == "stop" else "length"
        return codec.encode_completion(text, finish)

    def _find_stop_string(self, choice: Mapping[str, Any], stop: Sequence[str]) -> str:
        """The string that the server stopped at, which it left out; nothing where the model ended by itself."""
        name = next((name for name in STOPPED_AT if name in choice), None)
        if name is None:
            raise UserError(
                f"policy '{self.name}' behind {self.address.url}: the server does not say at which string it stopped; "
                f"set policies.{self.name}.endpoint.stop to 'here'"
            )
        return choice[name] if choice[name] in stop else ""


class WithEndpoints(Engine):
    """Policies of another engine, and policies behind endpoints. One ledger counts both."""

    def __init__(self, inner: Engine, policies: Mapping[str, PolicySection]) -> None:
        self.inner, self.ledger = inner, inner.ledger
        with ExitStack() as undo:
            undo.callback(self.inner.close)
            self.endpoints: dict[str, Endpoint] = {}
            for name, section in policies.items():
                self.endpoints[name] = endpoint = Endpoint(name, section)
                undo.callback(endpoint.client.close)
                endpoint.check()
            self._undo = undo.pop_all()

    @property
    def watch(self) -> Callable[[Progress], None] | None:
        """Told by the inner engine alone: how far a server is, nobody knows."""
        return self.inner.watch

    @watch.setter
    def watch(self, told: Callable[[Progress], None] | None) -> None:
        self.inner.watch = told

    def close(self) -> None:
        self._undo.close()

    def has_weights(self, policy: str) -> bool:
        return policy not in self.endpoints and self.inner.has_weights(policy)

    def _require_inner(self, policy: str, work: str) -> Engine:
        """Return the inner engine for work that an endpoint cannot do; raise an error if the policy is behind one."""
        if policy in self.endpoints:
            raise UserError(f"policy '{policy}' lives behind an endpoint: it can only be sampled, not {work}")
        return self.inner

    def encode_all(self, policy: str, prompts: Sequence[Prompt]) -> list[NDArray[np.int64]]:
        if policy in self.endpoints:
            return [codec.encode(prompt) for prompt in prompts]
        return self.inner.encode_all(policy, prompts)

    def encode_next_turns(self, policy: str, prompts: Sequence[Prompt], last: Sequence[int]) -> list[NDArray[np.int64]]:
        if policy in self.endpoints:
            return [codec.encode_next_turn(prompt, end) for prompt, end in zip(prompts, last, strict=True)]
        return self.inner.encode_next_turns(policy, prompts, last)

    def encode_completion(self, policy: str, text: str, end: bool = True) -> Completion:
        if policy in self.endpoints:
            return codec.encode_completion(text, "eos" if end else "length")
        return self.inner.encode_completion(policy, text, end)

    def uses_chat(self, policy: str) -> bool:
        return policy in self.endpoints or self.inner.uses_chat(policy)

    def has_same_vocabulary(self, policy: str, other: str) -> bool:
        behind = [name in self.endpoints for name in (policy, other)]
        return all(behind) or (not any(behind) and self.inner.has_same_vocabulary(policy, other))

    def context_limit(self, policy: str) -> int:
        if policy in self.endpoints:
            return self.endpoints[policy].section.context_bytes or UNLIMITED
        return self.inner.context_limit(policy)

    def open_history(self) -> History:
        return self.inner.open_history()

    def sample(
        self,
        policy: str,
        requests: Sequence[Request],
        decoding: Decoding,
        tag: str = "live",
        history: History | None = None,
    ) -> list[Completion]:
        if policy not in self.endpoints:
            return self.inner.sample(policy, requests, decoding, tag, history)
        if tag not in ("live", "ref"):  # what never moves is what it was at its start
            raise UserError(f"policy '{policy}' lives behind an endpoint: it has no version '{tag}'")
        return self.endpoints[policy].sample(requests, decoding, self.ledger)

    def score(self, policy: str, rollouts: Rollouts, tag: str = "live") -> list[Floats]:
        return self._require_inner(policy, "scored").score(policy, rollouts, tag)

    def values(self, policy: str, rollouts: Rollouts, tag: str = "live") -> list[Floats]:
        return self._require_inner(policy, "scored").values(policy, rollouts, tag)

    def learn(self, train_batch: TrainBatch) -> LearnReport:
        return self._require_inner(train_batch.policy, "trained").learn(train_batch)

    def publish(self, policy: str) -> int:
        return self._require_inner(policy, "trained").publish(policy)

    def version(self, policy: str) -> int:
        return 0 if policy in self.endpoints else self.inner.version(policy)

    def snapshot(self, policy: str, tag: str) -> None:
        self._require_inner(policy, "kept").snapshot(policy, tag)

    def copy(self, policy: str, source: str, tag: str = "live") -> None:
        self._require_inner(source, "copied")
        self._require_inner(policy, "changed").copy(policy, source, tag)

    def save(self, folder: Path) -> None:
        self.inner.save(folder)

    def load(self, folder: Path) -> None:
        self.inner.load(folder)

    def export(self, policy: str, folder: Path, merged: bool = False) -> None:
        self._require_inner(policy, "exported").export(policy, folder, merged)

    def checkpoint_bytes(self) -> int:
        return self.inner.checkpoint_bytes()
