"""Objectives by name: the published methods as presets over the three parts, and the config's flat keys for them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, Self, TypeVar

from pydantic import ValidationError, model_validator

from milonga.config import explain, suggest_key
from milonga.errors import ConfigError
from milonga.objectives.spec import Estimator, Loss, Part, RolloutFilter
from milonga.registry import Registry

P = TypeVar("P", bound=Part)


@dataclass(frozen=True)
class Objective:
    """What a preset names: an advantage estimator for credit, a loss for the learner, and a filter for sampling."""

    estimator: Estimator = field(default_factory=Estimator)
    loss: Loss = field(default_factory=Loss)
    filter: RolloutFilter = field(default_factory=RolloutFilter)


class ObjectiveSection(Loss, Estimator, RolloutFilter):
    """The keys of `policies.NAME.objective` in the config: those of all parts in one table, and where the KL goes.

    It is only parsed: nobody computes with it, but with the parts that `split` makes of it.
    """

    kl_in: Literal["loss", "reward"] = "loss"
    """A term of the loss, or taken off the reward before advantages are formed."""

    @model_validator(mode="after")
    def _check_kl(self) -> Self:
        if self.kl_in == "loss" and self.kl == "k1" and self.kl_coef:
            raise ValueError("kl='k1' in the loss has expected gradient zero; use k2 or k3, or kl_in='reward'")
        if self.kl_in == "reward" and self.kl != "k1":
            raise ValueError("kl_in='reward' needs kl='k1': in a reward only k1 is an unbiased estimate")
        return self

    def split(self) -> Objective:
        """Split the keys into their parts. `kl_coef` goes to the part that `kl_in` names, and is 0 in the other."""
        off = {"kl_coef": 0.0}
        in_reward, in_loss = ({}, off) if self.kl_in == "reward" else (off, {})
        return Objective(self._take(Estimator, in_reward), self._take(Loss, in_loss), self._take(RolloutFilter, {}))

    def _take(self, part: type[P], changed: dict[str, float]) -> P:
        return part.model_validate({key: getattr(self, key) for key in part.model_fields} | changed)


PRESETS: Registry[ObjectiveSection] = Registry("objective")
for _name, _section in {
    "grpo": ObjectiveSection(),
    "dapo": ObjectiveSection(
        clip_high=0.28, aggregate="token_mean", dynamic_sampling=True, overlong_filter=True, overlong_buffer=0.2
    ),
    "dr_grpo": ObjectiveSection(advantage="centre", aggregate="constant"),
    "rloo": ObjectiveSection(
        advantage="leave_one_out", ratio="none", clip="none", aggregate="sequence_sum", kl="k1", kl_in="reward"
    ),
    "reinforce_pp": ObjectiveSection(advantage="whiten", aggregate="token_mean", kl="k1", kl_in="reward"),
    "reinforce_pp_baseline": ObjectiveSection(advantage="whiten_baseline", whiten_shift=False, aggregate="token_mean", kl="k2"),
    "cispo": ObjectiveSection(clip="detached", is_min=0.0, is_max=5.0, aggregate="token_mean"),
    "gspo": ObjectiveSection(ratio="sequence_mean", clip_low=3e-4, clip_high=4e-4),
    "aipo": ObjectiveSection(advantage="centre", clip="detached", is_min=0.0, is_max=4.0, aggregate="token_mean"),
    "aipo_a": ObjectiveSection(advantage="centre", clip="capped", is_max=4.0, aggregate="token_mean"),
    "cross_entropy": ObjectiveSection(kind="cross_entropy", aggregate="token_mean"),
    "value_bce": ObjectiveSection(kind="value_bce", aggregate="token_mean"),
    "value_mse": ObjectiveSection(kind="value_mse", aggregate="token_mean"),
    "bradley_terry": ObjectiveSection(kind="bradley_terry"),
    "implicit_bce": ObjectiveSection(kind="implicit_bce"),
    "dpo": ObjectiveSection(kind="dpo", beta=0.1),
}.items():
    PRESETS.add(_name, _section)


def make_objective(preset: str, overrides: dict[str, Any] | None = None, where: str = "objective") -> Objective:
    """Make an objective from a preset and overrides of its keys; wrong names and combinations are config errors, which name
    them by `where` they stand in the config."""
    base = PRESETS.get(preset)
    for key in overrides or {}:
        if key not in ObjectiveSection.model_fields:
            raise ConfigError(
                f"unknown key '{where}.{key}': {suggest_key(f'{where}.{key}', key, [*ObjectiveSection.model_fields])}"
            )
    try:
        found = ObjectiveSection.model_validate({**base.model_dump(), **(overrides or {})}).split()
    except ValidationError as error:
        raise explain(error, ObjectiveSection, where) from None
    if "beta" in (overrides or {}) and found.loss.kind == "policy_gradient":  # elsewhere it is the weight of the KL
        raise ConfigError(f"'{where}.beta' does nothing in a policy gradient; the weight of a KL is {where}.kl_coef")
    return found
