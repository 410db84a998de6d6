"""The parts of an objective as data: how advantages are estimated, what the loss is, and which rollouts count.

All of the policy-gradient family is REINFORCE with four independent choices: baseline and scale of the advantage
(`Estimator`), what is clipped, whether clipped tokens keep a gradient, and what the sum over tokens is divided by (`Loss`). See
`losses.py` for the formulas and `presets.py` for the published methods. Invariant: credit reads the estimator alone, a learner
the loss alone, sampling the filter alone. Nothing here imports torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

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
"""The fields of a train batch that a loss requires."""
PAIRED: tuple[Kind, ...] = ("bradley_terry", "dpo")
"""Losses whose units are pairs of rows."""
ON_VALUES: tuple[Kind, ...] = ("value_bce", "value_mse", "bradley_terry")
"""Losses of a value head, rather than of a language model's probabilities."""

UNREGULARISED: tuple[Kind, ...] = ("cross_entropy", "bradley_terry", "implicit_bce", "dpo")
"""Losses that have neither a KL nor an entropy term."""


class Part(BaseModel):
    """A part of an objective; no other key is allowed, and none is changed later."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Estimator(Part):
    """How rewards become advantages: baseline, scale, and a KL penalty inside the reward. Used by credit."""

    advantage: Literal["zscore", "zscore_population", "centre", "leave_one_out", "whiten", "whiten_baseline"] = "zscore"
    """zscore: group mean and unbiased std; zscore_population: the group's own std. centre: group mean. leave_one_out: mean of
    the others. whiten: return-to-go, whitened over all tokens of the batch. whiten_baseline: group mean first, then the same
    whitening."""
    gamma: float = Field(1.0, gt=0, le=1)
    """Discount of the return-to-go, per token; only `whiten` uses it."""
    whiten_shift: bool = True
    """Whether whitening subtracts the batch mean. Off for `whiten_baseline`, where it would move unanimous groups."""
    kl_coef: float = Field(0.0, ge=0)
    """Weight of the KL to `kl_from` (k1 of each token), taken off the reward; 0 for none."""
    kl_from: str = "ref"
    """The version of the policy that the KL is measured from: `ref`, its start, or a snapshot that the schedule takes."""


class Loss(Part):
    """What a learner minimises, given advantages, targets or labels. Used by the learner."""

    kind: Kind = "policy_gradient"
    """What is minimised: a policy gradient, or one of the losses on labels and pairs."""
    beta: float = Field(0.05, gt=0)
    """Scale of the log-ratio to the reference, where that is the score: `implicit_bce` and `dpo`."""
    pair_loss: Literal["ranking", "difference", "hinge"] = "ranking"
    """Of a pair's margin m: ranking is -log sigmoid(m); hinge is max(0, 1 - m); difference is -m, which needs something else to
    bound the scores."""
    nll_coef: float = Field(0.0, ge=0)
    """Of `dpo`: weight of imitating the winner too, as the mean over its tokens. A margin alone may make both unlikely."""

    # What is clipped.
    ratio: Literal["token", "sequence_mean", "sequence_product", "none"] = "token"
    """The importance ratio: per token, exp of the mean log-ratio of a sequence, the product over it, or none."""
    clip_low: float = Field(0.2, ge=0)
    """Ratios below 1 - clip_low are clipped."""
    clip_high: float = Field(0.2, ge=0)
    """Ratios above 1 + clip_high are clipped."""
    dual_clip: float | None = Field(None, gt=1)
    """For negative advantages, bound the loss at this many times the advantage."""
    recompute_old: bool | None = None
    """Whether the ratio is to log-probabilities that the learner computes before its first step, instead of the sampler's. By
    default only where the ratio is per sequence and the learner is not on a CPU: in bfloat16 the two differ by more than the
    range of such a ratio."""

    # Whether clipped tokens keep a gradient.
    clip: Literal["ppo", "detached", "capped", "none"] = "ppo"
    """ppo: min(r A, clip(r) A), no gradient beyond the bounds. detached: sg[clamp(r)] A log pi, always a gradient.
    capped: min(r, is_max) A, no gradient above. none: r A, or A log pi where there is no ratio."""
    is_min: float = Field(0.0, ge=0)
    """Lower bound of a `detached` ratio."""
    is_max: float = Field(5.0, gt=0)
    """Upper bound of a `detached` or `capped` ratio."""

    # What the sum over tokens is divided by, over the whole batch of an optimizer step.
    aggregate: Literal["token_mean", "sequence_mean", "constant", "sequence_sum"] = "sequence_mean"
    """token_mean: all tokens. sequence_mean: the tokens of each sequence, then the sequences. constant: sequences times
    `length`. sequence_sum: sequences."""
    length: int | None = Field(None, ge=1)
    """The constant of `aggregate = "constant"`; in a run the agent's token limit, where it is not given."""

    # Regularisers.
    kl: Literal["k1", "k2", "k3"] = "k3"
    """The estimator of each token. As a loss only k2 and k3 pull; k1 belongs into the reward."""
    kl_coef: float = Field(0.0, ge=0)
    """Weight of the KL to `kl_from`; 0 for none."""
    kl_from: str = "ref"
    """The version of the policy that the KL, or a row's log-ratio, is measured from: `ref`, its start, or a snapshot that the
    schedule takes."""
    entropy_coef: float = 0.0
    """Of a language model's tokens; of a value head, the entropy of right against wrong."""

    @model_validator(mode="after")
    def _check_ratio(self) -> Self:
        if self.ratio == "sequence_mean" and self.aggregate != "sequence_mean":
            raise ValueError("ratio='sequence_mean' needs aggregate='sequence_mean': a token sum would weight by length")
        if self.ratio == "sequence_product" and self.aggregate != "sequence_sum":
            raise ValueError("ratio='sequence_product' needs aggregate='sequence_sum'")
        if self.ratio == "none" and self.clip != "none":
            raise ValueError(f"clip='{self.clip}' needs a ratio")
        if self.recompute_old and (self.ratio == "none" or self.kind != "policy_gradient"):
            raise ValueError("recompute_old needs a policy gradient with a ratio")
        if self.is_min > self.is_max:
            raise ValueError("is_min is larger than is_max")
        if self.dual_clip is not None and self.clip != "ppo":
            raise ValueError("dual_clip needs clip='ppo'")
        return self

    @model_validator(mode="after")
    def _check_regularisers(self) -> Self:
        for name in ("kl_coef", "entropy_coef"):
            if self.kind in UNREGULARISED and getattr(self, name):
                raise ValueError(f"{name} does nothing in a loss of the kind '{self.kind}'; leave it out")
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
    def weighs_by_ratio(self) -> bool:
        """Whether the ratio is itself a truncated importance weight (CISPO, AIPO), so that it corrects for who sampled."""
        return self.clip in ("detached", "capped")

    def recomputes_old(self, on_cpu: bool) -> bool:
        """Whether the learner computes the ratio's old log-probabilities itself."""
        if self.recompute_old is None:
            return self.ratio.startswith("sequence") and not on_cpu
        return self.recompute_old

    @property
    def is_regularised(self) -> bool:
        """Whether rows without any advantage still move the weights."""
        return self.entropy_coef != 0 or self.kl_coef != 0


class RolloutFilter(Part):
    """Which rollouts a batch is made of, and what overlong (DAPO) and well-formed ones are paid. Used while sampling and for
    their rewards."""

    dynamic_sampling: bool = False
    """Replace groups whose outcomes are all equal by new problems, up to `max_tries` rounds."""
    max_tries: int = Field(10, ge=1)
    """Rounds of replacing, at most."""
    overlong_filter: bool = False
    """Truncated solutions carry no advantage."""
    overlong_buffer: float = Field(0, ge=0)
    """Length of the zone before the sampling limit in which the reward falls from 0 to -1 (DAPO's soft overlong punishment), in
    tokens, or below 1 as a share of the limit; 0 switches shaping off."""
    format_weight: float = Field(0.0, ge=0)
    """What a solution's format score, from 0 to 1, adds to its outcome reward. The answer counts in any case."""
