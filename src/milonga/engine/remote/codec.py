"""Conversations with a model whose tokenizer we do not have: here a token is a byte of UTF-8.

Three ids above all bytes mark messages. What is said, foreign or not, is bytes alone: nothing in it can become a mark, and at
the endpoint it is the content of a message, which the server's template keeps apart from its own special tokens.

    USER, text of the prompt, MODEL, text of the output, END, USER, what is said next, MODEL, …

Invariant: `messages` gives back what was encoded, to the byte.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from milonga.engine.base import Completion
from milonga.types import Finish, Prompt

USER, MODEL, END = 256, 257, 258
"""A message to the model begins; the model's turn begins; the model, or we for it, ended its turn."""
Ids = NDArray[np.int64]


def encode(prompt: Prompt) -> Ids:
    """A prompt as a message, with the turn handed to the model."""
    return np.array([USER, *_encode_utf8("".join(part.text for part in prompt)), MODEL], dtype=np.int64)


def encode_next_turn(prompt: Prompt, last: int) -> Ids:
    """Encode the next user turn of a conversation that ends in the id `last`."""
    closing = [] if last == END else [END]
    return np.concatenate([np.array(closing, dtype=np.int64), encode(prompt)])


def encode_completion(text: str, finish: Finish = "eos") -> Completion:
    """Encode a text as a completion. Its log-probabilities are not known: they are 0, in segments that are never trained."""
    raw = np.array(list(_encode_utf8(text)), dtype=np.int64)
    # A byte ends a character unless one follows that goes on with it.
    ends = np.cumsum(np.append(raw[1:] & 0xC0 != 0x80, True)) if len(raw) else raw
    text = _encode_utf8(text).decode()
    if finish == "eos":
        raw, ends = np.append(raw, END), np.append(ends, len(text))
    return Completion(raw, np.zeros(len(raw)), finish, text, ends)


def _encode_utf8(text: str) -> bytes:
    """Encode as UTF-8. Lone surrogates, which JSON can hold and UTF-8 cannot, become question marks."""
    return text.encode("utf-8", "replace")


def decode_messages(context: Ids) -> list[dict[str, str]] | None:
    """The conversation as messages; None where it stops within an output, from where no chat can go on."""
    if not len(context) or context[0] != USER or context[-1] != MODEL:
        return None
    marks = np.flatnonzero(context >= USER)
    out = []
    for start, stop in pairwise(marks):
        if context[start] != END:
            said = bytes(context[start + 1 : stop].tolist()).decode()
            out.append({"role": "user" if context[start] == USER else "assistant", "content": said})
    return out


def cut_at_stop(text: str, stop: Sequence[str]) -> str | None:
    """The text up to its first stop string, that included; None where it holds none."""
    ends = [at + len(one) for one in stop if (at := text.find(one)) >= 0]
    return text[: min(ends)] if ends else None
