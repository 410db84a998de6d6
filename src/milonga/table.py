"""The table where the seats meet: recipes ask seats for outputs, and get traces.

The table draws problems, writes prompts through the roles, samples through the engine, reads and grades what came back,
and records step ends in token space. It owns the keys of the randomness, so that recipes cannot depend on history.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from milonga.config import SamplingSection
from milonga.credit import kl_penalties
from milonga.engine import Completion, Decoding, Engine, Request
from milonga.errors import UserError
from milonga.objectives import Objective
from milonga.randomness import key64
from milonga.roles import Role
from milonga.tasks import Task
from milonga.types import Floats, Problem, Reading, Segment, Split, Trace, Traces


@dataclass(frozen=True)
class Setting:
    """What does not change during a run: the engine, the task, who sits where, how outputs are sampled."""

    engine: Engine
    task: Task
    roles: Mapping[str, Role]
    """Seat to role."""
    policies: Mapping[str, str]
    """Seat to policy: the one indirection that gives shared weights, adapters per seat and different sizes."""
    sampling: SamplingSection
    seed: int
    batch: int
    """Problems in a turn."""

    def limit(self, seat: str) -> int:
        """Most tokens of an output. Who judges a solution may write twice as much as who wrote it."""
        base = self.sampling.max_tokens or self.task.max_tokens
        return 2 * base if self.roles[seat].judges else base


@dataclass(frozen=True)
class _Asked:
    """One output that a seat was asked for."""

    id: str
    problem: Problem
    about: Trace | None
    request: Request


@dataclass
class Table:
    """One turn (or one evaluation) at the table."""

    setting: Setting
    turn: int | str
    learner: str
    start: int = 0
    """Index of the first problem of this turn."""
    split: Split = "train"
    progress: float = 0.0
    """How much of the run's budget is used, from 0 to 1."""
    drawn: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    """Samples that were left out, by reason."""
    asked: Counter[tuple[str, str, bool]] = field(default_factory=Counter)
    """Outputs of each seat for each subject: one that is asked about again gets new rollouts, not the same ones."""

    def problems(self, count: int | None = None) -> list[Problem]:
        """The next problems. Each learner has its own cursor: arms of a comparison see the same problems in the same order."""
        count = self.setting.batch if count is None else count
        drawn = self.setting.task.draw(self.split, self.start + self.drawn, count)
        self.drawn += count
        return drawn

    def ask(
        self, seat: str, subjects: Sequence[Problem] | Traces, n: int = 1, greedy: bool = False, tag: str = "live"
    ) -> Traces:
        """`n` outputs of a seat for each subject: problems for a solver, traces for a judge; adjacent for each subject."""
        role = self.setting.roles[seat]
        policy = self.setting.policies[seat]
        asked: list[_Asked] = []
        for subject in subjects:
            problem, about = (subject, None) if isinstance(subject, Problem) else (subject.problem, subject)
            context = self.setting.engine.encode(policy, role.prompt(problem, about))
            if len(context) + 1 > self.setting.engine.context_limit(policy):
                self.dropped[f"{seat}: prompt longer than the model's context"] += n
                continue
            for _ in range(n):
                name = f"{subject.id}/{self.asked[seat, subject.id, greedy]}"
                self.asked[seat, subject.id, greedy] += 1
                request = Request(context, key64(self.setting.seed, self.turn, seat, name, greedy))
                asked.append(_Asked(f"{self.turn}/{seat}/{name}", problem, about, request))
        if subjects and not asked:
            limit = self.setting.engine.context_limit(policy)
            raise UserError(
                f"no prompt of the {seat} fits into the {limit} tokens of its model; use another, or shorter problems"
            )
        decoding = Decoding(self.setting.limit(seat), 1.0 if greedy else self.setting.sampling.temperature, role.stop, greedy)
        answers = self.setting.engine.sample(policy, [a.request for a in asked], decoding, tag)
        # Only what the live policy sampled untruncated may enter a policy gradient (law 2).
        made = Segment(seat, 0, 0, policy, self.setting.engine.version(policy), trained=tag == "live" and not greedy)
        traces = [self._trace(one, answer, made, decoding) for one, answer in zip(asked, answers, strict=True)]
        return Traces(traces if role.judges else self._graded(traces))

    def _trace(self, asked: _Asked, answer: Completion, made: Segment, decoding: Decoding) -> Trace:
        """An output as a trace; `made` says by whom, and is put in its place here."""
        start = len(asked.request.context)
        end = start + len(answer.ids)
        reading = self.setting.roles[made.producer].read(answer.text, asked.about)
        steps = step_spans(reading, answer, start)
        if len(steps) != len(reading.value.ends):
            reading = Reading(reading.value, reading.format, "two steps end in the same token")
        return Trace(
            id=asked.id,
            seat=made.producer,
            problem=asked.problem,
            ids=np.concatenate([asked.request.context, answer.ids]),
            segments=(Segment("prompt", 0, start), replace(made, start=start, end=end)),
            logprobs=np.concatenate([np.zeros(start), answer.logprobs]),
            text=answer.text,
            reading=reading,
            steps=steps,
            about=() if asked.about is None else (asked.about,),
            finish=answer.finish,
            temperature=decoding.temperature,
        )

    def _graded(self, traces: list[Trace]) -> list[Trace]:
        solutions = [t.reading.value for t in traces]
        items = [(t.problem, s.answer, s.steps) for t, s in zip(traces, solutions, strict=True)]
        for trace, grade in zip(traces, self.setting.task.grade_all(items), strict=True):
            trace.grade = grade
            if grade.correct is None:
                self.dropped[f"{trace.seat}: the grader could not tell"] += 1
        return traces

    def penalties(self, traces: Traces, objective: Objective) -> list[Floats] | None:
        """The KL cost inside the reward, for objectives that have it there."""
        if not objective.kl_coef or objective.kl_in != "reward" or not traces:
            return None
        reference = self.setting.engine.score(self.setting.policies[traces[0].seat], traces, "ref")
        return kl_penalties(traces, reference, objective.kl_coef)


def step_spans(reading: Reading, answer: Completion, start: int) -> tuple[tuple[int, int], ...]:
    """Token spans of the steps, from where each ends in the text as it was sampled; () unless all ends are distinct tokens."""
    ends = [start + int(np.searchsorted(answer.ends, end)) + 1 for end in reading.value.ends]
    if len(set(ends)) != len(ends):
        return ()
    return tuple(zip([start, *ends[:-1]], ends, strict=False))
