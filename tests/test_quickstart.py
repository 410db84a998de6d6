"""The quick start is run as it stands: its file is written, its commands are given in their order."""

from __future__ import annotations

import json
import re
import shlex
import sys
from pathlib import Path

import pytest

from milonga.cli import main
from milonga.runfolder.files import JsonLines

PAGE = (Path(__file__).parents[1] / "docs" / "quickstart.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


COMMANDS = [shlex.split(line, comments=True) for block in blocks("sh")[1:] for line in block.splitlines()]
"""All but those that install."""


def test_the_page_installs_first_and_then_trains_shows_evaluates_and_compares() -> None:
    assert "make install" in blocks("sh")[0]
    assert [words[:2] for words in COMMANDS] == [["milonga", name] for name in ("run", "show", "eval", "compare")]


@pytest.mark.slow
def test_the_quick_start_does_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (settings,) = blocks("toml")
    name = settings.splitlines()[0].removeprefix("# ")
    (tmp_path / name).write_text(settings)
    said = {}
    for words in COMMANDS:
        monkeypatch.setattr(sys, "argv", words)
        with pytest.raises(SystemExit) as end:
            main()
        out, err = capsys.readouterr()
        assert end.value.code == 0, err
        said[words[1]] = out
    report = json.loads((tmp_path / "runs" / "pair" / "report.json").read_text())
    accuracy = report["generator"]["accuracy"]
    assert accuracy["end"] > accuracy["start"] + 0.15, "the page says that accuracy nearly doubled"
    turns = JsonLines(tmp_path / "runs" / "pair" / "metrics.jsonl").rows()[1:]
    assert [row["learner"] for row in turns].count("generator") == 6 and len(turns) == 9
    assert said["show"].count("verifier says") == 3
    assert all(metric in said["eval"] for metric in ("generator/majority", "verifier/f1", "verifier/best_of_k"))
    assert "undecided" in said["compare"] and (tmp_path / "runs" / "compared" / "compare.md").is_file()
    for model in ("generator", "verifier"):
        assert (tmp_path / "runs" / "pair" / "models" / model / "model.safetensors").is_file()
