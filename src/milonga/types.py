"""The data types that are passed between the layers: problems, rollouts, train batches. Nothing here imports torch.

Invariants:
- Token ids are sacred: a rollout (`Rollout`) holds the ids that were sampled, and its text is never encoded again.
- Every per-token array of a rollout (log-probabilities, advantages) is aligned with `Rollout.ids`, prompt included; entries
  outside the trained segments are zero. The value at position t belongs to the prediction of `ids[t]` from `ids[:t]`.
- A parse failure is a value: a `Parsed` that is not valid says why, and is never a silent zero.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

from milonga.errors import DataError
from milonga.reading import check_text

if TYPE_CHECKING:
    from milonga.objectives import Loss

Split = Literal["train", "dev", "test"]
SPLITS: tuple[Split, ...] = ("train", "dev", "test")
Floats = NDArray[np.float64]
"""Shape [rollouts] unless said otherwise: one value for each rollout."""
PerToken = NDArray[np.float64]
"""Shape [tokens]: one value for each of a rollout's ids, prompt included; zero where nothing is trained."""
Finish = Literal["eos", "stop", "length"]


@dataclass(frozen=True)
class Problem:
    """One question with its reference answer. `text` is what models see; `answer` and `data` never enter a prompt."""

    id: str
    text: str
    answer: str
    data: Mapping[str, Any] = field(default_factory=dict)
    source: str | None = None
    """The id of the rollout that proposed this problem, if a model invented it."""

    def __post_init__(self) -> None:
        for name in ("id", "text", "answer"):
            try:
                check_text(str(getattr(self, name)))
            except ValueError as error:
                raise DataError(f"problem {self.id!a:.80}: its {name} cannot be used: {error}") from None

    @property
    def wants_program(self) -> bool:
        """Whether the answer is a program, which a model writes into a code fence rather than into a box."""
        return self.data.get("form") == "program"

    @property
    def reply(self) -> str | None:
        """The reply of the data, word for word, if the source is a file of replies: then the text is the whole prompt, and any
        text is a reply."""
        return self.data.get("reply")

    @property
    def rejected(self) -> str | None:
        """The reply that people liked less than `reply`, if the source is a file of preferences."""
        return self.data.get("rejected")

    @property
    def labelled_steps(self) -> tuple[tuple[str, bool], ...]:
        """A solution of the data with labels of its steps: right before the first error, and not after it; empty if there is
        none."""
        return tuple(self.data.get("labelled_steps", ()))

    @property
    def is_open(self) -> bool:
        """Whether any text is an answer: none is put into a box, and none is graded."""
        return self.data.get("form") == "open"

    @property
    def has_reference(self) -> bool:
        """Whether the task knows which answers are right; nobody does where a model wrote the question in free text."""
        return not self.is_open and not self.data.get("posed")


@dataclass(frozen=True)
class Grade:
    """The grade of one solution by the task. `None` means unknown: excluded from baselines, never counted as wrong."""

    correct: bool | None
    steps: tuple[bool, ...] | None = None
    """Exact label of each step given the steps before it. For measuring, and for recipes with `needs = {STEPS}`."""
    reward: float | None = None
    """The outcome reward, where it is more than right or wrong; NaN if it is unknown. None: 1 or 0, as `correct` says."""

    @property
    def is_sound(self) -> bool | None:
        """Whether the answer and every step are right; an answer without steps is a guess. None if the steps are unknown."""
        if self.correct is None or self.steps is None:
            return None
        return self.correct and bool(self.steps) and all(self.steps)

    @property
    def first_error(self) -> int | None:
        """Index of the first wrong step, -1 if there is none, None where the steps are unknown."""
        if self.steps is None:
            return None
        return next((i for i, right in enumerate(self.steps) if not right), -1)


@dataclass(frozen=True)
class Solution:
    """A solver's completion, parsed: its steps, where each ends in the text, and its answer."""

    steps: tuple[str, ...]
    ends: tuple[int, ...]
    """For each step the number of characters up to and including its closing mark."""
    answer: str | None
    begin: int = field(default=0, kw_only=True)
    """The number of characters before the first step: a thought, where the steps are those of what follows it."""


@dataclass(frozen=True)
class Verification:
    """The verdicts of a verifier of any kind. `steps` holds one verdict for each step of the solution, or for the steps up to
    the first wrong one, where the verifier stopped: what follows is unknown. It is None where that cannot be read."""

    steps: tuple[bool, ...] | None
    final: bool | None
    ends: tuple[int, ...] = ()
    score: float | None = None
    """Estimated probability that the solution is right, from 0 to 1; None if it gives verdicts alone."""
    step_scores: tuple[float, ...] | None = None
    """The same for each step."""
    soft: float | None = None
    """How sure written verdicts are, where there is no score: the probability that the solution is right, from those of the
    sampled verdicts. `rank` does without it; the choice metrics rank by it."""
    soft_steps: tuple[float, ...] | None = None
    """The same for each step; `tango_balanced` can pay its generator by them."""

    @property
    def rank(self) -> float:
        """The score by which solutions of one problem are ranked: `score` if there is one. Otherwise the final verdict decides,
        and among equals the share of steps judged right."""
        if self.score is not None:
            return self.score
        return float(self.final is True) + (sum(self.steps) / len(self.steps) if self.steps else 0.0) / 2


class ParsedValue(Protocol):
    """What a role parses a completion into. `ends`: for each step, the number of characters of the text up to its end."""

    @property
    def ends(self) -> tuple[int, ...]: ...


V = TypeVar("V")


@dataclass(frozen=True)
class Parsed:
    """A parsed completion: its value, a format score in [0, 1], and why it is invalid, if it is."""

    value: ParsedValue | None
    """None only for rows that nobody parses, such as those that a learner is handed by workers."""
    format: float
    invalid: str | None = None

    @property
    def ends(self) -> tuple[int, ...]:
        return () if self.value is None else self.value.ends

    def get(self, kind: type[V]) -> V:
        """Return the value, which must be of this kind: roles differ in what they parse completions into."""
        if not isinstance(self.value, kind):
            raise TypeError(f"a {type(self.value).__name__} was parsed where a {kind.__name__} is expected")
        return self.value

    @property
    def is_valid(self) -> bool:
        return self.invalid is None


@dataclass(frozen=True)
class Part:
    """A piece of a prompt. Foreign text (written by a model or a data set) is encoded with special tokens off."""

    text: str
    foreign: bool = False


Prompt = tuple[Part, ...]


@dataclass(frozen=True)
class Segment:
    """A span `[start, end)` of a rollout's ids by one producer. Only segments that a policy sampled itself may be trained."""

    producer: str
    start: int
    end: int
    policy: str | None = None
    version: int | None = None
    trained: bool = False


@dataclass
class Rollout:
    """A rollout: one conversation of one agent in token space, with its parsed value and the rollouts that it judges.

    `ids`, `logprobs` and `mask` have one entry per token, prompt included. A conversation of several turns grows by appending
    ids. Its text, parsed value, steps, grade and finish are those of the last turn; `target` is then the same conversation
    before that turn, and the ids, segments and log-probabilities begin with those.
    """

    id: str
    agent: str
    problem: Problem
    ids: NDArray[np.int64]
    segments: tuple[Segment, ...]
    logprobs: Floats
    text: str
    parsed: Parsed
    steps: tuple[tuple[int, int], ...] = ()
    """Token span `[start, end)` of each step, in positions of `ids`."""
    targets: tuple[Rollout, ...] = ()
    origin: Literal["sampled", "given"] = "sampled"
    finish: Finish = "eos"
    temperature: float = 1.0
    grade: Grade | None = None
    chars: NDArray[np.int64] | None = None
    """For each of `ids`, the characters of `text` complete after it; 0 in the prompt. For display, never for credit."""

    @classmethod
    def from_text(cls, id: str, agent: str, problem: Problem, text: str, parsed: Parsed, grade: Grade | None = None) -> Rollout:
        """Make a rollout of a text that no policy sampled (a demonstration, a reference solution). It has no ids: it can be
        judged or shown, not trained."""
        nothing = np.zeros(0)
        return cls(id, agent, problem, nothing.astype(np.int64), (), nothing, text, parsed, origin="given", grade=grade)

    @property
    def mask(self) -> NDArray[np.bool_]:
        """True at the tokens that are trained."""
        mask = np.zeros(len(self.ids), dtype=bool)
        for segment in self.segments:
            mask[segment.start : segment.end] |= segment.trained
        return mask

    @property
    def turn_spans(self) -> tuple[tuple[int, int], ...]:
        """Token span `[start, end)` of each turn of the agent itself; turns of others, and of tools, lie in between."""
        spans: list[tuple[int, int]] = []
        for segment in self.segments:
            if segment.producer != self.agent:
                continue
            if spans and spans[-1][1] == segment.start:
                spans[-1] = (spans[-1][0], segment.end)
            else:
                spans.append((segment.start, segment.end))
        return tuple(spans)

    @property
    def earlier_conversation(self) -> Rollout | None:
        """The same conversation before its last turn; None where that is its first."""
        return self.targets[0] if len(self.turn_spans) > 1 else None

    @property
    def length(self) -> int:
        """The number of trained tokens."""
        return sum(s.end - s.start for s in self.segments if s.trained)

    @property
    def target(self) -> Rollout:
        """The one rollout that this one judges, continues or replies to."""
        if len(self.targets) != 1:
            raise ValueError(f"rollout {self.id} is about {len(self.targets)} rollouts, not one")
        return self.targets[0]

    @property
    def solution(self) -> Solution:
        """What was parsed from a solver's completion."""
        return self.parsed.get(Solution)

    @property
    def verification(self) -> Verification:
        """What was parsed from a judge's completion, or computed by a scorer."""
        return self.parsed.get(Verification)

    @property
    def correct(self) -> float:
        """Outcome of the grader: 1.0 or 0.0; NaN if it could not tell."""
        if self.grade is None or self.grade.correct is None:
            return float("nan")
        return float(self.grade.correct)

    @property
    def reward(self) -> float:
        """The outcome reward: that of its grade, or else 1.0 and 0.0 as the answer is right or wrong; NaN if unknown."""
        if self.grade is None or self.grade.reward is None:
            return self.correct
        return self.grade.reward


class Rollouts(Sequence[Rollout]):
    """A list of rollouts with the columns that credit assignment needs."""

    def __init__(self, items: Iterable[Rollout]) -> None:
        self.items = list(items)

    @overload
    def __getitem__(self, index: int) -> Rollout: ...
    @overload
    def __getitem__(self, index: slice) -> Rollouts: ...
    def __getitem__(self, index: int | slice) -> Rollout | Rollouts:
        return Rollouts(self.items[index]) if isinstance(index, slice) else self.items[index]

    def __len__(self) -> int:
        return len(self.items)

    def __iter__(self) -> Iterator[Rollout]:
        return iter(self.items)

    def of(self, agent: str) -> Rollouts:
        """Return the rollouts of one agent, in order."""
        return Rollouts(rollout for rollout in self.items if rollout.agent == agent)

    def select(self, wanted: Callable[[Rollout], bool]) -> Rollouts:
        return Rollouts(t for t in self.items if wanted(t))

    @property
    def targets(self) -> Rollouts:
        """The targets of these rollouts (what they judge), each once, in order of first appearance."""
        seen: dict[str, Rollout] = {}
        for rollout in self.items:
            seen.setdefault(rollout.target.id, rollout.target)
        return Rollouts(seen.values())

    @property
    def correct(self) -> Floats:
        """Whether each answer is right: for labels and measurements."""
        return np.array([t.correct for t in self.items], dtype=float)

    @property
    def rewards(self) -> Floats:
        """The outcome reward of each: for credit."""
        return np.array([t.reward for t in self.items], dtype=float)

    @property
    def problem_ids(self) -> list[str]:
        """Problem id of each rollout: the group key of a solver, whose rollouts of one problem share a baseline."""
        return [t.problem.id for t in self.items]

    @property
    def target_ids(self) -> list[str]:
        """Target id of each rollout: the group key of a verifier, whose verifications of one solution share a baseline."""
        return [t.target.id for t in self.items]


@dataclass
class TrainBatch:
    """A train batch: which policy learns, by which loss, from which rollouts (rows) with which training signals.

    Exactly the targets that the loss needs are set. Rows that share a unit (a pair, a trajectory) are never split by
    packing; without units every row is its own. A policy gradient takes only rows that were sampled (law 2).
    """

    policy: str
    loss: Loss
    rollouts: Rollouts
    advantages: list[PerToken] | None = None
    """Advantage of each token: one float array per rollout, aligned with its ids."""
    targets: list[PerToken] | None = None
    """Value target of each token, from 0 to 1, NaN where there is none: one float array per rollout, aligned with its ids."""
    labels: list[float] | None = None
    """Label of each row, from 0 (wrong) to 1 (right); of the two rows of a pair, the one with the higher label should win."""
    factors: list[PerToken] | None = None
    """Weight of each token's log-ratio in the score of its row (implicit rewards, DPO), aligned with its ids; None means 1."""
    units: list[int] | None = None
    weights: list[float] | None = None
    """Weight of each row in the loss, the same for both rows of a pair; rows of weight 0 are not computed."""
    stale_cap: float | None = None
    """Cap on a token's importance weight, if older versions of the learner sampled the rows of a policy gradient. None if the
    current version sampled them."""
    lr_scale: float = 1.0
    """Factor of the policy's learning rate, by its schedule; the loop sets it. Warm-up comes on top."""
    sources: dict[str, float] = field(default_factory=dict)
    """Share of the credit that came from each source (`answers`, `steps`, an agent): the edges of the reward flow."""
    notes: dict[str, float] = field(default_factory=dict)
    """Figures about the credit itself (shares, class counts) that belong into the turn's metrics row."""

    def __post_init__(self) -> None:
        for name in ("advantages", "targets", "labels", "factors", "units", "weights"):
            column = getattr(self, name)
            if column is not None and len(column) != len(self.rollouts):
                raise ValueError(f"train batch for '{self.policy}': {len(column)} {name} for {len(self.rollouts)} rollouts")
        for name in ("advantages", "targets", "factors"):
            for rollout, array in zip(self.rollouts, getattr(self, name) or [], strict=False):
                if len(array) != len(rollout.ids):
                    raise ValueError(f"{name} of rollout {rollout.id} are not aligned with its ids")
        missing = [name for name in self.loss.needs if getattr(self, name) is None]
        if missing:
            raise ValueError(f"train batch for '{self.policy}': '{self.loss.kind}' needs {', '.join(missing)}")
        if self.stale_cap is not None and self.loss.kind != "policy_gradient":
            raise ValueError(f"train batch for '{self.policy}': '{self.loss.kind}' cannot learn from older samples")
        if self.loss.kind == "policy_gradient" and any(t.origin == "given" for t in self.rollouts):
            raise ValueError(
                f"train batch for '{self.policy}': given texts cannot enter a policy gradient, only what was sampled"
            )
