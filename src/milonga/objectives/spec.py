"""Objectives as data: four switches, and the published methods as presets over them. Nothing here imports torch.

All of the policy-gradient family is REINFORCE with four independent choices: baseline and scale of the advantage, what is
clipped, whether clipped tokens keep a gradient, and what the sum over tokens is divided by. See `losses.py` for the formulas.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from milonga.config import explain
from milonga.errors import ConfigError, suggest_name
from milonga.registry import Registry

Kind = Literal["policy_gradient", "cross_entropy", "value_bce", "value_mse", "bradley_terry", "implicit_bce", "dpo"]
"""policy_gradient: from advantages. cross_entropy: imitate. value_bce, value_mse: a head's values against targets at single
tokens. bradley_terry: a head's values at the ends of a pair. implicit_bce, dpo: the log-ratio to the reference as the score of
a row, against its label or against its partner's."""
NEEDS: Mapping[Kind, tuple[str, ...]] = {
    "policy_gradient": ("advantages",),
    "cross_entropy": (),
    "value_bce": ("targets",),
    "value_mse": ("targets",),
    "bradley_terry": ("labels", "units"),
    "implicit_bce": ("labels",),
    "dpo": ("labels", "units"),
}
"""The fields of a train batch that an objective requires."""
PAIRED: tuple[Kind, ...] = ("bradley_terry", "dpo")
"""Objectives whose units are pairs of rows."""
ON_VALUES: tuple[Kind, ...] = ("value_bce", "value_mse", "bradley_terry")
"""Objectives of a value head, rather than of a language model's probabilities."""


class Objective(BaseModel):
    """What a learner minimises. A preset fills in every field; any of them can be overridden in the config."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: Kind = "policy_gradient"
    """What is minimised: a policy gradient, or one of the losses on labels and pairs."""
    beta: float = Field(0.05, gt=0)
    """Scale of the log-ratio to the reference, where that is the score: `implicit_bce` and `dpo`."""
    pair_loss: Literal["ranking", "difference", "hinge"] = "ranking"
    """Of a pair's margin m: ranking is -log sigmoid(m); hinge is max(0, 1 - m); difference is -m, which needs something else to
    bound the scores."""
    nll_coef: float = Field(0.0, ge=0)
    """Of `dpo`: weight of imitating the winner too, as the mean over its tokens. A margin alone may make both unlikely."""

    # Switch 1: baseline and scale of the advantage (used by credit, before the learner).
    advantage: Literal["zscore", "zscore_population", "centre", "leave_one_out", "whiten", "whiten_baseline"] = "zscore"
    """zscore: group mean and unbiased std; zscore_population: the group's own std. centre: group mean. leave_one_out: mean of
    the others. whiten: return-to-go, whitened over all tokens of the batch. whiten_baseline: group mean first, then the same
    whitening."""
    gamma: float = Field(1.0, gt=0, le=1)
    """Discount of the return-to-go, per token; only `whiten` uses it."""
    whiten_shift: bool = True
    """Whether whitening subtracts the batch mean. Off for `whiten_baseline`, where it would move unanimous groups."""

    # Switch 2: what is clipped.
    ratio: Literal["token", "sequence_mean", "sequence_product", "none"] = "token"
    """The importance ratio: per token, exp of the mean log-ratio of a sequence, the product over it, or none."""
    clip_low: float = Field(0.2, ge=0)
    """Ratios below 1 - clip_low are clipped."""
    clip_high: float = Field(0.2, ge=0)
    """Ratios above 1 + clip_high are clipped."""
    dual_clip: float | None = Field(None, gt=1)
    """For negative advantages, bound the loss at this many times the advantage."""

    # Switch 3: whether clipped tokens keep a gradient.
    clip: Literal["ppo", "detached", "capped", "none"] = "ppo"
    """ppo: min(r A, clip(r) A), no gradient beyond the bounds. detached: sg[clamp(r)] A log pi, always a gradient.
    capped: min(r, is_max) A, no gradient above. none: r A, or A log pi where there is no ratio."""
    is_min: float = Field(0.0, ge=0)
    """Lower bound of a `detached` ratio."""
    is_max: float = Field(5.0, gt=0)
    """Upper bound of a `detached` or `capped` ratio."""

    # Switch 4: what the sum over tokens is divided by, over the whole batch of an optimizer step.
    aggregate: Literal["token_mean", "sequence_mean", "constant", "sequence_sum"] = "sequence_mean"
    """token_mean: all tokens. sequence_mean: the tokens of each sequence, then the sequences. constant: sequences times
    `length`. sequence_sum: sequences."""
    length: int | None = Field(None, ge=1)
    """The constant of `aggregate = "constant"`; the sampling limit where it is not given."""

    # Regularisers.
    kl: Literal["k1", "k2", "k3"] = "k3"
    """The estimator of each token. As a loss only k2 and k3 pull; k1 belongs into the reward."""
    kl_coef: float = Field(0.0, ge=0)
    """Weight of the KL to `kl_from`; 0 for none."""
    kl_in: Literal["loss", "reward"] = "loss"
    """A term of the loss, or taken off the reward before advantages are formed."""
    kl_from: str = "ref"
    """The version of the policy that the KL, or a row's log-ratio, is measured from: `ref`, its start, or a snapshot that the
    schedule takes."""
    entropy_coef: float = 0.0
    """Of a language model's tokens; of a value head, the entropy of right against wrong."""

    # How DAPO treats its batch (used while playing and crediting).
    dynamic_sampling: bool = False
    """Replace groups whose outcomes are all equal by new problems, up to `max_tries` rounds."""
    max_tries: int = Field(10, ge=1)
    """Rounds of replacing, at most."""
    overlong_filter: bool = False
    """Truncated solutions carry no advantage."""
    overlong_buffer: int = Field(0, ge=0)
    """Length of the zone before the sampling limit in which the reward falls from 0 to -1; 0 switches shaping off."""

    @model_validator(mode="after")
    def _sensible(self) -> Objective:
        if self.ratio == "sequence_mean" and self.aggregate != "sequence_mean":
            raise ValueError("ratio='sequence_mean' needs aggregate='sequence_mean': a token sum would weight by length")
        if self.ratio == "sequence_product" and self.aggregate != "sequence_sum":
            raise ValueError("ratio='sequence_product' needs aggregate='sequence_sum'")
        if self.ratio == "none" and self.clip != "none":
            raise ValueError(f"clip='{self.clip}' needs a ratio")
        if self.is_min > self.is_max:
            raise ValueError("is_min is larger than is_max")
        if self.dual_clip is not None and self.clip != "ppo":
            raise ValueError("dual_clip needs clip='ppo'")
        if self.kl_in == "loss" and self.kl == "k1" and self.kl_coef:
            raise ValueError("kl='k1' in the loss has expected gradient zero; use k2 or k3, or kl_in='reward'")
        if self.kl_in == "reward" and self.kl != "k1":
            raise ValueError("kl_in='reward' needs kl='k1': in a reward only k1 is an unbiased estimate")
        return self

    @property
    def needs(self) -> tuple[str, ...]:
        return NEEDS[self.kind]

    @property
    def uses_value_head(self) -> bool:
        return self.kind in ON_VALUES

    @property
    def uses_log_ratio(self) -> bool:
        """Whether a row's score is its log-ratio to the reference policy (an implicit reward)."""
        return self.kind in ("implicit_bce", "dpo")

    @property
    def is_regularised(self) -> bool:
        """Whether rows without any advantage still move the weights."""
        return self.entropy_coef != 0 or (self.kl_coef != 0 and self.kl_in == "loss")


OBJECTIVES: Registry[Objective] = Registry("objective")
for _name, _objective in {
    "grpo": Objective(),
    "dapo": Objective(clip_high=0.28, aggregate="token_mean", dynamic_sampling=True, overlong_filter=True),
    "dr_grpo": Objective(advantage="centre", aggregate="constant"),
    "rloo": Objective(advantage="leave_one_out", ratio="none", clip="none", aggregate="sequence_sum", kl="k1", kl_in="reward"),
    "reinforce_pp": Objective(advantage="whiten", aggregate="token_mean", kl="k1", kl_in="reward"),
    "reinforce_pp_baseline": Objective(advantage="whiten_baseline", whiten_shift=False, aggregate="token_mean", kl="k2"),
    "cispo": Objective(clip="detached", is_min=0.0, is_max=5.0, aggregate="token_mean"),
    "gspo": Objective(ratio="sequence_mean", clip_low=3e-4, clip_high=4e-4),
    "aipo": Objective(advantage="centre", clip="detached", is_min=0.0, is_max=4.0, aggregate="token_mean"),
    "aipo_a": Objective(advantage="centre", clip="capped", is_max=4.0, aggregate="token_mean"),
    "cross_entropy": Objective(kind="cross_entropy", aggregate="token_mean"),
    "value_bce": Objective(kind="value_bce", aggregate="token_mean"),
    "value_mse": Objective(kind="value_mse", aggregate="token_mean"),
    "bradley_terry": Objective(kind="bradley_terry"),
    "implicit_bce": Objective(kind="implicit_bce"),
    "dpo": Objective(kind="dpo", beta=0.1),
}.items():
    OBJECTIVES.add(_name, _objective)


def make_objective(preset: str, overrides: dict[str, Any] | None = None) -> Objective:
    """Make an objective from a preset and overrides of its fields; wrong names and combinations are config errors."""
    base = OBJECTIVES.get(preset)
    for key in overrides or {}:
        if key not in Objective.model_fields:
            raise ConfigError(f"unknown objective field '{key}': {suggest_name(key, Objective.model_fields)}")
    try:
        return Objective.model_validate({**base.model_dump(), **(overrides or {})})
    except ValidationError as error:
        raise explain(error, Objective, preset) from None
