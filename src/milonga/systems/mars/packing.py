"""Bin packing of texts by their lengths, so that few bins have to be read and none is overfull."""

from __future__ import annotations

from collections.abc import Sequence


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
