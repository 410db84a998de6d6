"""Forms of data beside questions with answers: replies (SFT), preferences, labelled steps, plain text.

Conversations are texts, or lists of messages with `role` and `content`. A reply is kept word for word.
Invariant: a record that does not have its form is an error that names its place and the field.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from milonga.errors import DataError
from milonga.reading import TEXT, read_text
from milonga.tasks.base import TaskOptions

Form = Literal["problems", "sft", "preferences", "steps", "prm800k", "text"]
"""problems: a question and an answer. sft: a prompt and its completion, or `messages`. preferences: a prompt, a chosen and a
rejected reply. steps: a problem, the steps of a solution, and the index of the first wrong one or a label for each. prm800k: as
that data set has them. text: plain text."""
QUESTIONS: Mapping[Form, str] = {
    "problems": "question",
    "sft": "prompt",
    "preferences": "prompt",
    "steps": "problem",
    "prm800k": "question.problem",
    "text": "text",
}
"""The field of the question, or of what takes its place, where none is named."""
SPEAKERS = {"user": "User", "assistant": "Assistant", "system": "System"}
ASSISTANT = re.compile(r"\n\n(?:Assistant|ASSISTANT):[ \t]?")
HUMAN = re.compile(r"\s*(?:Human|HUMAN|User|USER):[ \t]?")
"""Turns of a transcript in one text, as in Anthropic's HH."""
UNLABELLED = ("give_up", "bad_problem")
"""How labels of PRM800K end that do not judge a solution."""
TEXTS = (".txt", ".md")
"""Ends of the names of text files."""
MISSING = object()
"""What is found at a path that a record does not have."""


class Fields(TaskOptions):
    """The fields of a row, by name. A dotted path reaches into nested ones: `reward_model.ground_truth`, `prompt.0.content`."""

    question: str = Field("question", min_length=1)
    """The field that holds the question."""
    answer: str = "answer"
    """The field that holds the answer; empty: there are no reference answers, and grades are unknown."""
    solution: str | None = None
    """The field with a worked solution, one step a line; without it what stands before the answer in its own field."""
    completion: str = "completion"
    """Of the form `sft`: the reply, a text or a list of messages; where it is missing, `messages` is the whole conversation."""
    chosen: str = "chosen"
    """Of the form `preferences`: the reply that people preferred, a text or a list of messages."""
    rejected: str = "rejected"
    """Of the form `preferences`: the other reply."""
    steps: str = "steps"
    """Of the form `steps`: the steps of a solution, a list of texts."""
    label: str = "label"
    """Of the form `steps`: the index of the first wrong step, or -1; or a list with true or false for each step."""
    level: str = "level"
    """The field with the level of difficulty: an integer, or a text with one in it. Rows without it have no level."""


@dataclass(frozen=True)
class Content:
    """What a record of such a form holds."""

    question: str
    reply: str | None = None
    rejected: str | None = None
    labelled_steps: tuple[tuple[str, bool], ...] = ()
    """Steps with their labels: right before the first error, wrong from there on."""


@dataclass(frozen=True)
class _Row:
    """A record with the names of its fields and its place, for errors."""

    record: Mapping[Any, Any]
    fields: Fields
    where: str

    def has(self, name: str) -> bool:
        return find_value(self.record, name) is not MISSING

    def get(self, name: str) -> Any:
        value = find_value(self.record, name)
        if value is None:
            raise DataError(f"{self.where}: field '{name}' is null")
        if value is MISSING:
            there = ", ".join(sorted(map(str, self.record)))
            raise DataError(f"{self.where}: field '{name}' is missing; the row has {there}: name it in task.fields")
        return value

    def get_prompt(self, name: str) -> str:
        """Return a text, or a conversation as one text, which must have something in it."""
        return self.require_text(render_talk(self.parse_talk(name)), name)

    def get_reply(self, name: str) -> str:
        """Return a text, or the last message of a list, as it is."""
        return self.require_text(self.parse_talk(name)[-1][1], name)

    def parse_talk(self, name: str) -> list[tuple[str, str]]:
        """Parse a text, or a list of messages, into speakers and what they say."""
        value = self.get(name)
        if isinstance(value, str):
            return [("user", value)]
        talk = [
            (str(one["role"]), one["content"])
            for one in (value if isinstance(value, Sequence) else ())
            if isinstance(one, Mapping) and "role" in one and isinstance(one.get("content"), str)
        ]
        if not talk or len(talk) < len(value):
            raise DataError(f"{self.where}: field '{name}' is neither a text nor a list of messages with role and content")
        return talk

    def require_text(self, text: str, name: str) -> str:
        if not text.strip():
            raise DataError(f"{self.where}: field '{name}' is not a text with something in it")
        return text


def parse_content(form: Form, record: Mapping[Any, Any], fields: Fields, where: str) -> Content:
    """Parse a record of one of these forms."""
    row = _Row(record, fields, where)
    if form == "sft":
        return _parse_sft(row)
    if form == "preferences":
        return _parse_preference(row)
    question = row.get_prompt(fields.question)
    if form == "steps":
        return Content(question, labelled_steps=_parse_steps(row))
    return Content(question, labelled_steps=_parse_prm800k(row)) if form == "prm800k" else Content(question)


def _parse_sft(row: _Row) -> Content:
    if row.has(row.fields.completion) or not row.has("messages"):
        return Content(row.get_prompt(row.fields.question), row.get_reply(row.fields.completion))
    *before, (speaker, reply) = row.parse_talk("messages")
    if speaker != "assistant" or not before:
        raise DataError(f"{row.where}: field 'messages' does not end in a reply of the assistant to something")
    return Content(render_talk(before), row.require_text(reply, "messages"))


def _parse_preference(row: _Row) -> Content:
    """Parse a pair; without a prompt of its own it is what both sides have in common, as in TRL's implicit form."""
    chosen, rejected = row.fields.chosen, row.fields.rejected
    if row.has(row.fields.question):
        return Content(row.get_prompt(row.fields.question), row.get_reply(chosen), row.get_reply(rejected))
    if isinstance(row.get(chosen), str) and isinstance(row.get(rejected), str):
        return _split_transcripts(row)
    one, other = row.parse_talk(chosen), row.parse_talk(rejected)
    if len(one) < 2 or one[:-1] != other[:-1]:
        raise DataError(f"{row.where}: '{chosen}' and '{rejected}' do not begin with the same prompt")
    return Content(render_talk(one[:-1]), row.get_reply(chosen), row.get_reply(rejected))


def _split_transcripts(row: _Row) -> Content:
    """Split two transcripts where the assistant's last turn begins in both of them."""
    fields, one, other = row.fields, str(row.get(row.fields.chosen)), str(row.get(row.fields.rejected))
    turns = [turn for turn in ASSISTANT.finditer(one) if other.startswith(one[: turn.end()])]
    if not turns:
        raise DataError(
            f"{row.where}: no field '{fields.question}', and '{fields.chosen}' and '{fields.rejected}' do not begin with the "
            "same prompt; name its field by task.fields.question"
        )
    prompt, end = one[: turns[-1].start()], turns[-1].end()
    prompt = HUMAN.sub("", prompt, count=1) if len(turns) == 1 and HUMAN.match(prompt) else prompt
    replies = row.require_text(one[end:], fields.chosen), row.require_text(other[end:], fields.rejected)
    return Content(row.require_text(prompt, fields.chosen).strip(), *replies)


def render_talk(talk: Sequence[tuple[str, str]]) -> str:
    """Render a conversation as one prompt: what was said, if there is one user's turn; several turns with their speakers."""
    said = [(speaker, text.strip()) for speaker, text in talk]
    if [speaker for speaker, _ in said if speaker != "system"] == ["user"]:
        return "\n\n".join(text for _, text in said)
    return "\n\n".join(f"{SPEAKERS.get(speaker, speaker)}: {text}" for speaker, text in said)


def _parse_steps(row: _Row) -> tuple[tuple[str, bool], ...]:
    """Parse steps with the index of the first wrong one (-1: none), or with a label for each."""
    steps, label = row.get(row.fields.steps), row.get(row.fields.label)
    if not isinstance(steps, list) or not steps or not all(isinstance(step, str) and step.strip() for step in steps):
        raise DataError(f"{row.where}: field '{row.fields.steps}' is not a list of steps, each a text")
    if isinstance(label, int) and not isinstance(label, bool) and -1 <= label < len(steps):
        return tuple((step, label == -1 or number < label) for number, step in enumerate(steps))
    if isinstance(label, list) and len(label) == len(steps) and all(one in (0, 1) for one in label):
        return tuple((step, all(label[: number + 1])) for number, step in enumerate(steps))
    raise DataError(
        f"{row.where}: field '{row.fields.label}' is neither -1 or the index of one of {len(steps)} steps, nor a list with "
        "true or false for each"
    )


def _parse_prm800k(row: _Row) -> tuple[tuple[str, bool], ...]:
    """Parse the path that the labeller chose: neutral steps count as right, those that people wrote too. Where no completion
    was chosen, the first wrong one ends it. What the labeller gave up, or found to be no problem, says nothing of its steps."""
    ended = find_value(row.record, "label.finish_reason")
    if ended in UNLABELLED:
        raise DataError(
            f"{row.where}: field 'label.finish_reason' is '{ended}': the labels do not tell whether the steps are right"
        )
    found: list[tuple[str, bool]] = []
    steps = row.get("label.steps")
    for step in steps if isinstance(steps, list) else ():
        one = _choose_completion(row, step) if isinstance(step, Mapping) else None
        if one is None:
            break
        found.append(one)
    if not found:
        raise DataError(f"{row.where}: field 'label.steps' holds no step with a rating")
    return tuple((text, all(right for _, right in found[: number + 1])) for number, (text, _) in enumerate(found))


def _choose_completion(row: _Row, step: Mapping[Any, Any]) -> tuple[str, bool] | None:
    """Choose the completion of a step that the solution goes on with; None if it ends before this step."""
    completions = step.get("completions") or []
    if not isinstance(completions, list):
        raise DataError(f"{row.where}: field 'label.steps' has a step whose 'completions' are no list")
    rated = [_parse_rating(one) for one in completions]
    chosen, human = step.get("chosen_completion"), step.get("human_completion")
    if isinstance(chosen, int) and 0 <= chosen < len(rated):
        return rated[chosen]
    if isinstance(human, Mapping) and isinstance(human.get("text"), str) and human["text"].strip():
        return human["text"], True
    return next((one for one in rated if one is not None and not one[1]), None)


def _parse_rating(completion: Any) -> tuple[str, bool] | None:
    """Parse a completion that was rated -1, 0 or 1: only the first is wrong."""
    text, rating = (completion.get(key) for key in ("text", "rating")) if isinstance(completion, Mapping) else (None, None)
    return (text, rating >= 0) if isinstance(text, str) and text.strip() and isinstance(rating, int) else None


def find_value(record: Any, path: str) -> Any:
    """Find the value at a dotted path, `MISSING` if there is none. A number counts the entries of a list from 0; a key that has
    dots itself comes first."""
    if isinstance(record, Mapping) and path in record:
        return record[path]
    head, dot, rest = path.partition(".")
    inner: Any = MISSING
    if isinstance(record, Mapping):
        inner = record.get(head, MISSING)
    elif isinstance(record, list) and head.isdecimal() and int(head) < len(record):
        inner = record[int(head)]
    return find_value(inner, rest) if dot else inner


# ------------------------------------------------------------------------------------------------------------------- text


def read_texts(path: Path) -> Iterator[tuple[int, str, Any]]:
    """Read a text file, or all of a folder (.txt, .md, in any depth, in the order of their names), as records with `text`."""
    files = (
        sorted(one for one in path.rglob("*") if one.suffix in (".txt", ".md") and one.is_file()) if path.is_dir() else [path]
    )
    if not files:
        raise DataError(f"folder '{path}' holds no .txt or .md file")
    for number, file in enumerate(files, 1):
        try:
            yield number, str(file), {"text": read_text(file, TEXT, "utf-8-sig")}
        except UnicodeDecodeError as error:
            raise DataError(f"text file '{file}' is not UTF-8 (byte {error.start})") from None


def cut_documents(records: Iterable[tuple[int, str, Any]], field: str, longest: int) -> Iterator[tuple[int, str, Any]]:
    """Cut the texts of records into passages, numbered through; a record without a text is passed on as it is."""
    number = 0
    for _, where, record in records:
        text = find_value(record, field) if isinstance(record, Mapping) else MISSING
        pieces = [{**record, field: piece} for piece in cut_passages(text, longest)] if isinstance(text, str) else []
        for piece in pieces or [record]:
            number += 1
            yield number, where, piece


def cut_passages(text: str, longest: int) -> list[str]:
    """Cut a text into passages of so many characters at most, at blank lines if it has them there, else between words."""
    passages: list[str] = []
    for block in re.split(r"\n\s*\n", text):
        for piece in _cut_block(block.strip(), longest):
            if passages and len(passages[-1]) + len(piece) + 2 <= longest:
                passages[-1] += f"\n\n{piece}"
            elif piece:
                passages.append(piece)
    return passages


def _cut_block(block: str, longest: int) -> Iterator[str]:
    while len(block) > longest:
        space = max(block.rfind(" ", 1, longest), block.rfind("\n", 1, longest))
        end = space if space > 0 else longest
        yield block[:end].rstrip()
        block = block[end:].lstrip()
    yield block
