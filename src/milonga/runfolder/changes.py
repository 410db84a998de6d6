"""Keys of a run's config that were changed since its checkpoint, and those that may be: `FREE`, which is the only list of them.

Invariant: what a run learns does not depend on a key of `FREE`, but for the last bits of its numbers, and for what follows its
length.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from milonga.config import Config, expand_keys, flatten_keys, parse_config

LENGTH = ("turns", "budget.*", "stop_without_signal")
KEPT = ("keep.*", "probe")
PLACED = ("device", "engine", "threads", "placement.*")
MEMORY = (
    *("sampling.rows", "sampling.history_gib", "sampling.vllm.*"),
    *(f"policies.*.{key}" for key in ("micro_tokens", "recompute", "offload")),
)
REQUESTS = tuple(f"policies.*.endpoint.{key}" for key in ("api_key_env", "concurrency", "timeout", "retries", "backoff"))
FREE = LENGTH + KEPT + PLACED + MEMORY + REQUESTS
"""Keys that may be changed between a checkpoint and its resume: how long the run is, what is kept of it, where it is computed,
in what pieces, and how an endpoint is asked."""
BARRIER = "keep.checkpoint_every"
"""Not free with `staleness`: rollouts are never sampled beyond a checkpoint, so that it decides which weights sample them."""


@dataclass(frozen=True)
class Change:
    """A key with another value in config.toml than before."""

    key: str
    was: Any
    now: Any
    free: bool

    def __str__(self) -> str:
        return f"{self.key} was {_format_value(self.was)} at the checkpoint and is {_format_value(self.now)} in config.toml"


def list_keys(config: Config, free: bool) -> dict[str, Any]:
    """List the keys, dotted, with their values: those that a run is bound to, or those that are free."""
    return {key: value for key, value in flatten_keys(config.model_dump(mode="json")).items() if _is_free(key, config) == free}


def find_changes(bound: Mapping[str, Any], free: Mapping[str, Any], config: Config) -> list[Change]:
    """Compare what a checkpoint is bound to, and the free keys of the process before, with the config in the run folder. A key
    that an older version did not know had its default."""
    before = list_keys(parse_config(expand_keys(bound)), False)
    now = list_keys(config, False)
    changed = [key for key in dict.fromkeys([*before, *now]) if before.get(key) != now.get(key)]
    moved = [key for key, value in list_keys(config, True).items() if key in free and free[key] != value]
    values = flatten_keys(config.model_dump(mode="json"))
    return [Change(key, (free if key in moved else before).get(key), values.get(key), key in moved) for key in changed + moved]


def _is_free(key: str, config: Config) -> bool:
    if key == BARRIER and config.staleness:
        return False
    return any(fnmatchcase(key, pattern) for pattern in FREE)


def _format_value(value: Any) -> str:
    return "not set" if value is None else json.dumps(value, ensure_ascii=False)
