"""The context in which a recipe samples rollouts: it asks agents for completions, and gets rollouts.

The context draws problems, writes prompts through the roles, samples through the engine, parses and grades the completions,
and records step ends in token space. It owns the keys of the randomness, so that recipes cannot depend on history.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from milonga import judging
from milonga.config import SamplingSection
from milonga.credit import kl_penalties
from milonga.engine import Completion, Decoding, Engine, History, Request
from milonga.errors import TooLongError
from milonga.objectives import Objective
from milonga.preferences import Preference, Preferences, Side
from milonga.randomness import key64
from milonga.roles import Role
from milonga.tasks import Task
from milonga.timeline import Timeline
from milonga.types import Floats, Problem, Prompt, Reading, Segment, Solution, Split, Trace, Traces

TOOL = "tool"
"""Producer of the segments in which the task's tool answers a call."""


@dataclass(frozen=True)
class Setting:
    """What does not change during a run: the engine, the task, the role and policy of each agent, the sampling options."""

    engine: Engine
    task: Task
    roles: Mapping[str, Role]
    """Agent to role."""
    policies: Mapping[str, str]
    """Agent to policy: the one indirection that gives shared weights, adapters per agent and different model sizes."""
    sampling: SamplingSection
    seed: int
    batch: int
    """Problems in a turn."""

    def get_max_tokens(self, seat: str) -> int:
        """Most new tokens of an agent's completion: the limit of the task's solutions, times the role's `room`."""
        return self.roles[seat].length_factor() * (self.sampling.max_tokens or self.task.max_tokens)


@dataclass(frozen=True)
class _Asked:
    """One completion that an agent is asked for. `prefix` is a solution to continue, and after how many steps to cut it; `talk`
    is the conversation so far and who spoke after it."""

    id: str
    problem: Problem
    about: Trace | None
    request: Request
    prefix: tuple[Trace, int] | None = None
    talk: tuple[Trace, str] | None = None


@dataclass
class Table:
    """The sampling context of one turn, or of one evaluation."""

    setting: Setting
    turn: int | str
    learner: str
    phase: str = ""
    """The name of the phase, where the schedule gives it one."""
    round: int = 0
    """How often a phase of the same learner and name came before."""
    start: int = 0
    """Index of the first problem of this turn."""
    split: Split = "train"
    progress: float = 0.0
    """How much of the run's budget is used, from 0 to 1."""
    drawn: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    """Samples that were left out, by reason."""
    asked: Counter[tuple[str, str, bool]] = field(default_factory=Counter)
    """Number of completions of each agent for each target so far: asking about one again gives new rollouts, not the same."""
    preferences: Preferences = field(default_factory=Preferences)
    """The pairs that the run has kept so far."""
    timeline: Timeline = field(default_factory=Timeline)
    history: History | None = None
    """Prefix cache of the conversations that are going on."""
    busy: bool = False
    """Whether rollouts of later turns are being sampled meanwhile: then nothing can be sampled in this context."""

    @contextmanager
    def cache_conversations(self) -> Iterator[None]:
        """Cache the prefixes of what is sampled in this block, so that `reply` and `complete` do not compute them again. It
        saves time, costs memory while the block lasts, and changes no result."""
        if self.history is not None:  # an outer block is as good
            yield
            return
        self.history = self.setting.engine.open_history()
        try:
            yield
        finally:
            self.history.close()
            self.history = None

    def problems(self, count: int | None = None) -> list[Problem]:
        """Draw the next problems. Each learner has its own cursor: arms of a comparison see the same problems in the same
        order."""
        count = self.setting.batch if count is None else count
        drawn = self.setting.task.draw_problems(self.split, self.start + self.drawn, count)
        self.drawn += count
        return drawn

    def draw_problems_at(self, levels: Sequence[int]) -> list[Problem]:
        """Draw the next problems, one at each of these levels of the task."""
        first = self.start + self.drawn
        self.drawn += len(levels)
        return [self.setting.task.at_level(level).problem(self.split, first + n) for n, level in enumerate(levels)]

    def ask(
        self, seat: str, subjects: Sequence[Problem] | Traces, n: int = 1, greedy: bool = False, tag: str = "live"
    ) -> Traces:
        """Sample `n` rollouts of an agent for each target: problems for a solver, rollouts for a judge. Those of one target are
        adjacent.

        If the task has a tool, a completion that calls it is answered, and the agent continues until it makes no more calls.
        """
        asked: list[_Asked] = []
        everyone: list[Problem | Trace] = list(subjects)
        for subject, context in zip(everyone, self._encode_prompts(seat, everyone, n), strict=True):
            if context is not None:
                named = self._make_ids(seat, subject.id, n, greedy)
                asked += [_Asked(id, *split_target(subject), Request(context, key)) for id, key in named]
        self._require_any(seat, subjects, asked)
        with nullcontext() if self.setting.task.tool is None else self.cache_conversations():
            traces = self._answer_tool_calls(seat, self._sample(seat, asked, greedy, tag), greedy, tag)
        return Traces(traces if self.setting.roles[seat].judges else self._grade_solutions(traces))

    def complete(
        self, seat: str, prefixes: Sequence[tuple[Trace, int]], n: int = 1, tag: str = "live", step: bool = False
    ) -> Traces:
        """Sample `n` solutions that continue the first steps of a given one: `(solution, 3)` keeps its first three.

        The prefix is cut in token space, where the third step ends; it is never encoded again. With `step` each completion is
        one more step alone, or the answer.
        """
        asked: list[_Asked] = []
        for solution, count in prefixes:
            cut = solution.steps[count - 1][1] if count else solution.segments[-1].start
            named = self._make_ids(seat, f"{solution.id}+{count}", n, False)
            asked += [
                _Asked(id, solution.problem, solution, Request(solution.ids[:cut], key), (solution, count)) for id, key in named
            ]
        more = self.setting.roles[seat].step_stop if step else ()
        return Traces(self._grade_solutions(self._sample(seat, asked, False, tag, more)))

    def reply(
        self,
        seat: str,
        talks: Traces,
        said: Sequence[Prompt],
        n: int = 1,
        greedy: bool = False,
        tag: str = "live",
        speaker: str = "prompt",
    ) -> Traces:
        """Sample `n` next turns of each of an agent's conversations, after the message `said` by `speaker`.

        Ids are appended to those of the conversation, which are never encoded again. Turns that the live policy sampled stay
        trained; messages of others, and turns that were given, are context.
        """
        return Traces(self._grade_solutions(self._sample_next_turns(seat, talks, said, n, greedy, tag, speaker)))

    def _sample_next_turns(
        self, seat: str, talks: Traces, said: Sequence[Prompt], n: int, greedy: bool, tag: str, speaker: str
    ) -> list[Trace]:
        asked: list[_Asked] = []
        for talk, context in zip(talks, self._encode_next_turns(seat, talks, said, n), strict=True):
            if context is not None:
                kept = talk if talk.origin == "sampled" else mask_conversation(talk)
                named = self._make_ids(seat, f"{talk.id}>", n, greedy)
                asked += [_Asked(id, talk.problem, talk, Request(context, key), talk=(kept, speaker)) for id, key in named]
        return self._sample(seat, asked, greedy, tag)

    def _answer_tool_calls(self, seat: str, traces: list[Trace], greedy: bool, tag: str) -> list[Trace]:
        """Answer the tool calls in conversations, and sample on, until there are none or one conversation has made its limit.

        A conversation with no room left for an answer stays as it is, at its call: it has no end that could be parsed.
        """
        tool, role, out = self.setting.task.tool, self.setting.roles[seat], list(traces)
        if tool is None:
            return out
        rows: Sequence[int] = range(len(out))
        for _ in range(tool.calls):
            calls = {
                row: call
                for row in rows
                if (call := role.parse_tool_call(out[row].text)) is not None and out[row].finish != "length"
            }
            if not calls:
                break
            said = [role.render_tool_result(tool.answer(call)) for call in calls.values()]
            talks = Traces(out[row] for row in calls)
            replies = {reply.subject.id: reply for reply in self._sample_next_turns(seat, talks, said, 1, greedy, tag, TOOL)}
            rows = [row for row in calls if out[row].id in replies]
            for row in rows:
                out[row] = replies[out[row].id]
        return out

    def write_reply(self, seat: str, talks: Traces, said: Sequence[Prompt], texts: Sequence[str]) -> Traces:
        """Make rollouts whose next turns are given texts, to be imitated: everything before them is context alone."""
        made, answers = self._encode_given(seat, texts)
        traces = []
        contexts = self._encode_next_turns(seat, talks, said, 1, [len(answer.ids) for answer in answers])
        for talk, answer, context in zip(talks, answers, contexts, strict=True):
            if context is not None:
                id, key = self._make_ids(seat, f"{talk.id}>=", 1, False)[0]
                one = _Asked(id, talk.problem, talk, Request(context, key), talk=(mask_conversation(talk), "prompt"))
                traces.append(replace(self._make_rollout(one, answer, made, 1.0), origin="given"))
        return Traces(self._grade_solutions(traces))

    def write(self, seat: str, subjects: Sequence[Problem | Trace] | Traces, texts: Sequence[str]) -> Traces:
        """Make rollouts of given texts as if the agent had written them: to be imitated, or scored by a value head. They never
        enter a policy gradient."""
        role = self.setting.roles[seat]
        abouts = [split_target(subject)[1] for subject in subjects]
        # A solution that was truncated at the limit has no end to be imitated.
        whole = [a is None or a.text != text or a.finish != "length" for a, text in zip(abouts, texts, strict=True)]
        made, answers = self._encode_given(seat, texts, whole)
        traces = []
        contexts = self._encode_prompts(seat, subjects, 1, [len(answer.ids) for answer in answers])
        for subject, answer, context in zip(subjects, answers, contexts, strict=True):
            if context is not None:
                id, key = self._make_ids(seat, f"{subject.id}=", 1, False)[0]
                trace = self._make_rollout(_Asked(id, *split_target(subject), Request(context, key)), answer, made, 1.0)
                traces.append(replace(trace, origin="given"))
        return Traces(traces if role.judges else self._grade_solutions(traces))

    def _encode_given(
        self, seat: str, texts: Sequence[str], whole: Sequence[bool] | None = None
    ) -> tuple[Segment, list[Completion]]:
        """Encode given texts with the agent's tokenizer, closed by end-of-sequence where they are whole. Return the segment
        that marks the agent as their producer, and the completions."""
        policy, engine = self.setting.policies[seat], self.setting.engine
        made = Segment(seat, 0, 0, policy, engine.version(policy), trained=True)
        ends = whole or [True] * len(texts)
        return made, [engine.encode_completion(policy, text, end) for text, end in zip(texts, ends, strict=True)]

    def judge(self, seat: str, solutions: Traces, n: int = 1, greedy: bool = False, tag: str = "live") -> Traces:
        """Verify solutions by a judge of any kind: a generative one is sampled, a scorer is evaluated once."""
        return judging.judge(self, seat, solutions, n, greedy, tag)

    def score_tokens(self, seat: str, traces: Traces, tag: str = "live") -> list[Floats]:
        """Score every token: values of the agent's value head, or log-ratios to its reference; aligned with each rollout's
        ids."""
        if self.setting.roles[seat].kind == "scalar":
            with self.timeline.measure("score"):
                return self.setting.engine.values(self.setting.policies[seat], traces, tag)
        return self.compute_log_ratios(seat, traces, self.compute_logprobs(seat, traces, tag))

    def compute_log_ratios(self, seat: str, traces: Traces, live: Sequence[Floats]) -> list[Floats]:
        """Log-ratios of each token to the agent's reference (its start), given its `live` log-probabilities."""
        return [mine - base for mine, base in zip(live, self.compute_logprobs(seat, traces, "ref"), strict=True)]

    def compute_logprobs(self, seat: str, traces: Traces, tag: str = "live") -> list[Floats]:
        """Log-probabilities of the trained tokens under the agent's policy: one array per rollout, aligned with its ids."""
        with self.timeline.measure("score"):
            return self.setting.engine.score(self.setting.policies[seat], traces, tag)

    def add_preference(self, winner: Trace, loser: Trace, reason: str) -> bool:
        """Keep a preference pair in the run folder; False if the two texts are alike, or if this round has the pair already."""
        sides = Side.from_rollout(winner), Side.from_rollout(loser)
        problem, turn = winner.problem, int(self.turn)
        return self.preferences.add(Preference(turn, self.round, winner.seat, problem.id, problem.text, *sides, reason))

    def _encode_prompts(
        self, seat: str, subjects: Sequence[Problem | Trace] | Traces, n: int, rooms: Sequence[int] | None = None
    ) -> list[NDArray[np.int64] | None]:
        """Encode an agent's prompts. One that leaves no room for a completion (one token, or `rooms`) is None, and counted as
        dropped."""
        prompts = [self.setting.roles[seat].prompt(*split_target(subject)) for subject in subjects]
        return self._drop_too_long(seat, self.setting.engine.encode_all(self.setting.policies[seat], prompts), n, rooms)

    def _encode_next_turns(
        self, seat: str, talks: Traces, said: Sequence[Prompt], n: int, rooms: Sequence[int] | None = None
    ) -> list[NDArray[np.int64] | None]:
        """Encode conversations with their next message. One that leaves no room for a completion is None, and counted as
        dropped."""
        policy = self.setting.policies[seat]
        if self.setting.roles[seat].judges:
            raise ValueError(f"the {seat} judges: what it says is read against a solution, and it holds no conversations")
        for talk in talks:
            if talk.seat != seat or not len(talk.ids):
                raise ValueError(f"trace {talk.id} is no conversation of the {seat}: it can be asked about, not gone on with")
        more = self.setting.engine.encode_next_turns(policy, said, [int(talk.ids[-1]) for talk in talks])
        whole = [np.concatenate([talk.ids, ids]) for talk, ids in zip(talks, more, strict=True)]
        return self._drop_too_long(seat, whole, n, rooms)

    def _drop_too_long(
        self, seat: str, contexts: list[NDArray[np.int64]], n: int, rooms: Sequence[int] | None
    ) -> list[NDArray[np.int64] | None]:
        limit = self.setting.engine.context_limit(self.setting.policies[seat])
        fit = [len(ids) + room <= limit for ids, room in zip(contexts, rooms or [1] * len(contexts), strict=True)]
        if not all(fit):
            self.dropped[f"{seat}: prompt longer than the model's context"] += n * fit.count(False)
        return [context if fits else None for context, fits in zip(contexts, fit, strict=True)]

    def _make_ids(self, seat: str, subject: str, n: int, greedy: bool) -> list[tuple[str, int]]:
        """Make the ids of an agent's next rollouts about a target, each with the key of its randomness."""
        found = []
        for _ in range(n):
            name = f"{subject}/{self.asked[seat, subject, greedy]}"
            self.asked[seat, subject, greedy] += 1
            found.append((f"{self.turn}/{seat}/{name}", key64(self.setting.seed, self.turn, seat, name, greedy)))
        return found

    def _require_any(self, seat: str, subjects: Sequence[Problem] | Traces, asked: list[_Asked]) -> None:
        if subjects and not asked:
            limit = self.setting.engine.context_limit(self.setting.policies[seat])
            raise TooLongError(
                f"no prompt of the {seat} fits into the {limit} tokens of its model; use another, or shorter problems"
            )

    def _sample(self, seat: str, asked: list[_Asked], greedy: bool, tag: str, stop: tuple[str, ...] = ()) -> list[Trace]:
        if self.busy:
            raise ValueError(
                f"the {seat} cannot be asked while later turns are played: a recipe whose `credit` asks says so in `overlap`"
            )
        policy, role = self.setting.policies[seat], self.setting.roles[seat]
        temperature = 1.0 if greedy else self.setting.sampling.temperature
        decoding = Decoding(self.setting.get_max_tokens(seat), temperature, (*role.stop, *stop), greedy)
        with self.timeline.measure("verify" if role.judges else "sample"):
            answers = self.setting.engine.sample(policy, [a.request for a in asked], decoding, tag, self.history)
        # Only what the live policy sampled untruncated may enter a policy gradient (law 2), and only where we know how likely.
        trained = tag == "live" and not greedy and self.setting.engine.holds(policy)
        made = Segment(seat, 0, 0, policy, self.setting.engine.version(policy), trained)
        return [self._make_rollout(one, answer, made, temperature) for one, answer in zip(asked, answers, strict=True)]

    def _make_rollout(self, asked: _Asked, answer: Completion, made: Segment, temperature: float) -> Trace:
        """Make the rollout of a completion: parse it and find its steps. `made` is the segment of its producer; its start and
        end are set here."""
        start = len(asked.request.context)
        end = start + len(answer.ids)
        before, known, earlier = collect_prefix(asked)
        logprobs = np.zeros(end)
        logprobs[start:] = answer.logprobs
        if asked.talk is not None:
            logprobs[: len(asked.talk[0].ids)] = asked.talk[0].logprobs
        text = before + answer.text
        reading = self.setting.roles[made.producer].read(text, asked.about)
        steps = find_step_spans(reading, answer, start, known, len(before))
        if len(steps) != len(reading.value.ends):
            reading = Reading(reading.value, reading.format, "two steps end in the same token")
        return Trace(
            id=asked.id,
            seat=made.producer,
            problem=asked.problem,
            ids=np.concatenate([asked.request.context, answer.ids]),
            segments=(*earlier, replace(made, start=start, end=end)),
            logprobs=logprobs,
            text=text,
            reading=reading,
            steps=steps,
            about=() if asked.about is None else (asked.about,),
            finish=answer.finish,
            temperature=temperature,
            chars=np.concatenate([np.zeros(start, dtype=np.int64), len(before) + answer.ends]),
        )

    def _grade_solutions(self, traces: list[Trace]) -> list[Trace]:
        """Grade the solutions among the rollouts in place; others (a proposal, say) get no grade."""
        solved = [t for t in traces if isinstance(t.reading.value, Solution)]
        items = [(t.problem, t.reading.value.answer, t.reading.value.steps) for t in solved]
        for trace, grade in zip(solved, self.setting.task.grade_all(items), strict=True):
            trace.grade = grade
            if grade.correct is None:
                self.dropped[f"{trace.seat}: the grader could not tell"] += 1
        return traces

    def compute_kl_penalties(self, traces: Traces, objective: Objective) -> list[Floats] | None:
        """Per-token KL penalties of the reward, aligned with each rollout's ids; None if the objective has none."""
        if not objective.kl_coef or objective.kl_in != "reward" or not traces:
            return None
        reference = self.compute_logprobs(traces[0].seat, traces, objective.kl_from)
        return kl_penalties(traces, reference, objective.kl_coef)


def split_target(subject: Problem | Trace) -> tuple[Problem, Trace | None]:
    """Split a target into its problem and, for a judge, the rollout to be judged."""
    return (subject, None) if isinstance(subject, Problem) else (subject.problem, subject)


def collect_prefix(asked: _Asked) -> tuple[str, tuple[tuple[int, int], ...], tuple[Segment, ...]]:
    """Return what precedes a completion: text and step spans of the prefix that it continues, and the segments so far."""
    start = len(asked.request.context)
    if asked.talk is not None:
        talk, speaker = asked.talk
        return "", (), (*talk.segments, Segment(speaker, len(talk.ids), start))
    if asked.prefix is None:
        return "", (), (Segment("prompt", 0, start),)
    solution, count = asked.prefix
    text = solution.text[: solution.reading.value.ends[count - 1]] if count else ""
    kept = [replace(s, end=min(s.end, start), trained=False) for s in solution.segments if s.start < start]
    return text, solution.steps[:count], tuple(kept)


def mask_conversation(talk: Trace) -> Trace:
    """Mask a whole conversation: a copy in which no token is trained."""
    untrained = tuple(replace(segment, trained=False) for segment in talk.segments)
    return replace(talk, segments=untrained, logprobs=np.zeros(len(talk.ids)))


def find_step_spans(
    reading: Reading, answer: Completion, start: int, known: tuple[tuple[int, int], ...] = (), before: int = 0
) -> tuple[tuple[int, int], ...]:
    """Find the token span of each step, from where it ends in the sampled text; () unless all ends are distinct tokens.

    `known` are the spans of a prefix of `before` characters that the completion continues.
    """
    own = [end - before for end in reading.value.ends[len(known) :]]
    ends = [start + int(np.searchsorted(answer.ends, end)) + 1 for end in own]
    if len(set(ends)) != len(ends):
        return ()
    return (*known, *zip([start, *ends[:-1]], ends, strict=False))
