"""Suites on real, tiny runs: what each gives, what it refuses, and that its numbers agree with each other."""

from __future__ import annotations

import inspect
import itertools
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from cases import TINY
from helpers import Command
from milonga.api import evaluate, make_engine, run
from milonga.cli.commands.measure import eval_
from milonga.context import RunContext
from milonga.errors import ConfigError, DataError, Notice, RunFolderError, UserError
from milonga.evals import Evaluator, read_processbench
from milonga.evals.metrics import harmonic_mean
from milonga.evals.suites import SUITES, Subject, Transfer
from milonga.evals.suites.base import count_held_out
from milonga.evals.suites.critic import Critic
from milonga.evals.suites.matrix import choose_checkpoints
from milonga.evals.suites.processbench import (
    Mode,
    average_rows,
    count_overlap,
    list_subset_files,
    make_miniature,
    measure_subset,
)
from milonga.evals.suites.transfer import parse_task_section
from milonga.loop import make_evaluator
from milonga.measuring import load_subject, make_suite, open_generator, open_subject
from milonga.report import build_report
from milonga.report.markdown import to_markdown
from milonga.resolve import resolve
from milonga.roles import StepSolver
from milonga.runfolder.files import JsonLines
from milonga.runfolder.matrix import read_matrix
from milonga.tasks import make_task
from milonga.types import Parsed, Problem, Rollout, Rollouts, Solution
from short import SHORT

RIGHT = {"problem": "7+5*3%100", "steps": ["7+5=12", "12*3=36"], "label": -1, "final_answer_correct": True}
WRONG = RIGHT | {"steps": ["7+5=13", "13*3=39"], "label": 0, "final_answer_correct": False}
LATE = RIGHT | {"steps": ["7+5=12", "12*3=38"], "label": 1, "final_answer_correct": False}
HIDDEN = RIGHT | {"steps": ["7+5=13", "13*3=36"], "label": 0}
ITEMS = [RIGHT, WRONG, LATE, HIDDEN, RIGHT | {"problem": "2+2*2%100", "steps": ["2+2=4", "4*2=8"]}]
SMALL: dict[str, dict[str, Any]] = {
    "best_of_n": {"problems": 4, "samples": 3},
    "pass_at_k": {"problems": 4, "samples": 3},
    "transfer": {"problems": 4, "samples": 2},
    "calibration": {"problems": 4, "samples": 2, "checks": 3},
    "matrix": {"problems": 4, "samples": 4, "checkpoints": 2},
    "processbench": {"checks": 3},
}


def write(path: Path, items: list[dict[str, Any]]) -> Path:
    path.write_text(json.dumps(items))
    return path


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("bench") / "small.json", ITEMS)


@pytest.fixture(scope="module")
def reports(trained: Path, bench: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """Every suite on the trained pair, with its chart."""
    out = tmp_path_factory.mktemp("charts")
    files = {"processbench": {"file": [bench]}}
    run = shutil.copytree(trained, tmp_path_factory.mktemp("runs") / "tango")  # the matrix leaves a file there
    found = {
        name: evaluate(run if name == "matrix" else trained, name, plot=out / f"{name}.svg", **options, **files.get(name, {}))
        for name, options in SMALL.items()
    }
    return found | {"charts": {name: out / f"{name}.svg" for name in SMALL}}


def rows(report: dict[str, Any], **wanted: Any) -> list[dict[str, Any]]:
    return [row for row in report["rows"] if all(row[key] == value for key, value in wanted.items())]


# -- All of them -----------------------------------------------------------------------------------


def test_every_suite_is_tried_here_and_its_options_are_those_of_the_command() -> None:
    assert set(SUITES) == set(SMALL)
    options = {option for name in SUITES for option in SUITES.get(name).Options.model_fields}
    assert options <= set(inspect.signature(eval_).parameters)
    assert all(SUITES.get(name).__doc__ for name in SUITES)


@pytest.mark.parametrize("name", SMALL)
def test_a_report_says_what_was_measured_and_its_columns_are_there(name: str, reports: dict[str, dict[str, Any]]) -> None:
    report = reports[name]
    assert (report["recipe"], report["turn"], report["suite"]) == ("tango", 2, name)
    assert report["rows"] and set(SUITES.get(name).columns) <= set(report["rows"][0])
    json.dumps(report, allow_nan=False)


@pytest.mark.parametrize("name", SMALL)
def test_a_chart_is_a_picture_of_its_own(name: str, reports: dict[str, dict[str, Any]]) -> None:
    root = ElementTree.parse(reports["charts"][name]).getroot()
    assert root.tag.endswith("svg") and "style" in {element.tag.rpartition("}")[2] for element in root}


def test_the_same_weights_and_options_give_the_same_numbers(trained: Path, reports: dict[str, dict[str, Any]]) -> None:
    assert evaluate(trained, "best_of_n", **SMALL["best_of_n"]) == reports["best_of_n"]


@pytest.mark.parametrize(
    ("suite", "options", "says"),
    [
        ("best_of", {}, "did you mean 'best_of_n'?"),
        ("best_of_n", {"limit": 3}, "option 'limit' does not apply to suite 'best_of_n': it takes split, problems"),
        ("processbench", {"file": ["x.json"], "split": "dev"}, "option 'split' does not apply to suite 'processbench'"),
        ("processbench", {"file": ["x.json"], "problems": 3}, "option 'problems' does not apply"),
        ("processbench", {"file": ["x.json"], "limit": 0}, "'processbench.limit'"),
        ("pass_at_k", {"checks": 2}, "option 'checks' does not apply"),
        (None, {"limit": 3}, "option 'limit' does not apply to an evaluation without a suite: it takes split, problems"),
        (None, {"plot": "x.svg"}, "option 'plot' does not apply to an evaluation without a suite"),
        (None, {"split": "bogus"}, "'eval.split'"),
        *((name, {"split": "bogus"}, f"'{name}.split'") for name in SMALL if name != "processbench"),
        ("best_of_n", {"split": "train"}, "'best_of_n.split'"),
        ("best_of_n", {"samples": 0}, "'best_of_n.samples'"),
        ("best_of_n", {"plot": "x.png"}, "ends in .svg"),
        ("best_of_n", {"plot": "none/x.svg"}, "no folder 'none'"),
        ("transfer", {"task": ["chian"]}, "did you mean 'chain'?"),
        ("transfer", {"task": ["chain,opz=3"]}, "unknown key 'task.opz'"),
        ("transfer", {"generator": ["no/such/model"]}, "no/such/model"),
    ],
)
def test_what_does_not_apply_is_refused(trained: Path, suite: str | None, options: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError) as caught:
        evaluate(trained, suite, **({"problems": 1} if suite == "transfer" else {}) | options)
    assert says in str(caught.value) and "\n" not in str(caught.value)


def test_only_processbench_takes_a_model_without_a_run(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="does not exist"):
        evaluate(tmp_path / "none", "best_of_n")


def test_who_is_not_there_cannot_be_measured() -> None:
    plan = resolve([TINY, {"recipe": "grpo"}])
    with (
        pytest.raises(ConfigError, match="'grpo' has no verifier to measure; its agents are generator"),
        load_subject(plan, None, ["judge"]),
    ):
        pass


def test_only_the_weights_that_are_needed_are_loaded(trained: Path) -> None:
    for needs, policies in ((["judge"], ["verifier"]), (["solver"], ["generator"])):
        with open_subject(trained, False, needs) as (_, subject):
            assert list(subject.run_context.engine.policies) == policies  # type: ignore[attr-defined]


def test_more_problems_than_there_are_are_not_measured_twice(tmp_path: Path) -> None:
    lines = [{"question": f"what is {n}?", "answer": str(n)} for n in range(8)]
    (tmp_path / "train.jsonl").write_text("\n".join(map(json.dumps, lines[:5])))
    (tmp_path / "test.jsonl").write_text("\n".join(map(json.dumps, lines[5:])))
    task = make_task(
        {"name": "jsonl", "path": str(tmp_path / "train.jsonl"), "test_path": str(tmp_path / "test.jsonl"), "dev": 0}
    )
    assert (count_held_out(task, "test", 2), count_held_out(task, "test", 64)) == (2, 3)
    asked = [Rollout.from_text(str(k), "g", Problem(str(k), f"What is {k}?", ""), "", Parsed(None, 0.0)) for k in (0, 1, 6)]
    size = task.size("train")
    assert size is not None and count_overlap(task, Rollouts(asked)) == sum(
        f"what is {k}?" in {task.problem("train", i).text for i in range(size)} for k in (0, 1, 6)
    )
    assert count_overlap(make_task({"name": "chain"}), Rollouts(asked)) is None


def test_which_agents_are_measured_is_not_a_matter_of_their_names() -> None:
    plan = resolve([TINY, {"recipe": "tango"}])
    config, names = plan.config, {"generator": "writer", "verifier": "reader"}
    roles, agents = ({names[key]: value for key, value in old.items()} for old in (plan.roles, plan.agents))
    engine = make_engine(plan)
    renamed = RunContext(engine, plan.task, roles, agents, config.sampling, 0, 4)  # type: ignore[arg-type]
    plain = make_evaluator(plan, RunContext(engine, plan.task, plan.roles, plan.agents, config.sampling, 0, 4))
    found = Evaluator(renamed, config.eval, plain.bench, plan.recipe.measure, "writer", "reader")()
    assert set(found) == set(plain()) and found["eval/generator/accuracy"] is not None


# -- Choosing among N, and pass@k ------------------------------------------------------------------


def test_nothing_beats_the_oracle_and_one_leaves_no_choice(reports: dict[str, dict[str, Any]]) -> None:
    picks = ("verifier", "vote", "weighted_vote", "oracle")
    found = reports["best_of_n"]["rows"]
    assert [row["n"] for row in found] == [1, 2, 3]
    assert len({round(found[0][pick], 12) for pick in picks}) == 1
    for row in found:
        assert all(row[pick] <= row["oracle"] + 1e-12 for pick in picks)
        assert row["verifier_minus_vote"] == pytest.approx(row["verifier"] - row["vote"])
        assert row["oracle_low"] <= row["oracle"] <= row["oracle_high"]


def test_the_oracle_of_one_suite_is_the_pass_of_the_other(reports: dict[str, dict[str, Any]]) -> None:
    now = rows(reports["pass_at_k"], of="now")
    assert [row["pass"] for row in now] == pytest.approx([row["oracle"] for row in reports["best_of_n"]["rows"]])


def test_pass_at_k_rises_with_k_and_what_is_sound_is_right(reports: dict[str, dict[str, Any]]) -> None:
    for of in ("now", "start"):
        found = rows(reports["pass_at_k"], of=of)
        assert [row["k"] for row in found] == [1, 2, 3]
        assert all(a["pass"] <= b["pass"] for a, b in itertools.pairwise(found))
        assert all(row["sound"] <= row["pass"] for row in found)
    assert reports["pass_at_k"]["left_out_now"] == 0


# -- Transfer --------------------------------------------------------------------------------------


def test_the_verifier_is_taken_elsewhere(trained: Path, reports: dict[str, dict[str, Any]]) -> None:
    found = [(row["task"], row["by"]) for row in reports["transfer"]["rows"]]
    own = [("own", "own generator"), ("own", "its start"), ("own", "the task")]
    assert found == [*own, ("harder", "own generator"), ("harder", "the task")]
    more = evaluate(trained, "transfer", **SMALL["transfer"], generator=["embedded"], task=["last_letter", "chain,ops=1"])
    found = [(row["task"], row["by"]) for row in more["rows"]]
    assert found[3] == ("own", "embedded") and found[6:] == [
        *(("last_letter", by) for by in ("own generator", "the task")),
        *(("chain,ops=1", by) for by in ("own generator", "the task")),
    ]
    # The embedded model is what the generator started from.
    start, embedded = more["rows"][1], more["rows"][3]
    assert start | {"by": "embedded"} == embedded
    assert all(row["trivial/error_modal"] >= row["trivial/no_knowledge"] for row in more["rows"])


def test_a_generator_of_another_dialect_is_refused(trained: Path) -> None:
    @contextmanager
    def tagged(name: str) -> Iterator[Subject]:
        with open_generator(name) as other:
            yield replace(other, run_context=replace(other.run_context, roles={other.solver: StepSolver("tagged")}))

    with open_subject(trained, False, Transfer.needs) as (_, subject):
        suite = Transfer(Transfer.Options(problems=1, samples=1))
        with pytest.raises(ConfigError, match="'embedded' writes in the tagged dialect"):
            suite.sample_other_generator("embedded", replace(subject, another=tagged), subject.run_context.task)


def test_harder_problems_have_more_steps() -> None:
    chain = make_task({"name": "chain", "ops": 3, "min_ops": 1}).make_harder()
    assert chain is not None and {chain.step_count(chain.problem("test", i)) for i in range(5)} == {6}
    letters = make_task({"name": "last_letter"}).make_harder()
    assert letters is not None and all(12 < letters.step_count(letters.problem("test", i)) <= 24 for i in range(5))
    assert make_task({"name": "chain", "ops": 64}).make_harder() is None
    assert parse_task_section("chain,ops=12,mod=20") == {"name": "chain", "ops": 12, "mod": 20}
    assert parse_task_section("x,kinds=[1, 2],n=3") == {"name": "x", "kinds": [1, 2], "n": 3}
    with pytest.raises(ConfigError, match="a setting is key=value, not 'ops'"):
        parse_task_section("chain,ops")


# -- Calibration -----------------------------------------------------------------------------------


def test_the_diagram_holds_every_judgement_and_gives_the_error(reports: dict[str, dict[str, Any]]) -> None:
    report = reports["calibration"]
    assert report["checks"] == 3
    for of in ("solution", "step"):
        found, count = rows(report, of=of), report[f"{of}/judged"]
        assert sum(row["count"] for row in found) == count > 0
        gap = sum(row["count"] * abs(row["confidence"] - row["share"]) for row in found) / count
        assert gap == pytest.approx(report[f"{of}/calibration_error"])
        assert report[f"{of}/brier_of_endless_checks"] <= report[f"{of}/brier"]


# -- ProcessBench ----------------------------------------------------------------------------------


def test_processbench_by_a_verifier_that_writes(reports: dict[str, dict[str, Any]]) -> None:
    report = reports["processbench"]
    assert (report["items"], report["style"], report["checks"]) == (5, "verifier", 3)
    assert [row["decoding"] for row in report["rows"]] == ["greedy", "sampled", "vote of 3"]
    for row in report["rows"]:
        assert (row["subset"], row["items"], row["errors"], row["hidden_errors"], row["too_long"]) == ("small", 5, 3, 1, 0)
        # Labels 0, 1, 0: the modal index is right of two in three; the last step of one in three.
        assert row["trivial/error_modal"] == pytest.approx(harmonic_mean(2 / 3, 1))
        assert (
            row["trivial/answer_modal"] == pytest.approx(harmonic_mean(1 / 3, 1)) == pytest.approx(row["trivial/answer_last"])
        )
        assert 0 <= row["f1"] <= 1 and row["unparsed_rate"] < 1
    assert report["seen_in_training"] == {"small": None}


def test_subsets_are_averaged_and_what_is_too_long_counts_by_items(trained: Path, tmp_path: Path) -> None:
    long = RIGHT | {"problem": "7+5*3%100" + " " * 600}
    write(tmp_path / "a.json", [long, WRONG])
    write(tmp_path / "b.json", [RIGHT, WRONG, LATE])
    report = evaluate(trained, "processbench", file=[tmp_path], checks=2)
    assert [row["too_long"] for row in rows(report, subset="a")] == [1, 1, 1]
    assert all(row["right_accuracy"] == 0 == row["f1"] for row in rows(report, subset="a"))
    for mode in ("greedy", "sampled", "vote of 2"):
        (a,), (b,) = (rows(report, subset=name, decoding=mode) for name in "ab")
        (whole,) = rows(report, subset="average", decoding=mode)
        for key in ("f1", "trivial/error_modal", "trivial/no_knowledge"):
            assert whole[key] == pytest.approx((a[key] + b[key]) / 2)
    assert evaluate(trained, "processbench", file=[tmp_path / "b.json"], limit=2, checks=1)["items"] == 2
    assert evaluate(trained, "processbench", file=str(tmp_path / "b.json"), checks=1)["items"] == 3, "one need be no list"


def test_a_model_without_a_run_is_asked_as_it_is(bench: Path) -> None:
    report = evaluate("embedded", "processbench", file=[bench], checks=1)
    assert report["model"] == "embedded" and report["style"] == "verifier", "its dialect has no words for a critic"
    asked = evaluate("embedded", "processbench", file=[bench], checks=1, style="paragraphs", limit=1, tokens=4)
    assert (asked["style"], asked["tokens"]) == ("critic", 4)


def test_without_a_file_chain_arithmetic_is_the_miniature(trained: Path) -> None:
    report = evaluate(trained, "processbench", limit=10, checks=1)
    names = ["chain-3", "chain-5", "chain-8", "chain-12"]
    assert [row["subset"] for row in rows(report, decoding="greedy")] == [*names, "average"]
    assert all((row["items"], row["errors"], row["hidden_errors"]) == (10, 5, 1) for row in rows(report, subset="chain-5"))
    with pytest.raises(ConfigError, match="'file': ProcessBench files; only for task 'chain' is there a miniature"):
        make_miniature(make_task({"name": "last_letter"}), StepSolver("terse"), 4)


@pytest.mark.parametrize("recipe", ["genrm", "gar", "aprm", "deepseek_math_v2"])
@pytest.mark.parametrize("suite", ["best_of_n", "processbench"])
def test_every_kind_of_judge_can_be_measured(recipe: str, suite: str, bench: Path) -> None:
    asked_for = make_suite(suite, {"file": [bench]} if suite == "processbench" else {"problems": 2, "samples": 2})
    with load_subject(resolve([TINY, {"recipe": recipe}]), None, asked_for.needs) as subject:
        found = asked_for.measure(subject)
    assert found.rows and asked_for.chart(found.rows).startswith("<svg")


@pytest.mark.parametrize("recipe", ["lets_verify", "prime"])
def test_thresholds_of_verifiers_that_give_numbers(recipe: str, tmp_path: Path) -> None:
    run(recipe, turns=1, seed=0, out=tmp_path / "run", settings=TINY, quiet=True)
    write(tmp_path / "own.json", ITEMS)
    write(tmp_path / "other.json", [RIGHT, WRONG, LATE])
    report = evaluate(tmp_path / "run", "processbench", file=[tmp_path / "own.json", tmp_path / "other.json"])
    assert report["checks"] == 1 and report["tokens"] is None
    own, other = (rows(report, subset=name) for name in ("own", "other"))
    half, tuned, dev = (row["decoding"] for row in own)
    assert half == "threshold 0.5" and tuned.endswith("from own") and dev.endswith("from the task's dev set")
    assert own[1]["f1"] == max(row["f1"] for row in own), "no other threshold is better where it was tuned"
    assert [row["tuned_here"] for row in (*own, *other)] == [False, True, False, False, False, False]
    for name, value in (("style", "paragraphs"), ("checks", 2), ("tokens", 9)):
        with pytest.raises(ConfigError, match=f"'{name}' does not apply: this verifier writes nothing"):
            evaluate(tmp_path / "run", "processbench", file=[tmp_path / "own.json"], **{name: value})
    with pytest.raises(ConfigError, match="'checks' does not apply"):
        evaluate(tmp_path / "run", "calibration", checks=2)


def test_modes_by_hand(tmp_path: Path) -> None:
    """Votes are a prediction of their own; an error behind a right answer is what `hidden_f1` is about."""
    items = Rollouts(read_processbench(write(tmp_path / "x.json", ITEMS), StepSolver("terse")))
    said: list[list[int | None]] = [[-1, -1, 0], [0, 0, None], [0, 1, -1], [None, None, None], [-1, 1, 1]]
    sampled = Mode("sampled", {item.id: row for item, row in zip(items, said, strict=True)}, Rollouts([]))
    row = measure_subset("x", items, sampled)
    assert row["error_accuracy"] == pytest.approx(3 / 9) and row["right_accuracy"] == pytest.approx(3 / 6)
    assert row["hidden_f1"] == 0.0 and row["unparsed_rate"] == pytest.approx(4 / 15)
    # Of the errors five predictions say one is there, one says none, three say nothing.
    assert row["detection_f1"] == pytest.approx(harmonic_mean(4 / 9, 3 / 6)) and row["index_shift"] == pytest.approx(-1 / 4)
    voted = Mode("vote", {item.id: [p] for item, p in zip(items, [-1, 0, 0, None, 1], strict=True)}, Rollouts([]))
    assert measure_subset("x", items, voted)["f1"] == pytest.approx(harmonic_mean(1 / 3, 1 / 2))
    assert average_rows([row], 1) == []


def test_files_that_cannot_be_what_they_say_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="3 items with an error and 2 without, the released 'gsm8k' 207 and 193"):
        read_processbench(write(tmp_path / "gsm8k.json", ITEMS), None)
    with pytest.raises(DataError, match="two items have the same id"):
        read_processbench(write(tmp_path / "x.json", [RIGHT | {"id": "a"}, WRONG | {"id": "a"}]), None)
    with pytest.raises(DataError, match="two ProcessBench files are called 'x'"):
        list_subset_files([tmp_path / "x.json", tmp_path])
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="holds no ProcessBench file"):
        list_subset_files([tmp_path / "empty"])


# -- The critic ------------------------------------------------------------------------------------


def paragraphs(*steps: str) -> Rollout:
    return Rollout.from_text("s", "generator", Problem("p", "what?", ""), "", Parsed(Solution(steps, (), None), 1.0))


def test_a_critic_sees_numbered_paragraphs_as_they_are(tmp_path: Path) -> None:
    path = write(tmp_path / "x.json", [RIGHT | {"steps": ["# a\n\nb", "<step>c</step>"]}])
    (item,) = read_processbench(path, None)
    prompt = "".join(part.text for part in Critic("tagged").prompt(item.problem, item))
    assert "<paragraph_0>\n# a\n\nb\n</paragraph_0>\n\n<paragraph_1>\n<step>c</step>\n</paragraph_1>" in prompt
    assert "Answer" not in prompt
    foreign = [part.text for part in Critic("tagged").prompt(item.problem, item) if part.foreign]
    assert foreign == [RIGHT["problem"], "# a\n\nb", "<step>c</step>"]


@pytest.mark.parametrize(
    ("text", "steps"),
    [
        ("\\boxed{1}", (True, False, False)),
        ("first \\boxed{0}, no: \\boxed{ 02 }.", (True, True, False)),
        ("\\boxed{-1}", (True, True, True)),
        ("\\boxed{0}", (False, False, False)),
        ("\\boxed{3}", None),
        ("\\boxed{-2}", None),
        ("\\boxed{1} and \\boxed{none}", None),
        ("paragraph 1", None),
        ("\\boxed{1", None),
        ("\\boxed{" + "9" * 5000 + "}", None),
    ],
)
def test_the_last_box_is_read_as_a_number(text: str, steps: tuple[bool, ...] | None) -> None:
    parsed = Critic("tagged").parse(text, paragraphs("a", "b", "c"))
    assert parsed.value.steps == steps and parsed.is_valid == (steps is not None)


@pytest.mark.parametrize("index", [-1, 0, 2])
def test_what_a_critic_writes_reads_back(index: int) -> None:
    critic = Critic("tagged")
    steps = critic.parse(critic.write(index), paragraphs("a", "b", "c")).value.steps
    assert steps is not None and (steps.index(False) if False in steps else -1) == index


# -- Checkpoints against each other ----------------------------------------------------------------


def test_the_matrix_has_every_pair_and_one_set_of_solutions_in_a_row(reports: dict[str, dict[str, Any]]) -> None:
    report = reports["matrix"]
    assert (report["turns"], report["kept"]) == ([0, 2], [0, 2])
    assert [(row["generator"], row["verifier"]) for row in report["rows"]] == [(0, 0), (0, 2), (2, 0), (2, 2)]
    for turn in report["turns"]:
        first, second = rows(report, generator=turn)
        assert all(first[key] == second[key] for key in ("solutions", "right", "wrong", "share_right"))
        assert first["solutions"] == first["right"] + first["wrong"] == 16
    sides = ("soft_auroc", "balanced_accuracy")
    assert all(row[f"{name}_low"] <= row[name] <= row[f"{name}_high"] for row in report["rows"] for name in sides if row[name])


def test_the_start_is_the_same_from_its_checkpoint_and_from_the_models(
    trained: Path, reports: dict[str, dict[str, Any]], tmp_path: Path
) -> None:
    run = shutil.copytree(trained, tmp_path / "tango")
    shutil.rmtree(run / "checkpoints" / "turn-000000")
    with pytest.warns(Notice, match="weights of turns 0, 2 alone, not of 3.*keep.checkpoints"):
        found = evaluate(run, "matrix", **SMALL["matrix"] | {"checkpoints": 3})
    assert found["kept"] == [2]
    assert found["rows"] == reports["matrix"]["rows"]


def test_a_row_of_the_matrix_is_what_the_other_suites_say(trained: Path, reports: dict[str, dict[str, Any]]) -> None:
    own = rows(evaluate(trained, "transfer", problems=4, samples=4), by="own generator", task="own")[0]
    last = reports["matrix"]["rows"][-1]
    assert all(last[key] == own[key] for key in ("soft_auroc", "balanced_accuracy", "positive_rate", "share_right"))


def test_the_matrix_is_kept_and_shown(
    milonga: Command, trained: Path, reports: dict[str, dict[str, Any]], tmp_path: Path
) -> None:
    run = shutil.copytree(trained, tmp_path / "tango")
    assert read_matrix(run) is None and "AUROC of the soft verdict" not in milonga("show", run).out
    done = milonga("eval", run, "matrix", "--problems", "4", "--samples", "4", "--checkpoints", "2", "--json")
    assert json.loads(done.out) == json.loads((run / "matrix.json").read_text())
    assert json.loads(done.out)["rows"] == reports["matrix"]["rows"]
    found = read_matrix(run)
    assert found is not None
    assert [cell.soft_auroc for cell in found.rows] == [row["soft_auroc"] for row in reports["matrix"]["rows"]]
    shown = milonga("show", run).out
    assert "AUROC of the soft verdict" in shown and "balanced accuracy" in shown
    page = to_markdown(build_report([run]))
    assert "Verifiers on generators of other turns" in page and "| verifier of turn 2 |" in page


@pytest.mark.parametrize("recipe", ["prime", "lets_verify"])
def test_a_scorer_knows_nothing_at_its_start_and_is_measured_by_its_scores(recipe: str, tmp_path: Path) -> None:
    """Log-ratios to itself, or a value head of zeros: the same to every solution of two steps. Ties count half."""
    run(recipe, turns=1, seed=3, out=tmp_path / "run", settings=TINY | SHORT[recipe].settings, quiet=True)
    found = evaluate(tmp_path / "run", "matrix", problems=6, samples=4, checkpoints=2)
    for row in rows(found, verifier=0):
        assert row["soft_auroc"] == (0.5 if row["right"] and row["wrong"] else None)
        assert row["positive_rate"] in (0.0, 1.0) and row["unparsed_rate"] == 0.0
    assert any(row["soft_auroc"] not in (0.5, None) for row in found["rows"] if row["verifier"])
    last = JsonLines(tmp_path / "run" / "metrics.jsonl").rows()[-1]
    assert last["eval/verifier/soft_brier"] is not None and last["eval/verifier/soft_judged"] > 0


@pytest.mark.parametrize("spoil", ["[]", '{"turns": [0]}', "pairs", "share"])
def test_a_matrix_that_is_none_is_one_line(spoil: str, reports: dict[str, dict[str, Any]], tmp_path: Path) -> None:
    report = reports["matrix"]
    texts = {
        "pairs": json.dumps(report | {"rows": report["rows"][:-1]}),
        "share": json.dumps(report | {"rows": [report["rows"][0] | {"soft_auroc": 1.5}]}),
    }
    (tmp_path / "matrix.json").write_text(texts.get(spoil, spoil))
    with pytest.raises(RunFolderError) as caught:
        read_matrix(tmp_path)
    assert "matrix.json" in str(caught.value) and "\n" not in str(caught.value)


def test_checkpoints_are_chosen_evenly_with_the_start_and_the_newest() -> None:
    kept = {turn: Path(str(turn)) for turn in range(10, 110, 10)}

    def choose(count: int) -> list[int]:
        return [one.turn for one in choose_checkpoints(kept, count)]

    assert (choose(1), choose(2), choose(3)) == ([100], [0, 100], [0, 50, 100])
    assert choose(11) == choose(99) == list(range(0, 110, 10))
    assert choose_checkpoints(kept, 3)[0].folder is None and choose_checkpoints({0: Path("0")}, 3)[0].folder == Path("0")
    assert [one.turn for one in choose_checkpoints({}, 3)] == [0]
