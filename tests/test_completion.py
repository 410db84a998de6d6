"""What Tab gives, in the shells themselves: typer writes their scripts, and they ask the real command."""

from __future__ import annotations

import os
import pty
import select
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest

from milonga.cli import completion, main
from milonga.config import parse_setting, to_toml
from milonga.resolve import resolve
from milonga.systems.index import CLAIMS, RECIPES
from milonga.tasks import TASKS

LIMIT_S = 20
TO_THE_START, TO_THE_END = "\x01", "\x05"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a run and a file of one's own, and the command on the path of shells that know nothing else."""
    commands = tmp_path / "bin"
    commands.mkdir()
    (commands / "milonga").write_text(f"#!{sys.executable}\nfrom milonga.cli import main\n\nmain()\n")
    (commands / "milonga").chmod(0o755)
    (tmp_path / "runs" / "first").mkdir(parents=True)
    config = resolve([{"recipe": "grpo"}]).config.model_dump(mode="json")
    (tmp_path / "runs" / "first" / "config.toml").write_text(to_toml(config))
    (tmp_path / "mine.py").write_text("class Mine:\n    pass\n\n\ndef _hidden():\n    pass\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{commands}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(Path(completion.__file__).parents[2]))
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def test_names_read_from_the_sources_are_those_of_the_registries() -> None:
    assert {name for name, _ in completion.complete_recipes("")} == set(RECIPES)
    assert {name for name, _ in completion.complete_tasks("")} == {*TASKS, "reasoning_gym:"}
    assert {name for name, _ in completion.complete_claims("")} == set(CLAIMS)
    assert all(
        help for _, help in completion.complete_recipes("") + completion.complete_tasks("") + completion.complete_claims("")
    )


CASES: list[tuple[Sequence[str], set[str]]] = [
    (["re"], {"report", "resume"}),
    (["run", "tan"], {"tango", "tango_balanced", "tango_code", "tango_free", "tango_free_adversary"}),
    (["run", "mine.py", ":"], {"Mine"}),
    (["run", "grpo", "--task", "last"], {"last_letter"}),
    (["show", ""], {"runs/first"}),
    (["show", "./ru"], set()),
    (["show", "./runs/f"], {"./runs/first"}),
    (["claim", "prim"], {"prime"}),
    (["plan", "--generator", "7"], {"7b", "70b", "72b"}),
    (["plan", "--gpu", "h"], {"h100", "h200"}),
    (["eval", "runs/first", "--split", ""], {"dev", "test"}),
    (["run", "tango", "--set", "batch."], {"batch.problems=", "batch.rollouts="}),
    (["run", "tango", "--set", "batch.ro"], {"batch.rollouts=", "batch.rollouts=8"}),
    (["run", "tango", "--set", "binding", "="], {"own", "lora", "shared"}),
    (["run", "tango", "--set", "eval.greedy", "=", "f"], {"false"}),
    (["run", "tango", "--set", "options.alpha_m"], {"options.alpha_min=", "options.alpha_min=0.001"}),
    (["run", "gar", "--set", "options.alpha_m"], set()),
    (["run", "grpo", "--set", "policies.v"], set()),
    (["run", "tango", "--set", "task.min_o"], {"task.min_ops="}),
    (["compare", "tango", ":", "options.alpha_schedule", "=", "c"], {"constant"}),
    (["compare", "tango", "grpo", "--metric", "verifier/f1_"], {"verifier/f1_low", "verifier/f1_high"}),
    (["compare", "grpo", "grpo", "--metric", "verifier/f"], set()),
    (["run", "no_such_recipe", "--set", "turn"], {"turns=", "turns=30"}),
]


@pytest.mark.parametrize(("words", "offered"), CASES, ids=[" ".join(words) for words, _ in CASES])
def test_what_is_offered(
    place: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: Sequence[str],
    offered: set[str],
) -> None:
    """As bash asks: the words that it has broken the line into, the last of them under the cursor."""
    asked = {completion.ASKED: "complete_bash", "COMP_WORDS": "\n".join(("milonga", *words)), "COMP_CWORD": str(len(words))}
    for name, value in asked.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "argv", ["milonga"])
    with pytest.raises(SystemExit) as end:
        main()
    out, err = capsys.readouterr()
    assert not end.value.code and err == ""
    assert set(out.split()) == offered


def test_settings_that_are_offered_are_taken() -> None:
    """All keys of tango's options, each with every value that is offered for it."""
    for word, _ in completion.list_settings("tango", "options."):
        for setting, _ in completion.list_settings("tango", word)[1:]:
            assert resolve([{"recipe": "tango"}, parse_setting(setting)])
        assert len(completion.list_settings("tango", word)) > 1


def test_completing_loads_no_torch_and_names_load_nothing_of_ours(place: Path) -> None:
    program = textwrap.dedent(
        """
        import os, sys
        os.environ |= {"_MILONGA_COMPLETE": "complete_bash", "COMP_WORDS": sys.argv[1], "COMP_CWORD": sys.argv[2]}
        sys.argv = ["milonga"]
        from milonga.cli import main
        try:
            main()
        finally:
            sys.stderr.write(" ".join(m for m in ("torch", "transformers", "numpy", "milonga.config") if m in sys.modules))
        """
    )

    def loaded(*words: str) -> list[str]:
        arguments = ["\n".join(("milonga", *words)), str(len(words))]
        done = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=False)
        return done.stderr.split()

    assert loaded("run", "tan") == []
    assert loaded("run", "tango", "--set", "batch.") == ["milonga.config"]
    assert "torch" not in loaded("compare", "tango", "grpo", "--metric", "verifier/f")


def type_in(shell: list[str], setup: str, lines: Iterable[str]) -> list[str]:
    """Lines typed into a real shell, Tab at the end of each; what then stands there is printed instead of run."""
    child, terminal = pty.fork()
    if child == 0:
        os.environ |= {"TERM": "dumb", "PS1": "", "INPUTRC": "/dev/null"}
        os.execvp(shell[0], shell)
    os.write(terminal, f"{setup}; echo rea''dy\n".encode())
    read_until(terminal, "ready")
    found = []
    for line in lines:
        os.write(terminal, f"{line}\t{TO_THE_START}echo 'got' '['{TO_THE_END}']'\n".encode())
        seen = read_until(terminal, "got [")
        while "]" not in seen.rpartition("got [")[2]:
            seen += read_until(terminal, "]")
        found.append(seen.rpartition("got [")[2].partition("]")[0].strip())
    os.close(terminal)
    os.waitpid(child, 0)
    return found


def read_until(terminal: int, mark: str) -> str:
    seen = ""
    while mark not in seen:
        readable, _, _ = select.select([terminal], [], [], LIMIT_S)
        assert readable, seen
        seen += os.read(terminal, 4096).decode(errors="replace")
    return seen


BASH = ["bash", "--norc", "--noprofile", "-i"]
LINES = {
    "milonga run tan": "milonga run tango",
    "milonga run tango --set binding=l": "milonga run tango --set binding=lora",
    "milonga run tango --set batch.r": "milonga run tango --set batch.rollouts=",
    "milonga run mine.py:M": "milonga run mine.py:Mine",
    "milonga show ru": "milonga show runs/first",
}


@pytest.mark.slow
def test_bash_completes_lines(place: Path) -> None:
    setup = 'source <(bash -c "milonga --show-completion; true")'
    assert type_in(BASH, setup, LINES) == list(LINES.values())


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("zsh") is None, reason="zsh is not installed")
def test_zsh_completes_lines(place: Path) -> None:
    script = subprocess.run(["zsh", "-c", "milonga --show-completion; true"], capture_output=True, text=True, check=True)
    (place / "comp.zsh").write_text(script.stdout)
    setup = "unsetopt zle_bracketed_paste; bindkey -e; autoload -Uz compinit; compinit -u; source comp.zsh"
    assert type_in(["zsh", "-f", "-i"], setup, LINES) == list(LINES.values())


@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not installed")
def test_fish_completes_a_line(place: Path) -> None:
    program = "milonga --show-completion | source; complete -C 'milonga run tan'"
    done = subprocess.run(["fish", "-c", program], capture_output=True, text=True, check=False)
    assert done.stdout.startswith("tango\tGenerator and generative step verifier learn in turns")


def test_completion_can_be_installed(place: Path) -> None:
    done = subprocess.run(["bash", "-c", "milonga --install-completion; true"], capture_output=True, text=True, check=False)
    assert "completion installed" in done.stdout, done.stderr
    assert "milonga.sh" in (place / ".bashrc").read_text()
