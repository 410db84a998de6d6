"""Checksums of files, to detect damage."""

from __future__ import annotations

import zlib
from pathlib import Path

from milonga.reading import WEIGHTS, open_regular

BLOCK = 1 << 22


def checksum(path: Path, size: int | None = None) -> int:
    """CRC-32 of a file, or of its first `size` bytes, read in blocks: it may be larger than the memory."""
    value, left = 0, size
    with open_regular(path, WEIGHTS) as file:
        while block := file.read(BLOCK if left is None else min(BLOCK, left)):
            value = zlib.crc32(block, value)
            left = None if left is None else left - len(block)
    return value
