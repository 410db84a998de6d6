"""Sweeps: what a study says, runs in slices of time, on to another machine, shares of a GPU's memory."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from signal import SIGINT, raise_signal

import pytest

import milonga as package
from helpers import Command
from milonga.comparing import study
from milonga.comparing.packing import pack, unpack
from milonga.comparing.pool import Run
from milonga.comparing.progress import read_last_turn
from milonga.comparing.study import StudyArm, fill_placeholders, order_runs, read_studies
from milonga.comparing.sweep import (
    EMBEDDED_TOKEN,
    GIB,
    LOGIT,
    ROOM,
    Sweep,
    count_fitting,
    estimate_memory,
    group_by_badge,
    name_run,
    sweep,
    write_table,
)
from milonga.errors import ConfigError, RunFolderError, UserError
from milonga.health import BADGES
from milonga.planning import find_shape
from milonga.runfolder.files import JsonLines
from milonga.runfolder.folder import write_signed_config
from milonga.tasks import make_task

STUDY = """
[common]
turns = TURNS
device = "cpu"
threads = 1
task = { name = "jsonl", path = "$DATA/problems.jsonl", max_tokens = 12 }
batch = { problems = 2, rollouts = 2 }
eval = { problems = 2, samples = 1, bench = 0 }
keep = { checkpoint_every = 100, rollouts_every = 0 }
policies.generator.model = "embedded"

[[runs]]
name = "pair"
recipe = ["grpo"]
seeds = [3, 4]
grid = { "lr" = [1e-5, 1e-4] }
"""
LONG = 16


def make_study(folder: Path, turns: int = 1) -> Path:
    """A study of four runs, and its problems, in a folder."""
    folder.mkdir(exist_ok=True)
    rows = [{"question": f"{k}+{k + 1}", "answer": str(2 * k + 1)} for k in range(1, 40)]
    (folder / "problems.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "study.toml").write_text(STUDY.replace("TURNS", str(turns)))
    return folder / "study.toml"


def read(folder: Path, turns: int = 1) -> list[StudyArm]:
    return read_studies([make_study(folder, turns)], {"DATA": str(folder)})


def has_run(folder: Path, turns: int) -> Callable[[], bool]:
    """The time is over when a run has made so many turns."""
    return lambda: read_last_turn(folder) >= turns


def test_a_study_is_a_grid_for_each_block_and_seed_by_seed(tmp_path: Path) -> None:
    arms = read(tmp_path)
    assert [arm.arm.name for arm in arms] == ["grpo, lr=1e-05", "grpo, lr=0.0001"]
    assert [arm.arm.plan.config.lr for arm in arms] == [1e-5, 1e-4]
    names = [name_run(run, tmp_path) for _, run in order_runs(arms, tmp_path)]
    assert names == [f"pair/grpo,-lr={lr}/seed-{seed}" for seed in (3, 4) for lr in ("1e-05", "0.0001")]
    assert arms[0].asked["task"]["path"] == "$DATA/problems.jsonl"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("[[runs]]", "[[run]]"), "unknown key 'run': did you mean 'runs'?"),
        (('recipe = ["grpo"]', 'recipes = ["grpo"]'), "block 1 of runs: unknown key 'recipes': did you mean 'recipe'?"),
        (('recipe = ["grpo"]', 'recipe = ["grpoo"]'), "unknown recipe 'grpoo'"),
        (("seeds = [3, 4]", "seeds = [3, 3]"), "each once"),
        (("[1e-5, 1e-4]", "1e-4"), "every key of grid has a list of values"),
        (("[1e-5, 1e-4]", "[1e-5, 1e-4, 0.00001]"), "block 1 of runs: grid has a value of lr that occurs twice"),
        (('"lr" = [1e-5, 1e-4]', '"task.max_tokens" = [12, 12.0]'), "a value of task.max_tokens that occurs twice"),
        (('"lr" = [1e-5, 1e-4]', '"task.max_tokens" = [12, "12"]'), "a value of task.max_tokens that occurs twice"),
        (('"lr" = [1e-5, 1e-4]', "options = [{ a = 1, b = 2 }, { b = 2, a = 1 }]"), "a value of options that occurs twice"),
        (("turns = 1", "tuns = 1"), "tuns"),
        (('grid = { "lr" = [1e-5, 1e-4] }', "grid = 3"), "grid is a table of settings, not 3"),
        (("[common]", "common = 3\n[other]"), "unknown key 'other'"),
        (('recipe = ["grpo"]', 'recipe = ["grpo"]\nmatch = "flop"'), "unknown match 'flop': did you mean 'flops'?"),
        (('recipe = ["grpo"]', 'recipe = ["grpo"]\nmatch = "flops"'), "match = 'flops' needs a second recipe"),
        (("$DATA", "$FOLDER"), "$FOLDER has no value; give it with --with FOLDER=VALUE"),
    ],
)
def test_mistakes_in_a_study_are_one_line(tmp_path: Path, change: tuple[str, str], said: str) -> None:
    file = make_study(tmp_path)
    text = file.read_text()
    assert change[0] in text
    file.write_text(text.replace(*change))
    with pytest.raises(ConfigError) as error:
        read_studies([file], {"DATA": str(tmp_path)})
    assert said in str(error.value) and "\n" not in str(error.value)


def test_blocks_of_one_name_keep_their_own_seeds(tmp_path: Path) -> None:
    file = make_study(tmp_path)
    file.write_text(file.read_text() + '\n[[runs]]\nname = "pair"\nrecipe = "grpo"\nseeds = [4, 5]\n')
    runs = [run for _, run in order_runs(read_studies([file], {"DATA": str(tmp_path)}), tmp_path)]
    assert [run.seed for run in runs if run.arm == "grpo"] == [4, 5] and len(runs) == 6


def test_studies_are_made_together_each_with_what_its_own_runs_share(tmp_path: Path) -> None:
    known = {"DATA": str(tmp_path)}
    other = tmp_path / "other.toml"
    other.write_text('[common]\nturns = 7\n[[runs]]\nname = "more"\nrecipe = "grpo"\n')
    first = make_study(tmp_path)
    arms = read_studies([first, other], known)
    assert [(arm.block, arm.arm.plan.config.turns) for arm in arms] == [("pair", 1), ("pair", 1), ("more", 7)]
    with pytest.raises(ConfigError, match="occurs twice; give its block another name"):
        read_studies([first, first], known)


def test_settings_of_the_command_override_those_of_every_run(tmp_path: Path) -> None:
    """They are a part of what a run is: a folder of other settings is another study. What a grid varies cannot be set."""
    file, known = make_study(tmp_path), {"DATA": str(tmp_path)}
    arms = read_studies([file], known, [{"batch": {"rollouts": 3}}, {"turns": 1}])
    assert all((arm.arm.plan.config.batch.rollouts, arm.arm.plan.config.turns) == (3, 1) for arm in arms)
    assert all(arm.asked["turns"] == 1 and arm.asked["batch"]["rollouts"] == 3 for arm in arms)
    with pytest.raises(ConfigError, match="block 1 of runs: lr varies there"):
        read_studies([file], known, [{"lr": 1e-3}])


def test_a_task_that_arms_share_is_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[object] = []
    monkeypatch.setattr(study, "make_task", lambda section: made.append(section) or make_task(section))
    grid = '[[runs]]\nname = "one"\nrecipe = ["grpo", "tango"]\ngrid = { lr = [1e-5, 1e-4] }\n'
    (tmp_path / "study.toml").write_text(grid + '[[runs]]\nname = "two"\nrecipe = "grpo"\nset = { task = { ops = 4 } }\n')
    arms = study.read_studies([tmp_path / "study.toml"], {})
    assert len(arms) == 5 and len(made) == 2
    assert [arm.arm.plan.task is arms[0].arm.plan.task for arm in arms] == [True, True, True, True, False]


def test_placeholders_are_filled_in_all_texts() -> None:
    nested = {"a": ["$X/b", 3, {"c": "$X$Y"}], "price": "5$", "d": None}
    assert fill_placeholders(nested, {"X": "x", "Y": "y"}, "") == {"a": ["x/b", 3, {"c": "xy"}], "price": "5$", "d": None}


def test_stopped_at_the_limit_and_gone_on_with_elsewhere_it_ends_in_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run is stopped between two turns, packed, and goes on in another folder with its problems at another path."""
    monkeypatch.setattr("milonga.comparing.sweep.TICK", 0.05)  # turns are short here, and it must not end before it is stopped
    here, there, out, moved = (tmp_path / name for name in ("here", "there", "out", "moved"))
    arms = read(here, LONG)
    name = name_run(order_runs(arms, out)[0][1], out)
    cut = sweep(arms, out, {"DATA": str(here)}, is_over=has_run(out / name, 3), jobs=1, only=[name], quiet=True)
    health = cut.pop("health")
    assert health["no signal"] == [name] and health.keys() <= set(BADGES)
    assert cut == {"runs": 1, "finished": 0, "stopped": [name], "failed": {}}
    turns = len((out / name / "metrics.jsonl").read_text().splitlines()) - 1
    assert 0 < turns < LONG, "stopped too early or too late to show anything"
    runs = [run for _, run in order_runs(arms, out)]
    small = pack(out, runs, tmp_path / "small.tgz", 0.001)
    assert (small.runs, small.checkpoints, small.left) == (0, 0, (name,)), "a checkpoint that does not fit is not packed"
    packed = pack(out, runs, tmp_path / "done.tgz", 100.0)
    assert (packed.runs, packed.checkpoints, packed.left) == (1, 1, ())
    unpack(tmp_path / "done.tgz", moved)
    result = sweep(read(there, LONG), moved, {"DATA": str(there)}, jobs=1, only=[name], quiet=True)
    assert result.pop("health")["no signal"] == [name], "the miniature can do nothing with problems in words"
    assert result == {"runs": 1, "finished": 1, "stopped": [], "failed": {}}
    assert str(there) in (moved / name / "config.toml").read_text()
    whole = sweep(arms, tmp_path / "whole", {"DATA": str(here)}, jobs=1, only=[name], quiet=True)
    assert whole["finished"] == 1
    for file in ("metrics.jsonl", "final.json"):
        assert (moved / name / file).read_bytes() == (tmp_path / "whole" / name / file).read_bytes()


def test_the_table_has_what_is_finished_while_others_still_run(tmp_path: Path) -> None:
    """A machine may go away at any time, without a last word."""
    out, seen = tmp_path / "out", []

    def look() -> bool:
        seen.append((out / "runs.jsonl").read_text().count('"finished": true') if (out / "runs.jsonl").exists() else 0)
        return False

    arms = read(tmp_path)
    names = [name_run(run, out) for _, run in order_runs(arms, out)][:2]
    sweep(arms, out, {"DATA": str(tmp_path)}, is_over=look, jobs=1, only=names, quiet=True)
    assert set(seen) == {0, 1}


def test_a_file_that_was_not_packed_says_so(tmp_path: Path) -> None:
    (tmp_path / "broken.tgz").write_bytes(b"no archive")
    with pytest.raises(UserError, match="cannot be unpacked"):
        unpack(tmp_path / "broken.tgz", tmp_path / "out")


def test_another_study_does_not_go_on_in_the_folder_of_the_first(tmp_path: Path) -> None:
    known = {"DATA": str(tmp_path)}
    assert len(sweep(read(tmp_path), tmp_path / "out", known, is_over=lambda: True, quiet=True)["stopped"]) == 4
    with pytest.raises(RunFolderError, match="was made with other settings"):
        sweep(read(tmp_path, turns=3), tmp_path / "out", known, is_over=lambda: True, quiet=True)


def test_a_run_that_runs_out_of_its_share_gets_twice_as_much(tmp_path: Path) -> None:
    one, two, three = (Run("arm", seed, tmp_path / str(seed)) for seed in range(3))
    (arm, *_) = read(tmp_path / "study")
    runs = [(arm, run) for run in (one, two, three)]
    work = Sweep(runs, dict.fromkeys((one, two, three), 0.4), [two, three], tmp_path)
    assert work.take_next([one]) == two and work.take_next([one, two]) is None
    said = work.end(one, {"error": "memory ran out", "out_of_memory": True})
    assert said is not None and "80%" in said and work.waiting == [one, three] and not work.failed
    assert work.take_next([two]) == three, "the large one waits, a small one may go first"
    assert work.take_next([]) == one
    work.end(one, {"error": "memory ran out", "out_of_memory": True})
    work.end(one, {"error": "memory ran out", "out_of_memory": True})
    assert work.failed == {one: "memory ran out"}, "with the whole memory there is nothing more to give"


MATCHED = """
[common]
turns = 2
device = "cpu"
threads = 1
task = { name = "chain", ops = 2 }
batch = { problems = 2, rollouts = 2 }
eval = { problems = 2, samples = 1, bench = 0 }
keep = { checkpoint_every = 100, rollouts_every = 0 }

[[runs]]
name = "pair"
recipe = ["tango", "grpo"]
seeds = [3]
match = "flops"
set = { options = { n_generator = 1, warmup = 1 } }
"""


def test_a_matched_run_gets_what_its_reference_used_and_waits_for_it(tmp_path: Path) -> None:
    """Options that only Tango has may stand in what both share."""
    (tmp_path / "study.toml").write_text(MATCHED)
    arms, out = read_studies([tmp_path / "study.toml"], {}), tmp_path / "out"
    tango, grpo = (run for _, run in order_runs(arms, out))
    assert arms[0].reference is None and arms[1].reference_run(3, out) == tango
    assert arms[1].identity["match"] == {"flops": "tango"} and arms[1].identity["options"] == {}
    work = Sweep([(arms[0], tango), (arms[1], grpo)], {tango: 0.5, grpo: 0.5}, [grpo, tango], out)
    assert work.take_next([]) == tango and work.take_next([tango]) is None, "its budget is not known yet"
    alone = sweep(arms, out, {}, only=["pair/grpo"], jobs=1, quiet=True)
    assert list(alone["failed"].values()) == ["its budget is that of pair/tango/seed-3, which is not finished"]
    done = sweep(arms, out, {}, jobs=2, quiet=True)
    assert (done["finished"], done["failed"]) == (2, {})
    used, (*_, before, last) = tango.read_compute("flops"), JsonLines(grpo.folder / "metrics.jsonl").rows()
    assert before["compute/flops"] < used <= last["compute/flops"], "it ends with the turn that uses its budget up"
    rows = [json.loads(line) for line in (out / "runs.jsonl").read_text().splitlines()]
    assert [row["settings"].get("match") for row in rows] == [None, {"flops": "tango"}]


def test_a_run_whose_budget_cannot_be_read_fails_alone_and_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "study.toml").write_text(MATCHED.replace("seeds = [3]", "seeds = [3, 4]"))
    arms, out = read_studies([tmp_path / "study.toml"], {}), tmp_path / "out"
    damaged, _ = (arm.run(3, out) for arm in arms)
    damaged.folder.mkdir(parents=True)
    (damaged.folder / "report.json").write_text("{")
    done = sweep(arms, out, {}, only=["pair/tango/seed-3", "pair/grpo/seed-3", "pair/tango/seed-4"], jobs=1)
    assert list(done["failed"]) == ["pair/grpo/seed-3"] and str(damaged.folder) in done["failed"]["pair/grpo/seed-3"]
    assert arms[0].run(4, out).finished, "the others are made"
    alone = sweep(arms, tmp_path / "new", {}, only=["pair/grpo"], jobs=1)
    assert list(alone["failed"]) == ["pair/grpo/seed-3", "pair/grpo/seed-4"]
    said = capsys.readouterr().err
    assert said.count("grpo seed 3: failed: ") == 2 and said.count("grpo seed 4: failed: its budget is that of ") == 1


class TwoWorkers:
    """A pool whose runs go on until they are interrupted, and then end one after the other."""

    busy = property(lambda self: self.running)
    has_room = property(lambda self: len(self.running) < 2)

    def __init__(self, stop: Callable[[], None]) -> None:
        self.running: list[Run] = []
        self.stop, self.interrupted = stop, False

    def __enter__(self) -> TwoWorkers:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def begin(self, run: Run, config: object, gpu_share: float | None) -> None:
        self.running.append(run)

    def interrupt(self, grace: float) -> None:
        self.interrupted = True

    def wait(self, seconds: float) -> list[tuple[Run, dict[str, object]]]:
        if self.interrupted:
            return [(self.running.pop(0), {"error": None, "interrupted": True})]
        self.stop()
        return []


@pytest.mark.parametrize("by", ["time", "signal"])
def test_runs_of_a_reference_that_was_stopped_wait_for_the_next_time(
    by: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One reference has stopped while the other still makes its turn: neither has failed, nor has what is matched with them."""
    (tmp_path / "study.toml").write_text(MATCHED.replace("seeds = [3]", "seeds = [3, 4]"))
    arms, out, over = read_studies([tmp_path / "study.toml"], {}), tmp_path / "out", list[bool]()
    stop = (lambda: over.append(True)) if by == "time" else (lambda: raise_signal(SIGINT))
    pool = TwoWorkers(stop)
    monkeypatch.setattr("milonga.comparing.sweep.Pool", lambda jobs, on_cpu: pool)
    if by == "time":
        done = sweep(arms, out, {}, is_over=lambda: bool(over), jobs=2)
        assert done["failed"] == {}
        assert sorted(done["stopped"]) == [f"pair/{recipe}/seed-{seed}" for recipe in ("grpo", "tango") for seed in (3, 4)]
    else:
        with pytest.raises(KeyboardInterrupt):
            sweep(arms, out, {}, jobs=2)
    said = capsys.readouterr().err
    assert pool.interrupted and said.count("stopped after turn") == 2 and "failed" not in said


GRID = 'grid = { "options.n_generator" = [1, 3], lr = [1e-5, 1e-4] }'


@pytest.mark.parametrize(
    ("recipes", "match", "names"),
    [
        (["tango", "grpo"], "turns", 2),  # one for each rate
        (["tango", "grpo"], "flops", 4),  # the budgets differ
        (["grpo", "tango"], "flops", 2),
        (["grpo", "sft", "tango"], "tokens", 2),
    ],
)
def test_what_a_recipe_lacks_makes_no_further_runs_of_it(tmp_path: Path, recipes: list[str], match: str, names: int) -> None:
    """No two runs of a study are the same run under two names; all that differ are there."""
    text = f'[[runs]]\nname = "pair"\nrecipe = {json.dumps(recipes)}\nseeds = [3]\nmatch = "{match}"\n{GRID}\n'
    (tmp_path / "study.toml").write_text(text)
    arms = read_studies([tmp_path / "study.toml"], {})
    mine = [arm for arm in arms if arm.arm.recipe == "grpo"]
    assert len(mine) == names and all(("n_generator" in arm.arm.name) == (names == 4) for arm in mine)
    made = [json.dumps([arm.identity, arm.reference.name if arm.reference else None], sort_keys=True) for arm in arms]
    assert len(set(made)) == len(made) == len({arm.arm.name for arm in arms})
    tango = [arm for arm in arms if arm.arm.recipe == "tango"]
    assert len(tango) == 4 and all("n_generator" in arm.arm.name for arm in tango)
    for arm in arms:
        if arm.reference is not None:
            assert (arm.reference.recipe, arm.reference.plan.config.lr) == (recipes[0], arm.arm.plan.config.lr)


@pytest.mark.parametrize(
    ("grid", "match", "names"),
    [
        ("options = [{ n_generator = 1 }, { n_generator = 3 }]", "turns", ["grpo"]),
        (
            "options = [{ n_generator = 1 }, { n_generator = 3 }]",
            "flops",
            [f"grpo, options={{'n_generator': {n}}}" for n in (1, 3)],
        ),
        ('task = ["chain", "last_letter"]', "turns", ["grpo, task=chain", "grpo, task=last_letter"]),
        ("policies = [{ verifier.lr = 1e-5 }, { verifier.lr = 1e-4 }]", "turns", ["grpo"]),
        ('"policies.verifier" = [{ lr = 1e-5 }, { lr = 1e-4 }]', "turns", ["grpo"]),
        (
            "policies = [{ verifier.lr = 1e-5, generator.lr = 1e-5 }, { verifier.lr = 1e-4, generator.lr = 1e-5 }]",
            "turns",
            ["grpo, policies={'generator': {'lr': 1e-05}}"],
        ),
    ],
)
def test_of_a_table_in_a_grid_a_recipe_is_told_only_what_it_has(
    tmp_path: Path, grid: str, match: str, names: list[str]
) -> None:
    """Two tables that differ in what a recipe lacks are one to it; its budgets may differ."""
    text = f'[[runs]]\nname = "pair"\nrecipe = ["tango", "grpo"]\nseeds = [3]\nmatch = "{match}"\ngrid = {{ {grid} }}\n'
    (tmp_path / "study.toml").write_text(text)
    arms = read_studies([tmp_path / "study.toml"], {})
    assert [arm.arm.name for arm in arms if arm.arm.recipe == "grpo"] == names
    assert len({arm.arm.name for arm in arms if arm.arm.recipe == "tango"}) == 2
    made = [json.dumps([arm.identity, arm.reference.name if arm.reference else None], sort_keys=True) for arm in arms]
    assert len(set(made)) == len(made)


def test_a_fault_leaves_its_traceback_in_the_folder_of_its_run(tmp_path: Path) -> None:
    run = Run("a", 0, tmp_path / "a" / "seed-0")
    work = Sweep([], {run: 1.0}, [], tmp_path)
    said = work.end(run, {"error": "KeyError: 'x'", "traceback": "Traceback, line by line"})
    assert (said, work.failed[run]) == (f"KeyError: 'x' (see {run.folder / 'error.txt'})", "KeyError: 'x'")
    assert (run.folder / "error.txt").read_text() == "Traceback, line by line"
    assert work.end(run, {"error": None}) is None and not (run.folder / "error.txt").exists(), "mended, and made again"


def test_the_table_says_what_is_wrong_with_a_run_and_the_end_counts_it(tmp_path: Path) -> None:
    arms = read(tmp_path)
    bad, good = arms[0].run(3, tmp_path), arms[1].run(3, tmp_path)
    for run, signal in ((bad, 0.0), (good, 1.0)):
        run.folder.mkdir(parents=True)
        rows = [{"turn": turn, "lead_turn": turn, "learner": "generator", "signal": signal} for turn in range(1, 7)]
        (run.folder / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    write_table(tmp_path, arms)
    name = name_run(bad, tmp_path)
    assert group_by_badge(tmp_path, [name, name_run(good, tmp_path)]) == {"no signal": [name]}
    assert group_by_badge(tmp_path, []) == {}
    # A slow grader hangs on the machine: the end tells it, and the table is the same on every machine.
    (good.folder / "timing.jsonl").write_text(json.dumps({"turn": 6, "turn_s": 4.0, "idle_s": 2.0}) + "\n")
    assert group_by_badge(tmp_path, [name_run(good, tmp_path)]) == {}, "its settings cannot be read yet"
    write_signed_config(good.folder, arms[1].arm.config(3))
    write_table(tmp_path, arms)
    found = group_by_badge(tmp_path, [name, name_run(good, tmp_path)])
    assert found == {"no signal": [name], "slow grader": [name_run(good, tmp_path)]}
    assert [row["health"] for row in JsonLines(tmp_path / "runs.jsonl").rows()] == [["no signal"], []]


def test_as_many_runs_as_memory_bears(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("milonga.comparing.sweep.count_cores", lambda: 16)
    arms = read(tmp_path)
    chosen = [(arm, arm.run(0, tmp_path)) for arm in arms]
    assert estimate_memory(arms[0].arm.plan) == ROOM["embedded"]
    # 0.92 of 140 GiB is 64 times 2 GiB, of 5 GiB twice, of 1 GiB less than once.
    assert count_fitting(chosen, 140 * GIB) == 16 and count_fitting(chosen, 5 * GIB) == 2 and count_fitting(chosen, GIB) == 1


def make_shape_folder(folder: Path, width: int, layers: int, vocabulary: int) -> str:
    """A folder with the config of a Llama, without its weights."""
    heads = width // 32
    sizes = {"hidden_size": width, "num_hidden_layers": layers, "vocab_size": vocabulary, "num_attention_heads": heads}
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(sizes | {"intermediate_size": 8 * width // 3, "tie_word_embeddings": True}))
    return str(folder)


def test_a_small_model_in_a_folder_takes_the_room_of_an_embedded_one_and_a_real_one_all_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("milonga.comparing.sweep.count_cores", lambda: 16)
    (arm, *_) = read(tmp_path)

    def estimate(model: str) -> float:
        sections = {name: one.model_copy(update={"model": model}) for name, one in arm.arm.plan.policies.items()}
        return estimate_memory(replace(arm.arm.plan, policies=sections))

    embedded = Path(package.__file__).parent / "embedded" / "base"
    assert find_shape(str(embedded)).activation_bytes + LOGIT * 259 == EMBEDDED_TOKEN
    small = estimate(make_shape_folder(tmp_path / "small", 192, 4, 259))
    assert ROOM["embedded"] < small < 1.1 * ROOM["embedded"], "its 1.8M parameters take 40 MB"
    wider = estimate(make_shape_folder(tmp_path / "wide", 576, 7, 259))
    assert 3 * small < wider < ROOM["other"]
    for model in (make_shape_folder(tmp_path / "real", 576, 30, 49152), "7b", "some/unknown-model"):
        assert estimate(model) >= ROOM["other"]
    (tmp_path / "odd").mkdir()
    (tmp_path / "odd" / "config.json").write_text("{}")
    assert estimate(str(tmp_path / "odd")) == ROOM["other"], "what cannot be told is taken to be large"


def test_the_command_lists_runs_writes_a_table_and_packs(tmp_path: Path, milonga: Command) -> None:
    file, out = make_study(tmp_path), tmp_path / "out"
    call = ["sweep", str(file), "--out", str(out), "--with", f"DATA={tmp_path}"]
    listed = milonga(*call, "--list", "--json").json
    assert listed["runs"][0] == "pair/grpo,-lr=1e-05/seed-3" and len(listed["runs"]) == 4
    assert milonga(*call, "--list", "--only", listed["runs"][0], "--json").json["runs"] == listed["runs"][:1]
    done = milonga(*call, "--only", listed["runs"][0], "--pack", str(tmp_path / "done.tgz"), "--json").json
    assert done["finished"] == 1 and done["packed"]["runs"] == 1
    (row,) = [json.loads(line) for line in (out / "runs.jsonl").read_text().splitlines()]
    assert row["finished"] and row["seed"] == 3 and row["settings"]["lr"] == 1e-5 and row["turn"] == 1
    assert row["last"]["turn"] == 1 and "eval/generator/accuracy" in row["last"]
    wrong = milonga("sweep", str(file), "--out", str(out), "--with", "data=here")
    assert wrong.code == 2 and "--with takes NAME=VALUE" in wrong.err
