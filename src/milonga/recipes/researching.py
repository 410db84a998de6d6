"""Research loop that recipes share: a planner requests documents, a reader condenses them bin by bin, the planner goes on.

Invariant: what the reader wrote is context in the planner's conversation, and trained in the reader's own rows alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from milonga.recipes.conversing import filter_comparable, list_turns
from milonga.recipes.imitation import sample_demonstrations
from milonga.recipes.packing import pack_first_fit
from milonga.roles import Planner, Reader
from milonga.roles.research import LETTERS, Request, make_document_bin
from milonga.table import Table
from milonga.tasks.base import make_keyed_rng
from milonga.tasks.haystack import extract_thread, parse_documents
from milonga.types import Problem, Trace, Traces

PLANNER, READER = "generator", "reader"


@dataclass(frozen=True)
class Desk:
    """Limits of the research loop: `room` is the most tokens of a bin, `calls` the most requests of a planner."""

    room: int
    calls: int

    def pack_documents(self, table: Table, talk: Trace, documents: Mapping[str, str]) -> list[Trace]:
        """Pack the requested documents that exist into bins. A document longer than a bin is truncated, and the lost tokens are
        counted."""
        asked: Request = talk.reading.value
        policy = table.setting.policies[READER]
        found = [documents[name] for name in asked.names if name in documents]
        written = [table.setting.engine.encode_completion(policy, text, end=False) for text in found]
        for at, one in enumerate(written):
            if len(one.ids) > self.room:
                table.dropped[f"{READER}: tokens of documents longer than a bin"] += len(one.ids) - self.room
                found[at] = found[at][: int(one.ends[self.room - 1])]
        places = pack_first_fit([min(self.room, len(one.ids)) for one in written], self.room)
        return [make_document_bin(talk, n, [found[at] for at in place], asked.purpose) for n, place in enumerate(places)]

    def research(self, table: Table, problems: Sequence[Problem], n: int = 1, blank: bool = False) -> Traces:
        """Sample `n` trajectories of each problem: the planner's conversations, and what the reader wrote for them.

        With `blank` all documents are empty: an answer that is right nevertheless was not read.
        """
        done: list[Trace] = []
        notes: list[Trace] = []
        lines: dict[str, list[str]] = {}
        with table.cache_conversations():
            talks = table.ask(PLANNER, problems, n)
            for _ in range(self.calls):
                done += [talk for talk in talks if not is_request(talk)]
                asking = talks.select(is_request)
                found = {talk.id: parse_documents(talk.problem.text) for talk in asking}
                if blank:
                    found = {id: dict.fromkeys(documents, "") for id, documents in found.items()}
                bins = [one for talk in asking for one in self.pack_documents(table, talk, found[talk.id])]
                read = table.ask(READER, Traces(bins))
                notes += list(read)
                talks = self.reply_with_notes(table, asking, read, lines)
        ended = Traces([*done, *talks])
        return Traces([*(filter_comparable(ended) if n > 1 else ended), *notes])

    def reply_with_notes(self, table: Table, asking: Traces, read: Traces, lines: dict[str, list[str]]) -> Traces:
        """Sample the planner's next turns, after a message with what all its documents say so far."""
        for talk in asking:
            new = [line for note in read if note.subject.subject is talk for line in note.reading.value.lines]
            lines[talk.id] = [*(lines[talk.subject.id] if talk.about else []), *new]
        said = [get_planner(table).render_notes(talk.problem, lines[talk.id]) for talk in asking]
        return table.reply(PLANNER, asking, said, speaker=READER)

    def write_demonstrations(self, table: Table, plans: int, readings: int, slip: float) -> Traces:
        """Return rollouts of a noisy teacher in all three places: a request, what the documents say, and the solution.

        `plans` is the number of requests and solutions, `readings` the number of requests with notes: reading takes more
        examples than asking.
        """
        requests = sample_demonstrations(table, PLANNER, plans)
        asked = Traces([*requests, *sample_demonstrations(table, PLANNER, max(0, readings - plans))])[:readings]
        bins = Traces(one for talk in asked for one in self.pack_documents(table, talk, parse_documents(talk.problem.text)))
        rngs = [make_keyed_rng("reading", table.setting.seed, table.turn, one.id) for one in bins]
        notes = table.write(
            READER, bins, [get_reader(table).write_noisy_note(one, slip, rng) for one, rng in zip(bins, rngs, strict=True)]
        )
        said, texts = [], []
        for talk in requests:
            wanted, documents = talk.reading.value, parse_documents(talk.problem.text)
            threads = [extract_thread(documents[name], wanted.purpose == LETTERS) for name in wanted.names]
            said.append(get_planner(table).render_notes(talk.problem, threads))
            rng = make_keyed_rng("solution", table.setting.seed, table.turn, talk.problem.id)
            texts.append(get_planner(table).solver.demonstrate(table.setting.task, talk.problem, rng)[1])
        return Traces([*requests, *table.write_reply(PLANNER, requests, said, texts), *notes])


def get_planner(table: Table) -> Planner:
    """Return the planner's role."""
    role = table.setting.roles[PLANNER]
    assert isinstance(role, Planner)
    return role


def get_reader(table: Table) -> Reader:
    """Return the reader's role."""
    role = table.setting.roles[READER]
    assert isinstance(role, Reader)
    return role


def is_request(talk: Trace) -> bool:
    """Whether the last turn is a request that can be parsed."""
    return isinstance(talk.reading.value, Request) and talk.reading.is_valid


def map_turns_to_ends(talks: Traces) -> dict[str, Trace]:
    """Map the id of the conversation after each of its turns to the finished conversation."""
    return {turn.id: talk for talk in talks for turn in list_turns(talk)}
