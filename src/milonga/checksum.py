"""Checksums of files, to detect damage."""

from __future__ import annotations

import zlib
from pathlib import Path

from milonga.reading import WEIGHTS, open_regular

BLOCK = 1 << 22


def checksum(path: Path) -> int:
    """CRC-32 of a file, read in blocks: it may be larger than the memory."""
    value = 0
    with open_regular(path, WEIGHTS) as file:
        while block := file.read(BLOCK):
            value = zlib.crc32(block, value)
    return value
