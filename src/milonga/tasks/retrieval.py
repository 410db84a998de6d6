"""Retrieval: passages of text, found by the words of a query (BM25, through bm25s).

Invariants: what a query finds is a pure function of the passages and the query, so that the log of a conversation can be made
again from its queries. Passages that share no word with the query are never returned; ties keep the order of the passages.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np

from milonga.errors import DataError
from milonga.reading import TEXT, read_text
from milonga.tasks.base import Tool

WORD = re.compile(r"\w+")
LONGEST = 1000
"""Characters of a passage of a folder's files: longer paragraphs are cut between words."""


def split_words(text: str) -> list[str]:
    """Split a text into lower-case words for the index. No stemming and no stop words, which depend on the language."""
    return WORD.findall(text.casefold())


class Retrieval(Tool):
    """The passages that fit a query best, at most `top` of them."""

    def __init__(self, passages: Sequence[str], top: int, calls: int) -> None:
        # It imports JAX where that is installed, and JAX would take most of a GPU for choosing the best of a list.
        os.environ.setdefault("JAX_PLATFORMS", "cpu")
        import bm25s  # a quarter of a second that only this task should cost

        self.passages, self.top, self.calls = tuple(passages), top, calls
        self.index = bm25s.BM25()
        self.index.index([split_words(passage) for passage in self.passages], show_progress=False)
        self._remembered = lru_cache(maxsize=4096)(self.find)

    def answer(self, call: str) -> tuple[str, ...]:
        return self._remembered(call)  # rollouts of one question ask the same things

    def find(self, call: str) -> tuple[str, ...]:
        terms = [word for word in dict.fromkeys(split_words(call)) if word in self.index.vocab_dict]
        if not terms:
            return ()
        scores = self.index.get_scores(terms)
        best = np.argsort(-scores, kind="stable")[: self.top]
        return tuple(self.passages[i] for i in best if scores[i] > 0)


def read_folder(path: Path) -> list[str]:
    """Read the paragraphs of all text files (`.txt` and `.md`) below a folder, in the order of their names."""
    if not path.is_dir():
        raise DataError(f"corpus '{path}' is not a folder; task.path names a folder with .txt or .md files")
    files = sorted(file for file in path.rglob("*") if file.suffix in (".txt", ".md") and file.is_file())
    if not files:
        raise DataError(f"corpus '{path}' holds no .txt or .md file")
    found = [passage for file in files for passage in _read_passages(file)]
    if not any(split_words(passage) for passage in found):
        raise DataError(f"corpus '{path}': there is not one word in its {len(files)} files")
    return found


def _read_passages(file: Path) -> list[str]:
    try:
        text = read_text(file, TEXT)
    except UnicodeDecodeError as error:
        raise DataError(f"corpus file '{file}' is not UTF-8 text (byte {error.start})") from None
    except OSError as error:
        raise DataError(f"corpus file '{file}' cannot be read: {error.strerror}") from None
    paragraphs = (" ".join(paragraph.split()) for paragraph in re.split(r"\n\s*\n", text))
    return [piece for paragraph in paragraphs if paragraph for piece in split_paragraph(paragraph)]


def split_paragraph(paragraph: str) -> list[str]:
    """Split a paragraph between words if it is longer than a passage may be."""
    out, start = [], 0
    while len(paragraph) - start > LONGEST:
        end = paragraph.rfind(" ", start, start + LONGEST + 1)
        end = end if end > start else start + LONGEST  # one word longer than a passage
        out.append(paragraph[start:end])
        start = end + (paragraph[end : end + 1] == " ")
    return [*out, paragraph[start:]]
