"""Run folders that somebody else made: they run no code, reach no host and read no variable."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import milonga as package
from cases import TINY
from endpoint_helpers import NAME, Server, said, serving
from helpers import Command
from milonga.comparing.worker import run_order
from milonga.config import merge, parse_config, read_toml, to_toml
from milonga.errors import ConfigError, RunFolderError, UserError
from milonga.loading import name_object
from milonga.pair import Pair
from milonga.roles.templates import PromptTemplate
from milonga.runfolder.folder import read_config
from milonga.runfolder.signature import STATE, explain_missing_signature, write_signature
from milonga.trust import list_reached
from milonga.using.export import export

torch.set_num_threads(1)
EVIL = """
from pathlib import Path
Path(__file__).with_name("it-ran").touch()
def task(rng): return f"{rng.random()}", "1"
def reward(prompts, completions, **columns): return [0.0 for _ in prompts]
def extract(text, problem): return None
def prompt(problem, **more): return problem
"""
VARIABLE = "VERY_SECRET_VARIABLE"


@pytest.fixture
def foreign(trained: Path, tmp_path: Path) -> Path:
    """A copy of a run, as somebody else would send it: without a signature."""
    folder = tmp_path / "foreign"
    shutil.copytree(trained, folder)
    (folder / "signature").unlink(missing_ok=True)
    (folder / "report.json").unlink()  # as of a run that has not ended
    (folder / "evil.py").write_text(EVIL)
    return folder


def change(folder: Path, settings: dict[str, Any]) -> None:
    file = folder / "config.toml"
    file.write_text(to_toml(merge(read_toml(file), settings)))


def has_run(folder: Path) -> bool:
    return (folder / "it-ran").exists()


OPENERS: dict[str, Callable[[Path, Path], object]] = {
    "open": lambda folder, out: Pair.open(folder).close(),
    "export": lambda folder, out: export(folder, "generator", out),
    "evaluate": lambda folder, out: package.evaluate(folder, problems=1),
    "a suite": lambda folder, out: package.evaluate(folder, "pass_at_k", problems=1, samples=1),
    "resume": lambda folder, out: package.resume(folder, quiet=True),
    "extend": lambda folder, out: package.resume(folder, quiet=True, turns=9),
}
CODE: dict[str, Callable[[str], dict[str, Any]]] = {
    "task": lambda place: {"task": {"name": f"{place}:task"}},
    "recipe": lambda place: {"recipe": f"{place}:Recipe"},
    "reward": lambda place: {"rewards": [{"function": f"{place}:reward"}]},
    "extract": lambda place: {"extract": f"{place}:extract"},
    "prompt": lambda place: {"policies": {"generator": {"prompt": f"{place}:prompt"}}},
}


@pytest.mark.parametrize("opener", OPENERS)
def test_no_way_to_use_a_foreign_folder_runs_its_code(foreign: Path, tmp_path: Path, opener: str) -> None:
    change(foreign, CODE["task"](str(foreign / "evil.py")))
    with pytest.raises(RunFolderError) as refused:
        OPENERS[opener](foreign, tmp_path / "out")
    assert not has_run(foreign) and "\n" not in str(refused.value)
    assert f"--trust {foreign / 'evil.py'}" in str(refused.value)


@pytest.mark.parametrize("kind", CODE)
def test_no_kind_of_code_in_a_foreign_folder_is_run(foreign: Path, kind: str) -> None:
    change(foreign, CODE[kind](str(foreign / "evil.py")))
    with pytest.raises(RunFolderError, match="--trust"):
        package.evaluate(foreign, problems=1)
    assert not has_run(foreign)


@pytest.mark.parametrize("place", ["evil.py", "./evil.py", "live/evil.py", "evil", "live/../evil.py"])
def test_however_its_place_is_written(foreign: Path, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    (foreign / "live").mkdir()
    (foreign / "live" / "evil.py").write_text(EVIL)
    monkeypatch.chdir(foreign)
    monkeypatch.setattr(sys, "path", [*sys.path])
    change(foreign, CODE["task"](place))
    with pytest.raises(RunFolderError, match="--trust"):
        Pair.open(foreign)
    assert not has_run(foreign) and not has_run(foreign / "live")


def test_what_is_passed_replaces_code_only_where_no_file_is_loaded_for_it(
    foreign: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The name of a passed task is that of the config; a relative one would be made absolute, and then load the file."""
    monkeypatch.chdir(foreign)
    change(foreign, CODE["task"]("evil.py"))
    with pytest.raises(RunFolderError, match="--trust"):
        package.resume(foreign, quiet=True, task=lambda rng: ("1+1%100", "2"))
    assert not has_run(foreign)


def test_the_command_says_in_one_line_what_to_trust_and_then_does_it(foreign: Path, tmp_path: Path, milonga: Command) -> None:
    (tmp_path / "problems.jsonl").write_text('{"question": "3+4%100"}\n')
    change(foreign, CODE["extract"](str(foreign / "evil.py")))
    asked = ("solve", foreign, tmp_path / "problems.jsonl", "--best-of", "1", "--rank", "vote")
    refused = milonga(*asked)
    assert refused.code == 2 and len(refused.err.splitlines()) == 1 and not has_run(foreign)
    assert f"code {foreign / 'evil.py'}" in refused.err and f"--trust {foreign / 'evil.py'}" in refused.err
    assert milonga(*asked, "--trust", foreign / "other.py").code == 2 and not has_run(foreign)
    assert milonga(*asked, "--trust", os.path.relpath(foreign / "evil.py")).code == 0 and has_run(foreign)


def test_looking_at_a_foreign_folder_asks_for_nothing(foreign: Path, milonga: Command) -> None:
    change(foreign, CODE["task"](str(foreign / "evil.py")))
    assert milonga("show", foreign).code == 0 and milonga("report", foreign).code == 0
    assert not has_run(foreign)


def test_a_foreign_folder_that_names_nothing_opens_without_a_word(foreign: Path) -> None:
    with Pair.open(foreign, ["generator"]) as pair:
        assert pair.solve([pair.problem("3+4%100")])


def make_sender(foreign: Path, server: Server, **endpoint: Any) -> None:
    change(foreign, {"policies": {"verifier": {"model": server.model, "endpoint": endpoint}}, "dialect": "terse"})


def test_a_foreign_folder_reaches_no_host_and_sends_no_variable(foreign: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "sk-0123456789")
    with serving(lambda body, number: said("1")) as server:
        make_sender(foreign, server, api_key_env=VARIABLE)
        url = server.model.removeprefix("openai:").removesuffix(f"#{NAME}")
        for trust in ((), (url,), (VARIABLE,)):
            with pytest.raises(RunFolderError) as refused:
                Pair.open(foreign, trust=trust)
            missing = [f"--trust {name}" for name in (url, VARIABLE) if name not in trust]
            assert all(flag in str(refused.value) for flag in missing) and str(refused.value).count("--trust") == len(missing)
        assert not server.headers
        Pair.open(foreign, ["verifier"], trust=(f"{url}/", VARIABLE)).close()
        assert "sk-0123456789" not in str(refused.value)


def test_the_usual_key_is_a_variable_too(foreign: Path) -> None:
    change(foreign, {"policies": {"verifier": {"model": "openai:https://judge.example/v1#m"}}})
    with pytest.raises(RunFolderError, match="variable OPENAI_API_KEY"):
        Pair.open(foreign, trust=["https://judge.example/v1"])


def test_a_password_in_the_address_of_a_foreign_endpoint_is_neither_used_nor_shown(foreign: Path) -> None:
    with serving(lambda body, number: said("1")) as server:
        change(foreign, {"policies": {"verifier": {"model": server.model.replace("http://", "http://me:p4ssw0rd@")}}})
        for trust in ((), (server.model.removeprefix("openai:").removesuffix(f"#{NAME}"),)):
            with pytest.raises(ConfigError, match="holds no user, password or query") as refused:
                Pair.open(foreign, trust=trust)
            assert "p4ssw0rd" not in str(refused.value) and not server.headers


@pytest.mark.parametrize("kind", ["reward", "extract", "recipe", "prompt"])
@pytest.mark.parametrize("place", ["evil.py", "./evil.py", "evil", "live/../evil.py"])
def test_other_code_however_its_place_is_written(foreign: Path, monkeypatch: pytest.MonkeyPatch, kind: str, place: str) -> None:
    (foreign / "live").mkdir()
    monkeypatch.chdir(foreign)
    monkeypatch.setattr(sys, "path", [*sys.path])
    change(foreign, CODE[kind](place))
    for opener in ("evaluate", "resume"):
        with pytest.raises(UserError):
            OPENERS[opener](foreign, foreign / "out")
    assert not has_run(foreign)


REACHED: dict[str, tuple[dict[str, Any], str]] = {
    "a model of the hub": ({"policies": {"generator": {"model": "somebody/model"}}}, "somebody/model"),
    "a file of the hub": ({"policies": {"generator": {"model": "somebody/model/small.gguf"}}}, "somebody/model/small.gguf"),
    "a data set of the hub": ({"task": {"name": "hub", "dataset": "somebody/rows"}}, "somebody/rows"),
    "gsm8k of the hub": ({"task": {"name": "gsm8k"}}, "openai/gsm8k"),
    "a tracker": ({"keep": {"trackers": ["tensorboard", "wandb"]}}, "wandb"),
    "a cluster": ({"placement": {"address": "ray://elsewhere:10001"}}, "ray://elsewhere:10001"),
    "a task's programs": ({"task": {"name": "code", "allow_weak_isolation": True}}, "allow_weak_isolation"),
    "a recipe's programs": ({"options": {"allow_weak_isolation": True}}, "allow_weak_isolation"),
    "a module": ({"recipe": "somewhere.module:Recipe"}, "somewhere.module:Recipe"),
}


@pytest.mark.parametrize("case", REACHED)
def test_everything_else_that_reaches_out_is_named(tmp_path: Path, case: str) -> None:
    settings, name = REACHED[case]
    config = parse_config(merge({"recipe": "tango", "task": {"name": "chain"}}, settings))
    assert [one.name for one in list_reached(config, tmp_path)] == [name]


def test_files_are_named_where_their_content_would_be_sent(tmp_path: Path) -> None:
    quiet = {"recipe": "tango", "task": {"name": "jsonl", "path": "/elsewhere/rows.jsonl"}}
    assert list_reached(parse_config(quiet), tmp_path) == []
    prompts = {"generator": {"prompt": "/elsewhere/id_rsa", "model": "openai:http://host/v1#m"}}
    config = parse_config(quiet | {"policies": prompts | {"verifier": {"prompt": str(tmp_path / "own.jinja")}}})
    assert [one.name for one in list_reached(config, tmp_path)] == [
        "http://host/v1",
        "/elsewhere/rows.jsonl",
        "/elsewhere/id_rsa",
    ]


def test_control_characters_of_a_config_do_not_reach_the_terminal(foreign: Path) -> None:
    change(foreign, {"extract": "/x\n\x1b[2Jall is well.py:f"})
    with pytest.raises(RunFolderError) as refused:
        Pair.open(foreign)
    assert str(refused.value).isprintable()


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was made here with code of the user's."""
    folder = tmp_path_factory.mktemp("own")
    (folder / "mine.py").write_text(EVIL)
    settings = TINY | {"rewards": [{"function": f"{folder / 'mine.py'}:reward"}]}
    package.run("grpo", turns=1, out=folder / "run", settings=settings, quiet=True)
    return folder / "run"


def test_a_run_that_was_made_here_opens_without_a_word_and_goes_on(own: Path, tmp_path: Path) -> None:
    before = (own / "signature").read_bytes()
    assert package.evaluate(own, problems=1)["recipe"] == "grpo"
    moved = shutil.copytree(own, tmp_path / "moved")
    assert package.resume(moved, quiet=True, turns=2)["turns"] == 2, "its place and its length may change"
    assert package.evaluate(moved, problems=1) and (moved / "signature").read_bytes() == before


def test_a_run_of_an_older_version_stays_ones_own_when_it_is_extended(own: Path, tmp_path: Path) -> None:
    """An older version wrote fewer keys, and signed those."""
    old = shutil.copytree(own, tmp_path / "old")
    written = read_toml(old / "config.toml")
    del written["policies"]["generator"]["optimism"], written["sampling"]["history_gib"]
    (old / "config.toml").write_text(to_toml(written))
    write_signature(old, read_config(old))
    assert package.resume(old, quiet=True, turns=2)["turns"] == 2
    assert explain_missing_signature(old, read_config(old)) is None
    assert read_toml(old / "config.toml") == written | {"turns": 2}
    assert package.resume(old, quiet=True, turns=3)["turns"] == 3


def test_a_foreign_run_that_is_trusted_and_extended_stays_foreign(foreign: Path) -> None:
    change(foreign, CODE["reward"](str(foreign / "evil.py")))
    package.resume(foreign, quiet=True, turns=9, trust=[str(foreign / "evil.py")], accept_changes=True)
    with pytest.raises(RunFolderError, match="--trust"):
        package.evaluate(foreign, problems=1)


def change_state(monkeypatch: pytest.MonkeyPatch, folder: Path, key: bytes, mode: int = 0o600) -> None:
    folder.mkdir()
    (folder / "key").write_bytes(key)
    (folder / "key").chmod(mode)
    monkeypatch.setenv(STATE, str(folder))


def test_a_signature_is_for_one_key_and_one_config(own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = read_config(own)
    assert explain_missing_signature(own, config) is None
    copy = shutil.copytree(own, tmp_path / "copy")
    change(copy, {"rewards": [{"function": f"{own.parent / 'mine.py'}:extract"}]})
    assert "config was changed" in str(explain_missing_signature(copy, read_config(copy)))
    change_state(monkeypatch, tmp_path / "state", b"x" * 32)
    assert "made by somebody else" in str(explain_missing_signature(own, config))


@pytest.mark.parametrize(
    ("key", "mode", "said"),
    [(b"", 0o600, "is not a key"), (b"x" * 33, 0o600, "is not a key"), (b"x" * 32, 0o644, "others can read it")],
)
def test_a_key_that_anybody_could_know_is_none(
    own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: bytes, mode: int, said: str
) -> None:
    change_state(monkeypatch, tmp_path / "state", key, mode)
    with pytest.raises(RunFolderError, match=said):
        package.evaluate(own, problems=1)


def test_without_a_place_for_a_key_a_run_is_made_and_is_foreign(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: Path
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv(STATE, str(tmp_path / "file" / "state"))
    package.run("grpo", turns=1, out=tmp_path / "run", settings=TINY, quiet=True)
    assert not (tmp_path / "run" / "signature").exists()
    with pytest.raises(RunFolderError, match="cannot be told from one of somebody else"):
        package.evaluate(own, problems=1)


def test_a_pipe_in_the_place_of_a_signature_is_not_waited_for(own: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(own, tmp_path / "copy")
    (copy / "signature").unlink()
    os.mkfifo(copy / "signature")
    assert explain_missing_signature(copy, read_config(copy)) is not None


def test_processes_that_begin_together_have_one_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = (
        "from pathlib import Path; import sys; from milonga.config import parse_config; "
        "from milonga.runfolder.signature import write_signature; "
        "write_signature(Path(sys.argv[1]), parse_config({'recipe': 'grpo'}))"
    )
    monkeypatch.setenv(STATE, str(tmp_path / "state" / "deep"))
    folders = [tmp_path / f"run-{number}" for number in range(3)]
    for folder in folders:
        folder.mkdir()
    started = [subprocess.Popen([sys.executable, "-c", program, str(folder)]) for folder in folders]
    assert [one.wait() for one in started] == [0, 0, 0]
    assert len({(folder / "signature").read_bytes() for folder in folders}) == 1
    assert [file.name for file in (tmp_path / "state" / "deep").iterdir()] == ["key"]
    assert (tmp_path / "state" / "deep" / "key").stat().st_mode & 0o777 == 0o600


def test_a_sweep_trusts_what_its_study_names_and_nothing_else(foreign: Path, tmp_path: Path) -> None:
    """A folder that was unpacked has no signature of this user; the user's own study names its code."""
    (tmp_path / "mine.py").write_text(EVIL)
    change(foreign, {"extract": f"{tmp_path / 'mine.py'}:extract"})
    order = {"folder": str(foreign), "config": read_config(foreign).model_dump(mode="json", exclude_none=True)}
    assert run_order(order) == {"error": None} and has_run(tmp_path)
    (foreign / "report.json").unlink()
    change(foreign, CODE["reward"](str(foreign / "evil.py")))
    assert "--trust" in run_order(order)["error"] and not has_run(foreign)


def test_a_worker_imports_nothing_of_the_folder_it_is_started_in(tmp_path: Path) -> None:
    from milonga.comparing.pool import Run, Worker

    shadow = tmp_path / "milonga" / "comparing"
    shadow.mkdir(parents=True)
    for folder in (shadow, shadow.parent):
        (folder / "__init__.py").touch()
    (shadow / "worker.py").write_text(f"from pathlib import Path\nPath({str(tmp_path / 'it-ran')!r}).touch()\n")
    before = Path.cwd()
    os.chdir(tmp_path)
    try:
        worker = Worker(one_thread=True)
    finally:
        os.chdir(before)
    worker.begin(Run("arm", 0, tmp_path / "run"), {"recipe": "nothing"})
    assert "unknown recipe" in worker.answer()["error"] and not has_run(tmp_path)
    worker.close()


def test_prompts_of_a_folder_are_rendered_in_a_sandbox() -> None:
    for source in ("{{ problem.__class__.__mro__[1].__subclasses__() }}", "{{ steps.append('x') }}"):
        with pytest.raises(ConfigError):
            PromptTemplate(source, "theirs").render({"problem": "1+1", "steps": ["1+1=2"]})


def test_a_home_of_nobody_is_one_line(milonga: Command) -> None:
    found = milonga("probe", "grpo", "--generator", "~nobody-of-this-name/model")
    assert found.code == 2 and "not known here" in found.err and len(found.err.splitlines()) == 1


def test_an_object_of_this_process_needs_no_trust(own: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(own, tmp_path / "copy")
    (copy / "signature").unlink()
    change(copy, {"rewards": [{"function": name_object(lambda prompts, completions, **columns: [0.0] * len(prompts))}]})
    assert package.evaluate(copy, problems=1)


def test_who_reads_the_config_of_a_folder_and_resolves_it_asks_for_trust() -> None:
    """Both ways to use a folder do, and no module finds a third one."""
    sources = {file: file.read_text() for file in Path(package.__file__).parent.rglob("*.py")}
    using = {file.name for file, text in sources.items() if "read_config(" in text and " resolve([" in text}
    asking = {file.name for file, text in sources.items() if "check_trust(" in text}
    assert using == {"api.py", "pair.py"} and using <= asking
