"""The settings that have a short name of their own: flags of the command line, and arguments in Python.

Invariant: a flag is nothing but another way to write config keys, and loses against a setting of the same key.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from milonga.config import expand_keys
from milonga.errors import ConfigError
from milonga.loading import name_object
from milonga.recipe import Recipe

RewardLike = str | Callable[..., Any] | tuple[Callable[..., Any], float]
"""A reward function, alone or with its weight; or where one is, `file.py:function` or `file.py:function*0.5`."""


def make_layer(
    *,
    task: str | Mapping[str, Any] | None = None,
    data: str | Path | None = None,
    question: str | None = None,
    answer: str | None = None,
    prompt: str | Path | Callable[..., str] | None = None,
    solver: str = "generator",
    reward: RewardLike | list[RewardLike] | None = None,
    extract: str | Callable[..., Any] | None = None,
    lora: bool = False,
    lr: float | None = None,
    problems: int | None = None,
    rollouts: int | None = None,
    max_tokens: int | None = None,
    wandb: bool = False,
) -> dict[str, Any]:
    """Make the config layer of these flags; what is not given is not in it. `solver` is the agent that `prompt` is for."""
    if task is not None and data is not None:
        raise ConfigError(f"data is the task, and so is '{task}': give one of them")
    keys = {
        "task": {"name": task} if isinstance(task, str) else task,
        "task.name": None if data is None else "jsonl",
        "task.path": None if data is None else str(data),
        "task.fields.question": question,
        "task.fields.answer": answer,
        f"policies.{solver}.prompt": name_object(prompt) if callable(prompt) else None if prompt is None else str(prompt),
        "rewards": [parse_reward(one) for one in list_rewards(reward)] or None,
        "extract": name_object(extract) if callable(extract) else extract,
        "binding": "lora" if lora else None,
        "lr": lr,
        "batch.problems": problems,
        "batch.rollouts": rollouts,
        "sampling.max_tokens": max_tokens,
        "keep.trackers": ["wandb"] if wandb else None,
    }
    return expand_keys({key: value for key, value in keys.items() if value is not None})


def list_rewards(reward: RewardLike | list[RewardLike] | None) -> list[RewardLike]:
    """List what was given as one reward function, as several, or as none."""
    if reward is None:
        return []
    return reward if isinstance(reward, list) else [reward]


def parse_reward(reward: RewardLike) -> dict[str, Any]:
    """Parse `file.py:function*0.5`, or name a function that was passed: a section of `rewards`."""
    if isinstance(reward, tuple):
        return {"function": name_object(reward[0]), "weight": reward[1]}
    if not isinstance(reward, str):
        return {"function": name_object(reward)}
    function, star, weight = reward.rpartition("*")
    if not star:
        return {"function": reward}
    try:
        return {"function": function.strip(), "weight": float(weight)}
    except ValueError:
        raise ConfigError(f"reward '{reward}': a weight is a number, as in file.py:function*0.5") from None


def place_on_gpus(count: int, recipe: type[Recipe]) -> dict[str, Any]:
    """Make the config layer for a run on so many GPUs of this machine: the weights of each policy are sharded over all of them,
    and policies share them. One GPU needs no workers."""
    import torch

    there = torch.cuda.device_count()
    if not 1 <= count <= there:
        raise ConfigError(f"--gpus {count}: this machine has {there} that torch can see")
    if count == 1:
        return {"engine": "local"}
    part = math.floor(10_000 / len(recipe.agents)) / 10_000  # Ray counts parts of a GPU in steps of 1e-4
    return {"engine": "ray", "placement": {"learners": count, "gpus": part}}
