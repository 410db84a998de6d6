"""Small parsers shared by the tagged grammars. Each goes over its text once: tags are looked for one behind the other."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Tagged:
    """One `<tag>body</tag>`: its body and its place in the text, tags included."""

    body: str
    start: int
    end: int


def find_tags(text: str, tag: str, offset: int = 0) -> list[Tagged]:
    """Find all non-nested occurrences of a tag. `offset` is added to the places, for text cut out of a larger one."""
    found: list[Tagged] = []
    end = 0
    while (one := _find_tag(text, tag, end)) is not None:
        found.append(replace(one, start=offset + one.start, end=offset + one.end))
        end = one.end
    return found


def cut_tags(text: str, tag: str) -> str:
    """Cut all occurrences of a tag out of a text, and return what stands around them."""
    found = find_tags(text, tag)
    starts, ends = [tag.start for tag in found], [tag.end for tag in found]
    return "".join(text[a:b] for a, b in zip([0, *ends], [*starts, len(text)], strict=True))


def find_sequence(text: str, *tags: str) -> list[str] | None:
    """Find the bodies of tags that are the whole text, one behind the other in this order, each exactly once."""
    if any(text.count(mark) != 1 for tag in tags for mark in (f"<{tag}>", f"</{tag}>")):
        return None
    found, end = [], 0
    for tag in tags:
        one = _find_tag(text, tag, end)
        if one is None or text[end : one.start].strip():
            return None
        found.append(one.body)
        end = one.end
    return None if text[end:].strip() else found


def find_frame(text: str, first: str, second: str) -> re.Match[str] | None:
    """Match `<first>…</first><second>…</second>` as the whole text, each tag exactly once; groups 1 and 2 are the bodies."""
    if any(text.count(mark) != 1 for tag in (first, second) for mark in (f"<{tag}>", f"</{tag}>")):
        return None
    return re.fullmatch(rf"\s*<{first}>(.*)</{first}>\s*<{second}>(.*)</{second}>\s*", text, re.DOTALL)


def find_loose_frame(text: str, first: str, second: str) -> tuple[Tagged, Tagged] | None:
    """Find `<first>…</first>` and, after it, `<second>…</second>` within any other text; None unless each is there once: who
    writes two answers has given none."""
    if any(text.count(mark) != 1 for tag in (first, second) for mark in (f"<{tag}>", f"</{tag}>")):
        return None
    one = _find_tag(text, first, 0)
    two = None if one is None else _find_tag(text, second, one.end)
    return None if one is None or two is None else (one, two)


def _find_tag(text: str, tag: str, start: int) -> Tagged | None:
    opened = text.find(f"<{tag}>", start)
    closed = text.find(f"</{tag}>", opened) if opened >= 0 else -1
    if closed < 0:
        return None
    return Tagged(text[opened + len(tag) + 2 : closed], opened, closed + len(tag) + 3)


def find_boxed(text: str) -> Iterator[str]:
    r"""Yield the contents of every `\boxed{…}`, with balanced braces; an unclosed box is not one."""
    position = 0
    marker = "\\boxed{"
    while (start := text.find(marker, position)) >= 0:
        depth, at = 1, start + len(marker)
        while at < len(text) and depth:
            depth += {"{": 1, "}": -1}.get(text[at], 0)
            at += 1
        if depth:
            return
        yield text[start + len(marker) : at - 1]
        position = at
