"""The context in which a recipe samples rollouts: it asks agents for completions, and gets rollouts.

The context draws problems, writes prompts through the roles, samples through the engine, parses and grades the completions,
and records step ends in token space. It owns the keys of the randomness, so that recipes cannot depend on history.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from milonga.config import SamplingSection
from milonga.credit import kl_penalties
from milonga.engine import Completion, Decoding, Engine, History, Request
from milonga.errors import TooLongError
from milonga.objectives import Estimator
from milonga.preferences import Preference, Preferences, Side
from milonga.randomness import key64, keyed_rng
from milonga.roles import Role
from milonga.roles.solver import NO_ANSWER, NO_STEPS, accept_extracted, extract_answer
from milonga.tasks import Task
from milonga.tasks.functions import Extractor, RewardFunction, sum_rewards
from milonga.timeline import Timeline
from milonga.types import Finish, Grade, Parsed, PerToken, Problem, Prompt, Rollout, Rollouts, Segment, Solution, Split

TOOL = "tool"
"""Producer of the segments in which the task's tool answers a call."""


@dataclass(frozen=True)
class RunContext:
    """What does not change during a run: the engine, the task, the role and policy of each agent, the sampling options."""

    engine: Engine
    task: Task
    roles: Mapping[str, Role]
    """Agent to role."""
    policies: Mapping[str, str]
    """Agent to policy: the one indirection that gives shared weights, adapters per agent and different model sizes."""
    sampling: SamplingSection
    seed: int
    batch_size: int
    """Problems in a turn."""
    rewards: Sequence[RewardFunction] = ()
    """The user's own reward functions; empty: right and wrong answers are the outcome reward."""
    extract: Extractor | None = None
    """The user's own way to find the answer in a solution."""

    def get_max_tokens(self, agent: str) -> int:
        """Most new tokens of an agent's completion: the limit of the task's solutions, times the role's `length_factor`."""
        return self.roles[agent].length_factor() * (self.sampling.max_tokens or self.task.max_tokens)


@dataclass(frozen=True)
class _Asked:
    """One completion that an agent is asked for. `prefix` is a solution to continue, and after how many steps to cut it; `talk`
    is the conversation so far and who spoke after it."""

    id: str
    problem: Problem
    target: Rollout | None
    request: Request
    prefix: tuple[Rollout, int] | None = None
    talk: tuple[Rollout, str] | None = None


@dataclass
class Context:
    """The sampling context of one turn, or of one evaluation."""

    run: RunContext
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

    @property
    def engine(self) -> Engine:
        return self.run.engine

    @property
    def task(self) -> Task:
        return self.run.task

    @property
    def seed(self) -> int:
        return self.run.seed

    @property
    def batch_size(self) -> int:
        """Problems in a turn."""
        return self.run.batch_size

    def role(self, agent: str) -> Role:
        return self.run.roles[agent]

    def policy(self, agent: str) -> str:
        """The name of the policy that an agent is bound to."""
        return self.run.policies[agent]

    def rng(self, purpose: str, *key: object) -> random.Random:
        """Make the random source of one purpose in this turn: it depends on seed, turn and key alone, never on history."""
        return keyed_rng(purpose, self.seed, self.turn, *key)

    @contextmanager
    def cache_conversations(self) -> Iterator[None]:
        """Cache the prefixes of what is sampled in this block, so that `reply` and `complete` do not compute them again. It
        saves time, costs memory while the block lasts, and changes no result."""
        if self.history is not None:  # an outer block is as good
            yield
            return
        self.history = self.engine.open_history()
        try:
            yield
        finally:
            self.history.close()
            self.history = None

    def problems(self, count: int | None = None) -> list[Problem]:
        """Draw the next problems. Each learner has its own cursor: arms of a comparison see the same problems in the same
        order."""
        indices = self.take_indices(self.batch_size if count is None else count)
        return self.task.draw_problems(self.split, indices.start, len(indices))

    def draw_problems_at(self, levels: Sequence[int]) -> list[Problem]:
        """Draw the next problems, one at each of these levels of the task."""
        indices = self.take_indices(len(levels))
        return [self.task.at_level(level).problem(self.split, index) for level, index in zip(levels, indices, strict=True)]

    def take_indices(self, count: int) -> range:
        """Take the next indices of problems; nothing else in this turn draws the same."""
        first = self.start + self.drawn
        self.drawn += count
        return range(first, first + count)

    def ask(
        self,
        agent: str,
        inputs: Sequence[Problem] | Rollouts,
        n: int = 1,
        greedy: bool = False,
        tag: str = "live",
        temperature: float | None = None,
    ) -> Rollouts:
        """Sample `n` rollouts of an agent for each target: problems for a solver, rollouts for a judge. Those of one target are
        adjacent.

        If the task has a tool, a completion that calls it is answered, and the agent continues until it makes no more calls.
        `temperature` is the run's unless it is given, which is for agents that call no tool.
        """
        asked: list[_Asked] = []
        everyone: list[Problem | Rollout] = list(inputs)
        for target, context in zip(everyone, self._encode_prompts(agent, everyone, n), strict=True):
            if context is not None:
                named = self._make_ids(agent, target.id, n, greedy)
                asked += [_Asked(id, *_split_target(target), Request(context, key)) for id, key in named]
        self._require_any(agent, inputs, asked)
        with nullcontext() if self.task.tool is None else self.cache_conversations():
            first = self._sample(agent, asked, greedy, tag, temperature=temperature)
            rollouts = self._answer_tool_calls(agent, first, greedy, tag)
        return Rollouts(rollouts if self.role(agent).judges else self._grade_solutions(rollouts))

    def complete(
        self, agent: str, prefixes: Sequence[tuple[Rollout, int]], n: int = 1, tag: str = "live", step: bool = False
    ) -> Rollouts:
        """Sample `n` solutions that continue the first steps of a given one: `(solution, 3)` keeps its first three.

        The prefix is cut in token space, where the third step ends; it is never encoded again. With `step` each completion is
        one more step alone, or the answer.
        """
        asked: list[_Asked] = []
        for solution, count in prefixes:
            cut = solution.steps[count - 1][1] if count else solution.segments[-1].start
            named = self._make_ids(agent, f"{solution.id}+{count}", n, False)
            asked += [
                _Asked(id, solution.problem, solution, Request(solution.ids[:cut], key), (solution, count)) for id, key in named
            ]
        more = self.role(agent).step_stop if step else ()
        return Rollouts(self._grade_solutions(self._sample(agent, asked, False, tag, more)))

    def reply(
        self,
        agent: str,
        talks: Rollouts,
        said: Sequence[Prompt],
        n: int = 1,
        greedy: bool = False,
        tag: str = "live",
        speaker: str = "prompt",
    ) -> Rollouts:
        """Sample `n` next turns of each of an agent's conversations, after the message `said` by `speaker`.

        Ids are appended to those of the conversation, which are never encoded again. Turns that the live policy sampled stay
        trained; messages of others, and turns that were given, are context.
        """
        return Rollouts(self._grade_solutions(self._sample_next_turns(agent, talks, said, n, greedy, tag, speaker)))

    def _sample_next_turns(
        self, agent: str, talks: Rollouts, said: Sequence[Prompt], n: int, greedy: bool, tag: str, speaker: str
    ) -> list[Rollout]:
        asked: list[_Asked] = []
        for talk, context in zip(talks, self._encode_next_turns(agent, talks, said, n), strict=True):
            if context is not None:
                kept = talk if talk.origin == "sampled" else _mask_conversation(talk)
                named = self._make_ids(agent, f"{talk.id}>", n, greedy)
                asked += [_Asked(id, talk.problem, talk, Request(context, key), talk=(kept, speaker)) for id, key in named]
        return self._sample(agent, asked, greedy, tag)

    def _answer_tool_calls(self, agent: str, rollouts: list[Rollout], greedy: bool, tag: str) -> list[Rollout]:
        """Answer the tool calls in conversations, and sample on, until there are none or one conversation has made its limit.

        A conversation with no room left for an answer stays as it is, at its call: it has no end that could be parsed.
        """
        tool, role, out = self.task.tool, self.role(agent), list(rollouts)
        if tool is None:
            return out
        rows: Sequence[int] = range(len(out))
        for number in range(1, tool.calls + 1):
            calls = {
                row: call
                for row in rows
                if (call := role.parse_tool_call(out[row].text)) is not None and out[row].finish != "length"
            }
            if not calls:
                break
            said = [role.render_tool_result(tool.answer(call), number == tool.calls) for call in calls.values()]
            talks = Rollouts(out[row] for row in calls)
            replies = {reply.target.id: reply for reply in self._sample_next_turns(agent, talks, said, 1, greedy, tag, TOOL)}
            rows = [row for row in calls if out[row].id in replies]
            for row in rows:
                out[row] = replies[out[row].id]
        return out

    def write_reply(self, agent: str, talks: Rollouts, said: Sequence[Prompt], texts: Sequence[str]) -> Rollouts:
        """Make rollouts whose next turns are given texts, to be imitated: everything before them is context alone."""
        made, answers = self._encode_given(agent, texts)
        rollouts = []
        contexts = self._encode_next_turns(agent, talks, said, 1, [len(answer.ids) for answer in answers])
        for talk, answer, context in zip(talks, answers, contexts, strict=True):
            if context is not None:
                id, key = self._make_ids(agent, f"{talk.id}>=", 1, False)[0]
                one = _Asked(id, talk.problem, talk, Request(context, key), talk=(_mask_conversation(talk), "prompt"))
                rollouts.append(replace(self._make_rollout(one, answer, made, 1.0), origin="given"))
        return Rollouts(self._grade_solutions(rollouts))

    def write(self, agent: str, inputs: Sequence[Problem | Rollout] | Rollouts, texts: Sequence[str]) -> Rollouts:
        """Make rollouts of given texts as if the agent had written them: to be imitated, or scored by a value head. They never
        enter a policy gradient."""
        role = self.role(agent)
        targets = [_split_target(target)[1] for target in inputs]
        # A solution that was truncated at the limit has no end to be imitated.
        whole = [a is None or a.text != text or a.finish != "length" for a, text in zip(targets, texts, strict=True)]
        made, answers = self._encode_given(agent, texts, whole)
        rollouts = []
        contexts = self._encode_prompts(agent, inputs, 1, [len(answer.ids) for answer in answers])
        for target, answer, context in zip(inputs, answers, contexts, strict=True):
            if context is not None:
                id, key = self._make_ids(agent, f"{target.id}=", 1, False)[0]
                rollout = self._make_rollout(_Asked(id, *_split_target(target), Request(context, key)), answer, made, 1.0)
                rollouts.append(replace(rollout, origin="given"))
        return Rollouts(rollouts if role.judges else self._grade_solutions(rollouts))

    def _encode_given(
        self, agent: str, texts: Sequence[str], whole: Sequence[bool] | None = None
    ) -> tuple[Segment, list[Completion]]:
        """Encode given texts with the agent's tokenizer, ended as its samples are: by end-of-sequence, or a stop string. Those
        that are not `whole` have no end. Return the segment that marks the agent as their producer, and the completions."""
        policy, engine, role = self.policy(agent), self.engine, self.role(agent)
        made = Segment(agent, 0, 0, policy, engine.version(policy), trained=True)
        out = []
        for text, complete in zip(texts, whole or [True] * len(texts), strict=True):
            stopped = complete and role.ends_in_stop(text)
            answer = engine.encode_completion(policy, text, complete and not stopped)
            out.append(replace(answer, finish="stop") if stopped else answer)
        return made, out

    def judge(self, agent: str, solutions: Rollouts, n: int = 1, greedy: bool = False, tag: str = "live") -> Rollouts:
        """Verify solutions by a judge of any kind: a generative one is sampled, a scorer is evaluated once."""
        return self.role(agent).judge(self, agent, solutions, n, greedy, tag)

    def score_tokens(self, agent: str, rollouts: Rollouts, tag: str = "live") -> list[PerToken]:
        """Score every token: values of the agent's value head, or log-ratios to its reference; aligned with each rollout's
        ids."""
        if self.role(agent).kind == "scalar":
            with self.timeline.measure("score"):
                return self.engine.values(self.policy(agent), rollouts, tag)
        return self.compute_log_ratios(agent, rollouts, self.compute_logprobs(agent, rollouts, tag))

    def compute_log_ratios(self, agent: str, rollouts: Rollouts, live: Sequence[PerToken]) -> list[PerToken]:
        """Log-ratios of each token to the agent's reference (its start), given its `live` log-probabilities."""
        return [mine - base for mine, base in zip(live, self.compute_logprobs(agent, rollouts, "ref"), strict=True)]

    def compute_logprobs(self, agent: str, rollouts: Rollouts, tag: str = "live") -> list[PerToken]:
        """Log-probabilities of the trained tokens under the agent's policy: one array per rollout, aligned with its ids."""
        with self.timeline.measure("score"):
            return self.engine.score(self.policy(agent), rollouts, tag)

    def add_preference(self, winner: Rollout, loser: Rollout, reason: str) -> bool:
        """Keep a preference pair in the run folder; False if the two texts are alike, or if this round has the pair already."""
        sides = Side.from_rollout(winner), Side.from_rollout(loser)
        problem, turn = winner.problem, int(self.turn)
        return self.preferences.add(Preference(turn, self.round, winner.agent, problem.id, problem.text, *sides, reason))

    def _encode_prompts(
        self, agent: str, inputs: Sequence[Problem | Rollout] | Rollouts, n: int, rooms: Sequence[int] | None = None
    ) -> list[NDArray[np.int64] | None]:
        """Encode an agent's prompts. One that leaves no room for a completion (one token, or `rooms`) is None, and counted as
        dropped."""
        prompts = [self.role(agent).render_prompt(*_split_target(target)) for target in inputs]
        return self._drop_too_long(agent, self.engine.encode_all(self.policy(agent), prompts), n, rooms)

    def _encode_next_turns(
        self, agent: str, talks: Rollouts, said: Sequence[Prompt], n: int, rooms: Sequence[int] | None = None
    ) -> list[NDArray[np.int64] | None]:
        """Encode conversations with their next message. One that leaves no room for a completion is None, and counted as
        dropped."""
        policy = self.policy(agent)
        if self.role(agent).judges:
            raise ValueError(f"the {agent} judges: what it says is read against a solution, and it holds no conversations")
        for talk in talks:
            if talk.agent != agent or not len(talk.ids):
                raise ValueError(
                    f"rollout {talk.id} is no conversation of the {agent}: it can be asked about, not gone on with"
                )
        more = self.engine.encode_next_turns(policy, said, [int(talk.ids[-1]) for talk in talks])
        whole = [np.concatenate([talk.ids, ids]) for talk, ids in zip(talks, more, strict=True)]
        return self._drop_too_long(agent, whole, n, rooms)

    def _drop_too_long(
        self, agent: str, contexts: list[NDArray[np.int64]], n: int, rooms: Sequence[int] | None
    ) -> list[NDArray[np.int64] | None]:
        limit = self.engine.context_limit(self.policy(agent))
        fit = [len(ids) + room <= limit for ids, room in zip(contexts, rooms or [1] * len(contexts), strict=True)]
        if not all(fit):
            self.dropped[f"{agent}: prompt longer than the model's context"] += n * fit.count(False)
        return [context if fits else None for context, fits in zip(contexts, fit, strict=True)]

    def _make_ids(self, agent: str, target: str, n: int, greedy: bool) -> list[tuple[str, int]]:
        """Make the ids of an agent's next rollouts about a target, each with the key of its randomness."""
        found = []
        for _ in range(n):
            name = f"{target}/{self.asked[agent, target, greedy]}"
            self.asked[agent, target, greedy] += 1
            found.append((f"{self.turn}/{agent}/{name}", key64(self.seed, self.turn, agent, name, greedy)))
        return found

    def _require_any(self, agent: str, inputs: Sequence[Problem] | Rollouts, asked: list[_Asked]) -> None:
        if inputs and not asked:
            limit = self.engine.context_limit(self.policy(agent))
            raise TooLongError(
                f"no prompt of the {agent} fits into the {limit} tokens of its model; use another, or shorter problems"
            )

    def _sample(
        self,
        agent: str,
        asked: list[_Asked],
        greedy: bool,
        tag: str,
        stop: tuple[str, ...] = (),
        temperature: float | None = None,
    ) -> list[Rollout]:
        if self.busy:
            raise ValueError(
                f"the {agent} cannot be asked while later turns are sampled: a recipe whose `credit` asks says so in `overlap`"
            )
        policy, role = self.policy(agent), self.role(agent)
        temperature = 1.0 if greedy else temperature or self.run.sampling.temperature
        decoding = Decoding(self.run.get_max_tokens(agent), temperature, (*role.stop, *stop), greedy)
        if not self.engine.has_weights(policy):
            tag = "live"  # a model behind an endpoint never moves: all its versions are one
        with self.timeline.measure("verify" if role.judges else "sample"):
            answers = self.engine.sample(policy, [a.request for a in asked], decoding, tag, self.history)
        # Only what the live policy sampled untruncated may enter a policy gradient (law 2), and only where we know how likely.
        trained = tag == "live" and not greedy and self.engine.has_weights(policy)
        made = Segment(agent, 0, 0, policy, self.engine.version(policy), trained)
        rollouts = [self._make_rollout(one, answer, made, temperature) for one, answer in zip(asked, answers, strict=True)]
        if self.engine.has_weights(policy):
            for rollout in rollouts:
                rollout.parsed = role.soften(rollout)
        return rollouts

    def _make_rollout(self, asked: _Asked, answer: Completion, made: Segment, temperature: float) -> Rollout:
        """Make the rollout of a completion: parse it and find its steps. `made` is the segment of its producer; its start and
        end are set here."""
        start = len(asked.request.context)
        end = start + len(answer.ids)
        before, known, earlier = _collect_prefix(asked)
        logprobs = np.zeros(end)
        logprobs[start:] = answer.logprobs
        if asked.talk is not None:
            logprobs[: len(asked.talk[0].ids)] = asked.talk[0].logprobs
        text = before + answer.text
        chars = np.concatenate([known, len(before) + answer.ends])
        parsed = self._parse(made.producer, text, asked, answer.finish)
        steps = find_step_spans(parsed, chars, start if asked.prefix is None else asked.prefix[0].turn_spans[-1][0])
        if len(steps) != len(parsed.ends):
            parsed = Parsed(parsed.value, parsed.format, parsed.invalid or "two steps end in the same token")
        return Rollout(
            id=asked.id,
            agent=made.producer,
            problem=asked.problem,
            ids=np.concatenate([asked.request.context, answer.ids]),
            segments=(*earlier, replace(made, start=start, end=end)),
            logprobs=logprobs,
            text=text,
            parsed=parsed,
            steps=steps,
            targets=() if asked.target is None else (asked.target,),
            finish=answer.finish,
            temperature=temperature,
            chars=chars,
        )

    def _parse(self, agent: str, text: str, asked: _Asked, finish: Finish) -> Parsed:
        """Parse a completion by the agent's role. In prose a text that was cut at the limit has no format to be paid for:
        otherwise nothing would lead back to an end."""
        role = self.role(agent)
        parsed = role.parse(text, asked.target)
        # A single step that was asked for has no answer that the task could find, whatever numbers stand in it.
        is_step = asked.prefix is not None and finish == "stop" and text.endswith(role.step_stop)
        if isinstance(parsed.value, Solution) and not is_step:
            parsed = self.find_answer(role, parsed, text, asked.problem, finish)
        return replace(parsed, format=0.0) if role.dialect == "plain" and finish == "length" else parsed

    def find_answer(self, role: Role, parsed: Parsed, text: str, problem: Problem, finish: Finish) -> Parsed:
        """Find the answer of a solution by the user's own extractor, if there is one. In prose, a program, or an answer that is
        in no box, is found by the task, behind the thought if it can be; a text that was cut has no such answer, but perhaps a
        box in its thought. An open question is answered by any text. What other forms lack stays as it is, and so does a turn
        that asks for something."""
        value = parsed.get(Solution)
        if parsed.is_valid and value.answer is None:
            return parsed
        prose = role.dialect == "plain" and parsed.invalid in (None, NO_ANSWER, NO_STEPS)
        if self.run.extract is not None:
            answer = self.run.extract(text, problem)
            return accept_extracted(parsed, answer, True) if prose else replace(parsed, value=replace(value, answer=answer))
        if problem.is_open and value.steps and prose and parsed.invalid == NO_ANSWER:
            return replace(parsed, format=1.0, invalid=None)
        if not prose or not (problem.wants_program or value.answer is None):
            return parsed
        lost = not problem.wants_program and (finish == "length" or not problem.has_reference)
        found = extract_answer(self.task, text, problem, lost)
        return accept_extracted(parsed, found, asked=problem.wants_program or problem.reply is not None)

    def _grade_solutions(self, rollouts: list[Rollout]) -> list[Rollout]:
        """Grade the solutions among the rollouts in place; others (a proposal, say) get no grade.

        Correctness is the task's. The reward is that of the user's own functions, where there are any.
        """
        if rollouts:
            for rollout, parsed in zip(rollouts, self.role(rollouts[0].agent).settle(self.task, rollouts), strict=True):
                rollout.parsed = parsed
        solved = [t for t in rollouts if isinstance(t.parsed.value, Solution)]
        known = [t for t in solved if t.problem.has_reference]
        items = [(t.problem, t.solution.answer, t.solution.steps) for t in known]
        for rollout, grade in zip(known, self.task.grade_all(items), strict=True):
            rollout.grade = grade
        if self.run.rewards and solved:
            for rollout, reward in zip(solved, sum_rewards(self.run.rewards, solved), strict=True):
                rollout.grade = replace(rollout.grade or Grade(None), reward=reward)
        for rollout in solved if self.run.rewards else known:
            if np.isnan(rollout.reward) and (self.run.rewards or self.task.has_answers):
                self.dropped[f"{rollout.agent}: the grader could not tell"] += 1
        return rollouts

    def compute_kl_penalties(self, rollouts: Rollouts, estimator: Estimator) -> list[PerToken] | None:
        """Per-token KL penalties of the reward, aligned with each rollout's ids; None if the estimator has none."""
        if not estimator.kl_coef or not rollouts:
            return None
        reference = self.compute_logprobs(rollouts[0].agent, rollouts, estimator.kl_from)
        return kl_penalties(rollouts, reference, estimator.kl_coef)


def _split_target(target: Problem | Rollout) -> tuple[Problem, Rollout | None]:
    """Split a target into its problem and, for a judge, the rollout to be judged."""
    return (target, None) if isinstance(target, Problem) else (target.problem, target)


def _collect_prefix(asked: _Asked) -> tuple[str, NDArray[np.int64], tuple[Segment, ...]]:
    """Return what precedes a completion: the text of the prefix that it continues, the characters of it complete after each
    token so far, and the segments so far."""
    start = len(asked.request.context)
    silent = np.zeros(start, dtype=np.int64)
    if asked.talk is not None:
        talk, speaker = asked.talk
        return "", silent, (*talk.segments, Segment(speaker, len(talk.ids), start))
    if asked.prefix is None:
        return "", silent, (Segment("prompt", 0, start),)
    solution, count = asked.prefix
    text = solution.text[: solution.solution.ends[count - 1]] if count else ""
    kept = [replace(s, end=min(s.end, start), trained=False) for s in solution.segments if s.start < start]
    chars = silent if solution.chars is None else np.minimum(solution.chars[:start], len(text))
    return text, chars, tuple(kept)


def _mask_conversation(talk: Rollout) -> Rollout:
    """Mask a whole conversation: a copy in which no token is trained."""
    untrained = tuple(replace(segment, trained=False) for segment in talk.segments)
    return replace(talk, segments=untrained, logprobs=np.zeros(len(talk.ids)))


def find_step_spans(parsed: Parsed, chars: NDArray[np.int64], start: int) -> tuple[tuple[int, int], ...]:
    """Find the token span of each step, from where it ends in the sampled text; () unless all ends are distinct tokens.

    `chars` are the characters of the text complete after each token; the text begins with the token `start`.
    """
    begin = parsed.value.begin if isinstance(parsed.value, Solution) else 0
    ends = [int(np.searchsorted(chars, end)) + 1 for end in parsed.ends]
    if len(set(ends)) != len(ends):
        return ()
    opening = start if begin == 0 else int(np.searchsorted(chars, begin)) + 1
    return tuple(zip([opening, *ends[:-1]], ends, strict=False))
