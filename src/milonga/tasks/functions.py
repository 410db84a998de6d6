"""Functions of the user's own that a run calls on every solution: rewards, and the extraction of answers.

Invariants: a mistake in one of them stops the run with one line that says where it is and on which row; nothing that it returns
is guessed at. The user's code runs in our process and is trusted.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

from milonga.config import RewardSection
from milonga.errors import ConfigError
from milonga.loading import describe_place, format_name, load_attribute, make_load_error
from milonga.types import Problem, Rollout

COLUMNS = "columns"
"""The key of `Problem.data` that holds all columns of the row that a problem was made of."""


@dataclass(frozen=True)
class RewardFunction:
    """A function `f(prompts, completions, **columns) -> list[float | None]`, as TRL's trainers take it, with its weight.

    All arguments are lists with one entry for each solution. `prompts` are the questions and `completions` the solutions, as
    plain text, also for chat models, where TRL would pass messages. The columns are `question`, `answer`, and all others of the
    data row. None means that the function does not know.
    """

    name: str
    call: Callable[..., Any]
    weight: float

    def compute(self, rollouts: Sequence[Rollout]) -> list[float]:
        """Return the reward of each solution; NaN where it is unknown."""
        try:
            found = self._call(rollouts)
        except Exception as error:
            row = next((rollout for rollout in rollouts if self._fails_on(rollout)), None)
            where = "" if row is None else f" on {_describe_row(row)}"
            raise make_load_error(f"reward '{self.name}'{where}", error) from None
        if not isinstance(found, Sequence) or len(found) != len(rollouts):
            got = f"{len(found)} values" if isinstance(found, Sequence) else f"a value of type {type(found).__name__}"
            raise self._complain(f"gave {got} for {len(rollouts)} completions; return a list with one number for each")
        return [self._check(value, rollout) for value, rollout in zip(found, rollouts, strict=True)]

    def _call(self, rollouts: Sequence[Rollout]) -> Any:
        columns = _collect_columns([rollout.problem for rollout in rollouts])
        prompts, completions = [rollout.problem.text for rollout in rollouts], [rollout.text for rollout in rollouts]
        return self.call(prompts=prompts, completions=completions, **columns)

    def _fails_on(self, rollout: Rollout) -> bool:
        try:
            self._call([rollout])
        except Exception:
            return True
        return False

    def _check(self, value: Any, rollout: Rollout) -> float:
        if value is None:
            return math.nan
        if not isinstance(value, Real) or not math.isfinite(value):
            raise self._complain(f"gave {value!r:.80} for {_describe_row(rollout)}; return a finite number, or None if unknown")
        return float(value)

    def _complain(self, what: str) -> ConfigError:
        return ConfigError(f"reward '{self.name}' ({describe_place(self.call)}) {what}")


def _describe_row(rollout: Rollout) -> str:
    return f"row '{rollout.problem.id}' ({rollout.problem.text!r:.80})"


def _collect_columns(problems: Sequence[Problem]) -> dict[str, list[Any]]:
    """Collect the columns of these problems' rows, one list each; None where a row does not have the column."""
    rows = [{**p.data.get(COLUMNS, {}), "question": p.text, "answer": p.answer} for p in problems]
    names = dict.fromkeys(str(name) for row in rows for name in row)
    return {name: [row.get(name) for row in rows] for name in names if name not in ("prompts", "completions")}


def load_rewards(sections: Sequence[RewardSection]) -> tuple[RewardFunction, ...]:
    """Load the reward functions that a config names."""
    return tuple(_load_reward(section) for section in sections)


def _load_reward(section: RewardSection) -> RewardFunction:
    found = _load_function("reward", section.function)
    taken = inspect.signature(found).parameters
    if not any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in taken.values()):
        raise ConfigError(
            f"reward '{format_name(section.function)}' ({describe_place(found)}) must take (prompts, completions, **columns), "
            f"not ({', '.join(taken)})"
        )
    return RewardFunction(format_name(section.function), found, section.weight)


def _load_function(kind: str, name: str) -> Callable[..., Any]:
    found, _ = load_attribute(kind, name)
    if not callable(found):
        raise ConfigError(f"{kind} '{name}' is not a function, but a value of type {type(found).__name__}")
    return found  # type: ignore[no-any-return]


def sum_rewards(functions: Sequence[RewardFunction], rollouts: Sequence[Rollout]) -> list[float]:
    """Return the weighted sum of all rewards of each solution. Unknown ones are left out; NaN if all are unknown."""
    columns = [(function.weight, function.compute(rollouts)) for function in functions]
    known = [
        [weight * rewards[row] for weight, rewards in columns if not math.isnan(rewards[row])] for row in range(len(rollouts))
    ]
    return [sum(found) if found else math.nan for found in known]


@dataclass(frozen=True)
class Extractor:
    """A function `f(text, problem) -> answer` that finds the answer in a solution; None if there is none."""

    name: str
    call: Callable[[str, Problem], Any]

    def __call__(self, text: str, problem: Problem) -> str | None:
        try:
            answer = self.call(text, problem)
        except Exception as error:
            raise make_load_error(f"extract '{self.name}' on {text!r:.80}", error) from None
        if answer is not None and not isinstance(answer, str):
            where = f"extract '{self.name}' ({describe_place(self.call)})"
            raise ConfigError(f"{where} gave {answer!r:.80} for {text!r:.80}; return a text, or None if there is no answer")
        return answer


def load_extractor(name: str | None) -> Extractor | None:
    """Load the extractor that a config names, if it names one."""
    return None if name is None else Extractor(format_name(name), _load_function("extract", name))
