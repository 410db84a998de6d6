"""Probes: figures by hand, advice to the word, and runs that are the same after a probe, refused, or stopped."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

import milonga as package
from cases import TINY
from helpers import Command, make_rollout
from milonga.board.catalogue import Catalogue
from milonga.cli.app import app
from milonga.comparing import arms
from milonga.config import Config, RewardSection, parse_setting, to_toml
from milonga.errors import RunFolderError, StalledError, UserError
from milonga.objectives import make_objective
from milonga.probing import Probe, count_signals, find_stall, should_probe
from milonga.probing.advice import BY_PASS_RATE, Advice, advise
from milonga.probing.figures import Asked, JudgeFigures, SolverFigures, measure_judge, measure_solver
from milonga.probing.probe import EXAMPLES, LINES, PROBLEMS, ROLLOUTS, find_learning
from milonga.report import build_report
from milonga.report.markdown import to_markdown
from milonga.resolve import resolve
from milonga.runfolder.files import JsonLines
from milonga.types import Grade, Parsed, Rollout, Rollouts, Solution, TrainBatch, Verification

# --- figures ---

ASKED = Asked("generator", "generator", "outcomes", 8)


def solve(problem: str, answer: str | None, steps: tuple[bool, ...] | None, length: int = 4, cut: bool = False) -> Rollout:
    """A solution of a problem whose answer is 1; where the steps are None the task does not know them."""
    rollout = make_rollout(2, length, problem=problem, id=f"{problem}/{answer}/{length}")
    parsed = Parsed(Solution(("step",), (1,), answer), 0.0 if answer is None else 1.0, "nothing" if answer is None else None)
    return replace(
        rollout, parsed=parsed, grade=Grade(answer in ("1", "1.0"), steps), finish="length" if cut else "eos", text="text"
    )


SOLUTIONS = Rollouts(
    [
        # Right by two of three, in two forms; the second has a wrong step. Each form alone would tie with the wrong answer.
        *(solve("a", "2", (False,)), solve("a", "1", (True,), 2), solve("a", "1.0", (False,), 6)),
        # Never right: one answer cannot be read, and was cut.
        *(solve("b", None, (), 8, cut=True), solve("b", "3", (False,)), solve("b", "2", (False,))),
    ]
)


def group_forms(answers: Sequence[str | None]) -> list[int | None]:
    return [None if answer is None else int(float(answer)) for answer in answers]


def test_figures_of_a_solver_by_hand() -> None:
    greedy = Rollouts([solve("a", "1", (True,)), solve("b", "2", (False,))])
    assert measure_solver(ASKED, SOLUTIONS, greedy, group_forms) == SolverFigures(
        **vars(ASKED),
        outputs=6,
        readable=5 / 6,
        format=5 / 6,
        truncated=1 / 6,
        length=28 / 6,
        length_95=7.5,  # of 2, 4, 4, 4, 6, 8: a quarter of the way back from the last
        cut_at=8,
        accuracy=2 / 6,
        greedy=0.5,
        majority=0.5,
        pass_at_k=0.5,
        signal=0.5,
        unsound=0.5,
    )


def test_what_is_not_known_is_none() -> None:
    unknown = Rollouts([replace(t, grade=Grade(None)) for t in SOLUTIONS])
    found = measure_solver(ASKED, unknown, Rollouts([]), group_forms)
    assert (found.accuracy, found.greedy, found.majority, found.pass_at_k, found.signal, found.unsound) == (None,) * 6
    assert found.readable == 5 / 6
    blind = measure_solver(ASKED, Rollouts([solve("a", "1", None), solve("a", "2", None)]), Rollouts([]), group_forms)
    assert blind.unsound is None and blind.signal == 1.0


def check(solution: Rollout, final: bool | None, steps: tuple[bool, ...] | None, score: float | None = None) -> Rollout:
    parsed = Parsed(Verification(steps, final, score=score), 1.0 if final is not None else 0.5)
    return replace(make_rollout(2, 3), agent="verifier", parsed=parsed, targets=(solution,), grade=None)


def test_figures_of_a_judge_by_hand() -> None:
    right, wrong = solve("a", "1", (True, True)), solve("a", "2", (True, False))
    checks = Rollouts(
        [
            check(right, True, (True, True), 0.9),
            check(right, False, (True, False), 0.4),
            check(wrong, False, (True, False), 0.4),
            check(wrong, True, (False, True), 0.8),
            check(wrong, None, None, 0.0),
        ]
    )
    found = measure_judge(replace(ASKED, agent="verifier"), checks)
    assert (found.agent, found.outputs, found.readable, found.format, found.truncated) == ("verifier", 5, 0.8, 0.9, 0.0)
    assert found.positive_rate == 0.5  # of the four that can be read
    assert found.auroc == (1 + 1 + 0.5 + 0) / 4  # of the pairs (0.9, 0.4), (0.9, 0.8), (0.4, 0.4), (0.4, 0.8)
    assert (found.accuracy_on_right, found.accuracy_on_wrong) == (1 / 2, 1 / 3)
    assert found.first_error_f1 == pytest.approx(2 * (1 / 2) * (1 / 3) / (1 / 2 + 1 / 3))


def test_a_judge_that_calls_all_wrong_may_order_by_its_soft_verdicts() -> None:
    """Hard verdicts tell nothing here, neither of solutions nor of steps."""
    right, wrong = solve("a", "1", (True,)), solve("a", "2", (False,))

    def soften(solution: Rollout, soft: float) -> Rollout:
        parsed = Parsed(Verification((False,), False, soft=soft, soft_steps=(soft,)), 1.0)
        return replace(check(solution, False, (False,)), parsed=parsed)

    checks = [soften(right, 0.4), soften(right, 0.3), soften(wrong, 0.1), soften(wrong, 0.05)]
    found = measure_judge(replace(ASKED, agent="verifier"), Rollouts(checks))
    assert (found.auroc, found.soft_auroc, found.soft_step_auroc) == (0.5, 1.0, 1.0)
    known = measure_judge(ASKED, Rollouts([*checks, check(wrong, None, None)]))
    assert known.soft_auroc == 1.0, "what cannot be read has no soft verdict"
    assert measure_judge(ASKED, Rollouts(checks[:2])).soft_auroc is None


def test_a_scorer_has_no_lengths() -> None:
    given = Rollouts([replace(check(SOLUTIONS[0], True, (True,), 0.7), origin="given")])
    found = measure_judge(ASKED, given)
    assert (found.readable, found.truncated, found.length, found.length_95, found.cut_at) == (1.0, None, None, None, None)


@pytest.mark.parametrize(
    ("recipe", "agent", "source"),
    [
        ("grpo", "generator", "outcomes"),
        ("tango", "verifier", "outcomes"),
        ("tango_code", "generator", "outcomes"),
        ("ttrl", "generator", "rewards"),
        ("absolute_zero", "generator", "rewards"),
        ("frozen", "verifier", "nothing"),
        ("verifier_only", "generator", "nothing"),
        ("sft", "generator", "examples"),
        ("score", "generator", "examples"),
        ("spin", "generator", "examples"),
    ],
)
def test_what_an_agent_learns_from_first(recipe: str, agent: str, source: str) -> None:
    plan = resolve([{"recipe": recipe}])
    assert find_learning(plan.recipe, plan.schedule, agent) == source


# --- advice ---

SOLVER = SolverFigures(
    "generator", "generator", "outcomes", 512, 128, 1.0, 1.0, 0.0, 200.0, 400.0, None, 0.4, 0.45, 0.5, 0.7, 0.5, None
)
JUDGE = JudgeFigures("verifier", "verifier", "outcomes", 1024, 128, 1.0, 1.0, 0.0, 200.0, 400.0, None, 0.5, 0.8, 0.8, 0.7, 0.5)
PLAIN = Config(recipe="tango", dialect="terse", options={"warmup": 20})
TAGGED = PLAIN.model_copy(update={"dialect": "tagged"})
TAUGHT = {"learns_from": "examples"}
SILENT = {"readable": 0.0, "signal": 0.0, "accuracy": 0.0, "greedy": 0.0}
UNREAD = "nothing of what the generator wrote can be read in the dialect 'terse'"
OTHER = "try another prompt (policies.generator.prompt) or another model"
OTHER_VERIFIER = "try another prompt (policies.verifier.prompt) or another model"
CASES: list[tuple[dict[str, Any], dict[str, Any] | None, Config, list[Advice]]] = [
    ({}, {}, PLAIN, []),
    (
        {"truncated": 0.61, "cut_at": 512},
        {},
        PLAIN,
        [Advice("61 % of the generator's outputs were cut at 512 tokens", "sampling.max_tokens=1024")],
    ),
    (
        {"truncated": 0.61, "cut_at": 300},
        None,
        PLAIN,
        [
            Advice(
                "61 % of the generator's outputs were cut at 300 tokens, where its model's context ends: choose shorter "
                "problems or a model with a longer context"
            )
        ],
    ),
    (
        {},
        {"truncated": 0.2, "cut_at": 1024},
        PLAIN,
        [Advice("20 % of the verifier's outputs were cut at 1024 tokens", "sampling.max_tokens=1024")],
    ),
    ({"truncated": 0.09, "cut_at": 512}, {}, PLAIN, []),
    (SILENT, None, PLAIN, [Advice(f"{UNREAD}: {OTHER}", None, True)]),
    (SILENT | TAUGHT, None, PLAIN, [Advice(f"{UNREAD}: {OTHER}")]),
    ({"readable": 0.0, "learns_from": "nothing"}, None, PLAIN, [Advice(f"{UNREAD}: {OTHER}", None, True)]),
    (
        {"readable": 0.0, "truncated": 1.0, "cut_at": 512},
        None,
        PLAIN,
        [Advice("100 % of the generator's outputs were cut at 512 tokens", "sampling.max_tokens=1024", True)],
    ),
    (
        {"readable": 0.0, "truncated": 0.5, "cut_at": 512},
        None,
        PLAIN,
        [
            Advice("50 % of the generator's outputs were cut at 512 tokens", "sampling.max_tokens=1024", True),
            Advice(f"{UNREAD}: {OTHER}", None, True),
        ],
    ),
    (
        {"readable": 0.4, "truncated": 0.31, "cut_at": 512},
        None,
        PLAIN,
        [Advice("31 % of the generator's outputs were cut at 512 tokens", "sampling.max_tokens=1024")],
    ),
    (
        {"readable": 0.03, "truncated": 0.97, "cut_at": 512, "signal": 0.0, "accuracy": 0.0, "greedy": 0.0},
        None,
        PLAIN,
        [
            Advice("no group has both outcomes: nearly all solutions were cut", None, True),
            Advice("97 % of the generator's outputs were cut at 512 tokens", "sampling.max_tokens=1024"),
        ],
    ),
    (
        {"readable": 0.5},
        None,
        PLAIN,
        [
            Advice(
                "only 50 % of what the generator wrote can be read in the dialect 'terse', so let it imitate what can be, "
                "before the run",
                "bootstrap=10",
            )
        ],
    ),
    (
        {"readable": 0.5},
        None,
        TAGGED,
        [
            Advice(
                "only 50 % of what the generator wrote can be read in the dialect 'tagged', which only models that were "
                "trained in it speak",
                "dialect=plain",
            )
        ],
    ),
    (
        {"signal": 0.0, "accuracy": 0.0, "greedy": 0.0},
        None,
        PLAIN,
        [Advice("no group has both outcomes, all answers are wrong: choose easier problems or a stronger model", None, True)],
    ),
    (
        {"signal": 0.0, "accuracy": 1.0, "greedy": 1.0},
        None,
        PLAIN,
        [Advice("no group has both outcomes, all answers are right: choose harder problems", None, True)],
    ),
    (
        {"signal": 0.0},
        None,
        PLAIN,
        [Advice("no group has both outcomes: each problem is solved always or never", "batch.rollouts=16", True), BY_PASS_RATE],
    ),
    (
        {"signal": 0.0} | TAUGHT,
        None,
        PLAIN,
        [Advice("no group has both outcomes: each problem is solved always or never", "batch.rollouts=16"), BY_PASS_RATE],
    ),
    (
        {"signal": 0.0, "learns_from": "rewards"},
        None,
        PLAIN,
        [Advice("no group has both outcomes: each problem is solved always or never", "batch.rollouts=16"), BY_PASS_RATE],
    ),
    ({"readable": 0.0, "learns_from": "rewards"}, None, PLAIN, [Advice(f"{UNREAD}: {OTHER}", None, True)]),
    (
        {},
        {"readable": 0.0, "positive_rate": None, "auroc": None, "learns_from": "nothing"},
        PLAIN,
        [
            Advice(
                "nothing of what the verifier wrote can be read in the dialect 'terse': try another prompt "
                "(policies.verifier.prompt) or another model"
            )
        ],
    ),
    (
        {"signal": 0.06, "policy": "shared"},
        None,
        PLAIN,
        [
            Advice(
                "only 6 % of the groups have both outcomes, so draw other problems in place of the rest",
                "policies.shared.objective.dynamic_sampling=true",
            ),
            BY_PASS_RATE,
        ],
    ),
    (
        {"signal": 0.0},
        None,
        PLAIN.model_copy(update={"task": {"name": "chain", "pass_rate": [0.1, 0.9]}}),
        [Advice("no group has both outcomes: each problem is solved always or never", "batch.rollouts=16")],
    ),
    (
        {"signal": 0.0},
        None,
        PLAIN.model_copy(update={"recipe": "curriculum", "options": {"levels": "task"}}),
        [Advice("no group has both outcomes: each problem is solved always or never", "batch.rollouts=16", True)],
    ),
    ({"signal": None, "accuracy": None, "greedy": None}, None, PLAIN, []),
    (
        {"accuracy": 0.3, "greedy": 0.5},
        None,
        PLAIN,
        [Advice("greedy solutions are right in 50 %, sampled ones in 30 %, so sample colder", "sampling.temperature=0.7")],
    ),
    (
        {"unsound": 0.25},
        None,
        PLAIN,
        [
            Advice(
                "25 % of the right answers have a wrong step: rewards for answers alone do not see that, the recipe tango "
                "trains a step verifier too"
            )
        ],
    ),
    ({"unsound": 0.25}, {}, PLAIN, []),
    (
        {},
        {"positive_rate": 0.98},
        PLAIN,
        [Advice("the verifier calls 98 % of the solutions right: its verdicts tell nothing yet", "options.warmup=40")],
    ),
    (
        {},
        {"positive_rate": 0.0, "learns_from": "nothing"},
        PLAIN,
        [Advice("the verifier calls 100 % of the solutions wrong: its verdicts tell nothing yet")],
    ),
    (
        {},
        {"auroc": 0.5},
        PLAIN.model_copy(update={"options": {}}),
        [Advice("the verifier cannot tell right solutions from wrong ones (AUROC 0.50)")],
    ),
    (
        {"truncated": 0.2, "cut_at": 512},
        {"readable": 0.0, "positive_rate": None, "auroc": None},
        PLAIN,
        [
            Advice(f"nothing of what the verifier wrote can be read in the dialect 'terse': {OTHER_VERIFIER}", None, True),
            Advice("20 % of the generator's outputs were cut at 512 tokens", "sampling.max_tokens=1024"),
        ],
    ),
]


@pytest.mark.parametrize(("solver", "judge", "config", "expected"), CASES)
def test_advice_to_the_word(solver: Any, judge: Any, config: Config, expected: list[Advice]) -> None:
    both = ("generator", "verifier")
    assert advise(replace(SOLVER, **solver), None if judge is None else replace(JUDGE, **judge), config, both) == expected


def test_a_bootstrap_is_advised_only_for_agents_that_it_would_train_and_only_once() -> None:
    half = replace(SOLVER, readable=0.5)
    assert [advice.setting for advice in advise(half, None, PLAIN, ("generator",))] == ["bootstrap=10"]
    assert [advice.setting for advice in advise(half, None, PLAIN)] == [None]
    again = PLAIN.model_copy(update={"bootstrap": 10})
    assert [advice.setting for advice in advise(half, None, again, ("generator",))] == [None]


def test_a_reward_of_the_users_own_is_what_has_to_differ() -> None:
    own = PLAIN.model_copy(update={"rewards": [RewardSection(function="my.py:f")]})
    assert advise(replace(SOLVER, signal=0.5, accuracy=0.0, greedy=0.0), None, own) == []
    (advice,) = advise(replace(SOLVER, signal=0.0, accuracy=0.0, greedy=0.0), None, own)
    assert advice.blocking and advice.text == "your reward is the same for all solutions of each problem"


def test_advice_ends_in_the_setting() -> None:
    assert str(Advice("too short", "sampling.max_tokens=8")) == "too short: --set sampling.max_tokens=8"
    assert str(Advice("too hard")) == "too hard"


@pytest.mark.parametrize("advice", [advice for case in CASES for advice in case[3] if advice.setting and case[2] is PLAIN])
def test_settings_that_are_advised_exist(advice: Advice) -> None:
    setting = str(advice.setting).replace("policies.shared", "policies.generator")
    resolve([{"recipe": "tango"}, parse_setting(setting)])


# --- turns without a signal ---


def make_batch(preset: str, **targets: Any) -> TrainBatch:
    rollouts = Rollouts([make_rollout(1, 2, id="a"), make_rollout(1, 2, id="b")])
    return TrainBatch("generator", make_objective(preset).loss, rollouts, **targets)


def test_rows_with_a_signal_are_counted() -> None:
    nothing, something = make_rollout(1, 2).logprobs, make_rollout(1, 2, logprobs=[0.0, 0.5]).logprobs
    assert count_signals(make_batch("grpo", advantages=[nothing, something])) == 1
    assert count_signals(make_batch("grpo", advantages=[nothing, something], weights=[1.0, 0.0])) == 0
    assert count_signals(make_batch("grpo", advantages=[nothing, nothing])) == 0
    assert count_signals(make_batch("cross_entropy")) == 2
    assert count_signals(make_batch("cross_entropy", weights=[0.0, 1.0])) == 1


def turn(learner: str, signal: float | None, **rates: float) -> dict[str, Any]:
    rows = {f"rollouts/{learner}/{key}": value for key, value in rates.items()}
    return {"learner": learner, **({} if signal is None else {"signal": signal}), **rows}


def test_a_run_stalls_without_a_signal_in_a_row() -> None:
    silent, heard = turn("generator", 0.0, accuracy=0.0), turn("generator", 0.5)
    assert find_stall([heard, silent, silent], "generator", 2)
    assert find_stall([silent, heard, silent], "generator", 2) is None
    assert find_stall([silent], "generator", 2) is None
    assert find_stall([silent] * 9, "generator", 0) is None
    assert find_stall([silent, turn("generator", None), silent], "generator", 2), "a turn that collects does not count"


def test_other_agents_do_not_hide_or_make_a_stall_of_the_lead() -> None:
    mute, idle = turn("generator", 0.0), turn("verifier", 0.0)
    works = turn("verifier", 1.0)
    assert find_stall([mute, works, mute, works], "generator", 2), "the lead finds nothing, whatever the other does"
    lead = turn("generator", 1.0)
    assert find_stall([idle, lead, idle, lead], "generator", 2) is None
    assert find_stall([lead, idle, idle], "generator", 2), "a warm-up of the other"


@pytest.mark.parametrize(
    ("rates", "cause"),
    [
        ({"truncated_rate": 1.0, "invalid_rate": 1.0}, "100 % of its outputs are cut at the limit: raise sampling.max_tokens"),
        ({"truncated_rate": 0.1, "invalid_rate": 0.96}, "96 % of its outputs cannot be read: 'milonga probe' shows some"),
        ({"accuracy": 0.0}, "all its answers are wrong: choose easier problems or a stronger model"),
        ({"accuracy": 1.0}, "all its answers are right: choose harder problems"),
        ({"accuracy": 0.5}, "its outputs on one problem all earn the same: raise batch.rollouts or sampling.temperature"),
    ],
)
def test_a_stall_has_a_cause(rates: dict[str, float], cause: str) -> None:
    found = find_stall([turn("generator", 0.0, **rates)] * 3, "generator", 3)
    assert found == f"the generator found nothing to learn from in 3 turns in a row: {cause}"


# --- real runs ---

UNREADABLE = TINY | {"dialect": "tagged", "sampling": {"max_tokens": 16}}
"""An embedded model that is asked in a dialect it has never seen."""


def read_run(folder: Path) -> tuple[bytes, list[bytes]]:
    weights = sorted((folder / "models").rglob("*.safetensors"))
    return (folder / "metrics.jsonl").read_bytes(), [path.read_bytes() for path in weights]


@pytest.fixture(scope="module")
def probed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short run of tango after a probe, beside the same run without one."""
    folder = tmp_path_factory.mktemp("probed")
    for name, probe in (("with", "on"), ("without", "off")):
        settings = TINY | {"probe": probe, "options": {"warmup": 1, "n_generator": 1}}
        package.run("tango", turns=1, out=folder / name, settings=settings, quiet=True)
    return folder


def test_the_cost_of_a_turn_names_its_batch_and_is_in_a_unit_that_reads_well(probed: Path) -> None:
    found = Probe.read(probed / "with")
    assert found is not None
    batch = TINY["batch"]
    head = f"To sample and judge a turn of {batch['problems']} problems x {batch['rollouts']} rollouts takes about "
    for seconds, said in ((0.25, "0.2 seconds"), (42.0, "42 seconds"), (1429.4, "23.8 minutes"), (9000.0, "2.5 hours")):
        cost = replace(found, turn_s=seconds, memory_gib=None).describe_cost()
        assert cost == f"{head}{said}, learning not counted."
    old = {key: value for key, value in found.to_json().items() if key not in ("turn_problems", "turn_rollouts")}
    assert "judge a turn takes" in Probe.from_json(old).describe_cost()


def test_a_probe_changes_no_bit_of_a_run(probed: Path) -> None:
    with_probe, without = read_run(probed / "with"), read_run(probed / "without")
    assert with_probe == without and len(with_probe[1]) == 2
    assert (probed / "with" / "probe.json").exists() and not (probed / "without" / "probe.json").exists()


def test_a_probe_is_kept_and_reported(probed: Path) -> None:
    found = Probe.read(probed / "with")
    assert found is not None and Probe.read(probed / "without") is None
    assert (found.recipe, found.task, found.problems, found.rollouts) == ("tango", "chain", PROBLEMS, ROLLOUTS)
    assert (
        found.solver.outputs == PROBLEMS * ROLLOUTS and found.judge is not None and found.judge.outputs == found.solver.outputs
    )
    assert found.solver.readable and found.turn_s > 0 and not found.blocking
    page = to_markdown(build_report([probed / "with"]))
    assert "The probe before the run" in page and "groups with both outcomes" in page and found.describe_cost() in page
    assert "The probe before the run" not in to_markdown(build_report([probed / "without"]))


@pytest.mark.parametrize("spoilt", ["[]", "{}", '{"solver": {}}', "rubbish", '{"solver": 3}'])
def test_a_broken_probe_is_one_line(tmp_path: Path, spoilt: str) -> None:
    (tmp_path / "probe.json").write_text(spoilt)
    with pytest.raises(RunFolderError) as error:
        Probe.read(tmp_path)
    assert "\n" not in str(error.value) and "probe.json" in str(error.value)


def test_figures_of_the_wrong_kind_are_one_line(probed: Path, tmp_path: Path) -> None:
    data = json.loads((probed / "with" / "probe.json").read_text())
    data["solver"]["accuracy"] = "high"
    (tmp_path / "probe.json").write_text(json.dumps(data))
    with pytest.raises(RunFolderError, match="holds no probe"):
        Probe.read(tmp_path)


def test_real_models_are_probed_by_default(tmp_path: Path) -> None:
    own = {"recipe": "grpo", "policies": {"generator": {"model": str(tmp_path)}}}
    assert not should_probe(resolve([{"recipe": "grpo"}])) and should_probe(resolve([own]))
    assert not should_probe(resolve([own, {"probe": "off"}])) and should_probe(resolve([{"recipe": "grpo", "probe": "on"}]))
    assert not should_probe(resolve([{"recipe": "rlp", "probe": "on"}])), "it has nobody who solves by steps"


def test_a_run_that_cannot_learn_is_refused_and_leaves_no_run(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(UserError, match=r"nothing can be learned: .*cut at 16 tokens: --set sampling.max_tokens=32; 'milonga"):
        package.run("grpo", turns=1, out=out, settings=UNREADABLE | {"probe": "on"}, quiet=True)
    assert [path.name for path in out.iterdir()] == ["lock"]


def test_a_refused_run_can_be_forced(milonga: Command, tmp_path: Path) -> None:
    config = tmp_path / "tiny.toml"
    config.write_text(to_toml(UNREADABLE))
    command = ("run", "grpo", "--turns", "1", "--config", config, "--out", tmp_path / "out", "--probe")
    done = milonga(*command)
    assert done.code == 2 and done.err.splitlines()[-1].startswith("milonga: nothing can be learned: ")
    done = milonga(*command, "--force", "--json")
    assert done.code == 0 and done.json["turns"] == 1
    assert (tmp_path / "out" / "probe.json").exists()


def test_a_run_without_signal_stops_with_a_checkpoint_and_can_be_forced_on(tmp_path: Path) -> None:
    out = tmp_path / "out"
    settings = UNREADABLE | {"stop_without_signal": 2}
    with pytest.raises(StalledError, match=r"stopped at turn 2, with a checkpoint: .* cut at the limit.*resume .*--force"):
        package.run("grpo", turns=4, out=out, settings=settings, quiet=True)
    before = JsonLines(out / "metrics.jsonl").rows()
    assert [row.get("signal") for row in before] == [None, 0.0, 0.0] and "stalled" in before[-1] and "stalled" not in before[-2]
    assert (out / "checkpoints" / "turn-000002").is_dir() and not (out / "report.json").exists()
    assert "no signal: the generator found nothing" in to_markdown(build_report([out]))
    card = Catalogue(tmp_path).find_card("out")
    assert card is not None and card.state == "stopped" and card.note == before[-1]["stalled"]
    with pytest.raises(StalledError, match="stopped at turn 2"):
        package.resume(out, quiet=True)
    assert JsonLines(out / "metrics.jsonl").rows() == before
    assert package.resume(out, quiet=True, force=True)["turns"] == 4


def test_a_killed_run_stops_where_the_whole_one_does(tmp_path: Path) -> None:
    settings = UNREADABLE | {"stop_without_signal": 3, "keep": {"checkpoint_every": 1, "checkpoints": 9, "rollouts_every": 0}}
    rows = []
    for name in ("whole", "cut"):
        with pytest.raises(StalledError):
            package.run("grpo", turns=5, out=tmp_path / name, settings=settings, quiet=True)
        if name == "cut":
            for checkpoint in ("turn-000002", "turn-000003"):
                (tmp_path / name / "checkpoints" / checkpoint / "complete.json").unlink()
            with pytest.raises(StalledError, match="stopped at turn 3"):
                package.resume(tmp_path / name, quiet=True)
        rows.append((tmp_path / name / "metrics.jsonl").read_bytes())
    assert rows[0] == rows[1]


def test_arms_of_a_comparison_are_neither_probed_nor_stopped() -> None:
    plan = arms.plan_comparison(["tango", "grpo"]).arms[0].plan
    assert (plan.config.probe, plan.config.stop_without_signal) == ("off", 0)
    own = arms.plan_comparison(["tango", "grpo"], settings=[{"stop_without_signal": 7}]).arms[1].plan
    assert own.config.stop_without_signal == 7


# --- the command ---

SMALL = ("--set", "task.ops=2", "--problems", "4", "--rollouts", "2")


def test_the_command_prints_figures_and_one_json_line(milonga: Command) -> None:
    done = milonga("probe", *SMALL, "--json")
    assert done.code == 0
    assert all(len(line) <= 80 for line in done.err.splitlines()[:20]) and "pass@k" in done.err
    found = Probe.from_json(done.json)
    assert (found.recipe, found.problems, found.rollouts, found.solver.outputs) == ("tango", 4, 2, 8)
    assert found.judge is not None and found.judge.agent == "verifier"


def test_a_generator_alone_that_cannot_be_read_is_exit_code_2_with_examples(milonga: Command) -> None:
    done = milonga("probe", "grpo", *SMALL, "--set", "dialect=tagged", "--set", "sampling.max_tokens=16", "--json")
    assert done.code == 2 and "Traceback" not in done.err
    found = Probe.from_json(done.json)
    assert found.judge is None and found.blocking and len(found.examples) == EXAMPLES
    assert all(len(example.text.splitlines()) <= LINES and example.why for example in found.examples)
    assert f"unreadable, by the generator: {found.examples[0].why}"[:60] in done.err


def test_the_command_probes_as_much_as_a_run_does() -> None:
    group: Any = get_command(app)
    defaults = {option.name: option.default for option in group.commands["probe"].params}
    assert (defaults["problems"], defaults["rollouts"]) == (PROBLEMS, ROLLOUTS)


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (("probe", "rlp"), "recipe 'rlp' has no agent that solves problems by steps"),
        (("probe", "grpo", "--verifier", "embedded"), "recipe 'grpo' has no verifier"),
        (("probe", "tangoo"), "did you mean 'tango'?"),
    ],
)
def test_mistakes_are_one_line(milonga: Command, command: tuple[str, ...], says: str) -> None:
    done = milonga(*command)
    assert done.code == 2 and says in done.err and done.err.count("\n") == 1


def test_a_probe_computes_with_the_threads_that_a_run_would_take(monkeypatch: pytest.MonkeyPatch, milonga: Command) -> None:
    """Where others compute, two threads can be ten times slower than one: a probe of a real model took minutes so."""
    from milonga.engine.local import threads

    asked = []
    monkeypatch.setattr(threads, "choose_threads", lambda: asked.append("threads") or 1)
    done = milonga("probe", "grpo", "--problems", "2", "--rollouts", "2")
    assert done.code in (0, 2) and asked == ["threads"], done.err
