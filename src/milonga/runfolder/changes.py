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

from milonga.config import Config, flatten_keys, parse_config

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
    """A key with another value in config.toml than at the checkpoint."""

    key: str
    was: Any
    now: Any
    free: bool

    def __str__(self) -> str:
        return f"{self.key} was {_format_value(self.was)} at the checkpoint and is {_format_value(self.now)} in config.toml"


def find_changes(saved: Mapping[str, Any], config: Config) -> list[Change]:
    """Compare the config that a checkpoint was saved with to the one in the run folder. A key that was not known then has its
    default."""
    was, now = (flatten_keys(each.model_dump(mode="json")) for each in (parse_config(saved), config))
    changed = [key for key in dict.fromkeys([*was, *now]) if was.get(key) != now.get(key)]
    return [Change(key, was.get(key), now.get(key), _is_free(key, config)) for key in changed]


def _is_free(key: str, config: Config) -> bool:
    if key == BARRIER and config.staleness:
        return False
    return any(fnmatchcase(key, pattern) for pattern in FREE)


def _format_value(value: Any) -> str:
    return "not set" if value is None else json.dumps(value, ensure_ascii=False)
