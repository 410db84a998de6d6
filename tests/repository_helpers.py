"""A small git repository with a history, for tests."""

from __future__ import annotations

import subprocess
from pathlib import Path

BOXES = "def area(a, b):\n    return a * b\n\n\ndef volume(a, b, c):\n    return area(a, b) * c\n"
SUMS = "from boxes import area\n\n\ndef total(pairs):\n    return sum(area(a, b) for a, b in pairs)\n"
TESTS = {
    "tests/test_boxes.py": (
        "import pytest\n\nfrom boxes import area, volume\n\n\n"
        "@pytest.mark.parametrize('a', [1, 2, 3])\ndef test_area(a):\n    assert area(a, 5) == 5 * a\n\n\n"
        "def test_volume():\n    assert volume(2, 3, 4) == 24\n"
    ),
    "tests/test_sums.py": "from sums import total\n\n\ndef test_total():\n    assert total([(1, 2), (3, 4)]) == 14\n",
}


def git(folder: Path, *words: str) -> None:
    who = ["-c", "user.name=Test", "-c", "user.email=test@example.org", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", "-C", str(folder), *who, *words], check=True, capture_output=True)


def make_repository(folder: Path, more: dict[str, str] | None = None) -> Path:
    """Two commits: an earlier one in which an area was a sum, and the one whose tests pass."""
    folder.mkdir(parents=True)
    git(folder, "init", "-q")
    (folder / "boxes.py").write_text(BOXES.replace("a * b\n", "a + b\n", 1))
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "first")
    for path, text in {"boxes.py": BOXES, "sums.py": SUMS, **TESTS, **(more or {})}.items():
        (folder / path).parent.mkdir(exist_ok=True)
        (folder / path).write_text(text)
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "second")
    return folder
