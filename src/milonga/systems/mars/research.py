"""The research loop: a planner requests documents, a reader condenses them bin by bin, the planner goes on.

Invariant: what the reader wrote is context in the planner's conversation, and trained in the reader's own rows alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from milonga.context import Context
from milonga.patterns.conversation import filter_comparable, list_turns
from milonga.patterns.imitation import sample_demonstrations
from milonga.roles.searcher import Note, Request, SearchPlanner, make_document_bin
from milonga.systems.mars.roles import LETTERS, Planner, Reader
from milonga.tasks.haystack import extract_thread
from milonga.types import Problem, Rollout, Rollouts

PLANNER, READER = "generator", "reader"


@dataclass(frozen=True)
class Desk:
    """Limits of the research loop: `room` is the most tokens of a bin, `calls` the most requests of a planner."""

    room: int
    calls: int

    def pack_documents(self, ctx: Context, talk: Rollout, documents: Sequence[str]) -> list[Rollout]:
        """Pack documents that a planner asked for into bins. A document longer than a bin is truncated, and the lost tokens are
        counted."""
        policy, found = ctx.policy(READER), list(documents)
        written = [ctx.engine.encode_completion(policy, text, end=False) for text in found]
        for at, one in enumerate(written):
            if len(one.ids) > self.room:
                ctx.dropped[f"{READER}: tokens of documents longer than a bin"] += len(one.ids) - self.room
                found[at] = found[at][: int(one.ends[self.room - 1])]
        places = pack_first_fit([min(self.room, len(one.ids)) for one in written], self.room)
        purpose = talk.parsed.get(Request).purpose
        return [make_document_bin(talk, n, [found[at] for at in place], purpose) for n, place in enumerate(places)]

    def research(self, ctx: Context, problems: Sequence[Problem], n: int = 1, blank: bool = False) -> Rollouts:
        """Sample `n` trajectories of each problem: the planner's conversations, and what the reader wrote for them.

        With `blank` all documents are empty: an answer that is right nevertheless was not read.
        """
        done: list[Rollout] = []
        notes: list[Rollout] = []
        lines: dict[str, list[str]] = {}
        with ctx.cache_conversations():
            talks = ctx.ask(PLANNER, problems, n)
            for number in range(1, self.calls + 1):
                done += [talk for talk in talks if not is_request(talk)]
                asking = talks.select(is_request)
                bins: list[Rollout] = []
                for talk in asking:
                    found = _get_planner(ctx).find_documents(ctx.task, talk)
                    bins += self.pack_documents(ctx, talk, [""] * len(found) if blank else found)
                read = ctx.ask(READER, Rollouts(bins))
                notes += list(read)
                talks = self.reply_with_notes(ctx, asking, read, lines, number == self.calls)
        ended = Rollouts([*done, *talks])
        return Rollouts([*(filter_comparable(ended) if n > 1 else ended), *notes])

    def reply_with_notes(
        self, ctx: Context, asking: Rollouts, read: Rollouts, lines: dict[str, list[str]], is_last: bool = False
    ) -> Rollouts:
        """Sample the planner's next turns, after a message with what its documents say; after the last it can only answer."""
        planner = _get_planner(ctx)
        for talk in asking:
            new = [line for note in read if note.target.target is talk for line in note.parsed.get(Note).lines]
            lines[talk.id] = [*(lines[talk.target.id] if talk.targets and planner.repeats else []), *new]
        messages = [planner.render_notes(talk.problem, lines[talk.id], is_last) for talk in asking]
        return ctx.reply(PLANNER, asking, messages, speaker=READER)

    def write_demonstrations(self, ctx: Context, plans: int, noted: int, slip: float) -> Rollouts:
        """Return rollouts of a noisy teacher in all three places: a request, what the documents say, and the solution.

        `plans` is the number of requests and solutions, `noted` the number of requests with notes: copying from documents takes
        more examples than asking.
        """
        planner, reader = _get_planner(ctx), ctx.role(READER)
        assert isinstance(planner, Planner) and isinstance(reader, Reader)
        requests = sample_demonstrations(ctx, PLANNER, plans)
        asked = Rollouts([*requests, *sample_demonstrations(ctx, PLANNER, max(0, noted - plans))])[:noted]
        bins = [one for talk in asked for one in self.pack_documents(ctx, talk, planner.find_documents(ctx.task, talk))]
        notes = ctx.write(READER, bins, [reader.write_noisy_note(one, slip, ctx.rng("reading", one.id)) for one in bins])
        messages, texts = [], []
        for talk in requests:
            letters = talk.parsed.get(Request).purpose == LETTERS
            threads = [extract_thread(document, letters) for document in planner.find_documents(ctx.task, talk)]
            messages.append(planner.render_notes(talk.problem, threads))
            rng = ctx.rng("solution", talk.problem.id)
            texts.append(planner.solver.demonstrate(ctx.task, talk.problem, rng)[1])
        return Rollouts([*requests, *ctx.write_reply(PLANNER, requests, messages, texts), *notes])


def _get_planner(ctx: Context) -> Planner | SearchPlanner:
    """Return the planner's role."""
    role = ctx.role(PLANNER)
    assert isinstance(role, (Planner, SearchPlanner))
    return role


def is_request(talk: Rollout) -> bool:
    """Whether the last turn is a request that can be parsed."""
    return isinstance(talk.parsed.value, Request) and talk.parsed.is_valid


def map_turns_to_ends(talks: Rollouts) -> dict[str, Rollout]:
    """Map the id of the conversation after each of its turns to the finished conversation."""
    return {turn.id: talk for talk in talks for turn in list_turns(talk)}


def pack_first_fit(lengths: Sequence[int], room: int) -> list[list[int]]:
    """Pack texts into bins by first fit decreasing: the longest first, each into the first bin with room, else a new one.

    Returns the indices of the texts in each bin, in their order; bins are in the order of their first texts. Texts longer than
    a bin must have been cut before.
    """
    if max(lengths, default=0) > room:
        raise ValueError(f"a text of {max(lengths)} does not fit into a bin of {room}")
    bins: list[list[int]] = []
    left: list[int] = []
    for number in sorted(range(len(lengths)), key=lambda n: -lengths[n]):
        place = next((at for at, free in enumerate(left) if free >= lengths[number]), len(bins))
        if place == len(bins):
            bins.append([])
            left.append(room)
        bins[place].append(number)
        left[place] -= lengths[number]
    return sorted(sorted(one) for one in bins)
