"""Recipes, end to end with the embedded model: each learns what it should, and nothing from shuffled rewards."""

from __future__ import annotations

import ast
import json
import math
import shutil
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import milonga
from cases import CASES, FAST, TINY
from milonga.api import make_engine
from milonga.context import Context, RunContext
from milonga.engine.local.models import resolve_model_path
from milonga.loop import Loop
from milonga.objectives import PRESETS
from milonga.patterns.outcome import outcome_rewards
from milonga.recipe import ALLOWED
from milonga.resolve import Plan, resolve
from milonga.roles import ROLES, StepSolver
from milonga.runfolder.console import LiveView
from milonga.runfolder.files import JsonLines
from milonga.runfolder.folder import RunFolder
from milonga.runfolder.note import find_origin
from milonga.schedule import Action, Gate, Phase, Schedule
from milonga.systems.grpo.recipe import Grpo
from milonga.systems.index import RECIPES
from milonga.tasks import make_task
from milonga.types import Grade, Parsed, Problem, Rollout, Rollouts, Verification

torch.set_num_threads(1)
EMBEDDED = Path(milonga.__file__).parent / "embedded" / "base"
# What each recipe should learn: the cases are in `cases.py`.


def test_every_recipe_has_a_case() -> None:
    assert set(CASES) == set(RECIPES)


@pytest.mark.parametrize("recipe", list(RECIPES))
def test_a_recipe_learns_and_its_shuffled_control_does_not(recipe: str, tmp_path: Path) -> None:
    case = CASES[recipe]

    def change(control: str) -> tuple[float, float]:
        more = case.settings | {"control": control}
        milonga.run(recipe, turns=case.turns, seed=case.seed, out=tmp_path / control, settings=more, quiet=True)
        rows = [row for row in JsonLines(tmp_path / control / "metrics.jsonl").rows() if case.metric in row]
        return rows[0][case.metric], rows[-1][case.metric]

    (start, end), (same, control) = change("none"), change("shuffled")
    assert start == same
    assert case.sign * (end - start) > case.margin
    assert case.sign * (end - control) > case.margin
    moved = {policy.name for policy in (tmp_path / "none" / "models").iterdir() if has_moved(policy)}
    assert moved == case.learners
    assert "turns. Folder:" in (tmp_path / "none" / "report.html").read_text(encoding="utf-8"), "it ends with a report"


def has_moved(folder: Path) -> bool:
    origin = Path(resolve_model_path(find_origin(str(folder))))
    start, end = load_file(origin / "model.safetensors"), load_file(folder / "model.safetensors")
    return any(not torch.equal(end[name].float(), tensor.float()) for name, tensor in start.items())


def test_every_agent_of_tango_learns_in_its_own_turns(tmp_path: Path) -> None:
    settings = TINY | {"options": {"warmup": 1, "n_generator": 2}, "policies": {"generator": FAST, "verifier": FAST}}
    milonga.run("tango", turns=3, out=tmp_path / "run", settings=settings, quiet=True)
    rows = JsonLines(tmp_path / "run" / "metrics.jsonl").rows()[1:]
    assert [row["learner"] for row in rows] == ["verifier", "generator", "generator", "verifier", "generator"]
    assert [row["lead_turn"] for row in rows] == [0, 1, 2, 2, 3]
    assert all(row[f"learn/{row['learner']}/grad_norm"] > 0 for row in rows)
    assert all(row[f"learn/{row['learner']}/mismatch"] < 1e-5 for row in rows)
    alphas = [row["credit/generator/alpha"] for row in rows if row["learner"] == "generator"]
    assert alphas == sorted(alphas, reverse=True) and alphas[0] == pytest.approx(0.3)
    # Sixteen solutions with one check each, or four solutions with four checks each.
    assert all(row["rollouts/verifier/length"] > 0 and row["rollouts/generator/accuracy"] is not None for row in rows)


# Bindings and sizes.


def test_tango_runs_with_one_adapter_for_each_agent_on_one_base(tmp_path: Path) -> None:
    pytest.importorskip("peft")
    options = {"warmup": 1, "n_generator": 1}
    policy = {"lr": 1e-3, "lora": {"rank": 4}}
    settings = TINY | {"binding": "lora", "options": options, "policies": {"generator": policy, "verifier": policy}}
    milonga.run("tango", turns=1, out=tmp_path / "run", settings=settings, quiet=True)
    adapters = {}
    for agent in ("generator", "verifier"):
        folder = tmp_path / "run" / "models" / agent
        assert json.loads((folder / "adapter_config.json").read_text())["r"] == 4
        adapters[agent] = load_file(folder / "adapter_model.safetensors")
        # B starts at zero: whatever is in it was learned.
        assert any(tensor.abs().sum() > 0 for name, tensor in adapters[agent].items() if "lora_B" in name)
    assert any(not torch.equal(adapters["generator"][name], other) for name, other in adapters["verifier"].items())


def test_tango_runs_with_a_verifier_of_another_size(tmp_path: Path) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    base = json.loads((EMBEDDED / "config.json").read_text())
    special = {key: base[key] for key in ("vocab_size", "bos_token_id", "eos_token_id", "pad_token_id")}
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 2}
    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(**special, **sizes, tie_word_embeddings=True)).save_pretrained(tmp_path / "small")
    for file in EMBEDDED.glob("tokenizer*"):
        shutil.copy(file, tmp_path / "small")
    settings = TINY | {"dialect": "terse", "options": {"warmup": 1, "n_generator": 1}, "policies": {"generator": FAST}}
    models = {"verifier": str(tmp_path / "small")}
    report = milonga.run("tango", turns=1, models=models, out=tmp_path / "run", settings=settings, quiet=True)
    assert report["turns"] == 2
    rows = JsonLines(tmp_path / "run" / "metrics.jsonl").rows()
    # It can say nothing readable yet, which is counted and costs the generator nothing but the step credit.
    assert rows[1]["rollouts/verifier/unparsed_rate"] == 1.0
    assert rows[2]["learn/generator/grad_norm"] > 0 and rows[2]["credit/generator/step_share"] == 0.0
    small = json.loads((tmp_path / "run" / "models" / "verifier" / "config.json").read_text())
    assert small["hidden_size"] == 32


# Objectives.


@cache
def engine() -> Any:
    return make_engine(plan("grpo"))


def plan(recipe: str, **settings: Any) -> Plan:
    return resolve([{"recipe": recipe}, TINY, {"policies": {"generator": FAST}}, settings])


def ctx(p: Plan, turn: int = 1, learner: str = "generator") -> Context:
    sampling, seed, problems = p.config.sampling, p.config.seed, p.config.batch.problems
    return Context(RunContext(engine(), p.task, p.roles, p.agents, sampling, seed, problems), turn, learner)


def one_turn(p: Plan, folder: Path) -> dict[str, Any]:
    """One turn of the real loop from the start's weights, without evaluations; its row."""
    engine().copy("generator", "generator", "ref")
    with RunFolder(folder, 1) as opened, LiveView("", None, quiet=True) as view:
        loop = Loop(p, engine(), opened, view)
        loop.run_turn()
        return loop.rows[-1]


def weights() -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in engine().policy("generator").parameters]


@pytest.mark.parametrize("preset", [name for name in PRESETS if PRESETS.get(name).kind == "policy_gradient"])
def test_grpo_runs_with_every_objective_and_changes_the_weights(preset: str, tmp_path: Path) -> None:
    p = plan("grpo", policies={"generator": {"objective": {"preset": preset}}})
    row = one_turn(p, tmp_path)
    start = engine().policy("generator").get_tag("ref")
    learned = {key.removeprefix("learn/generator/"): value for key, value in row.items()}
    assert learned["skipped"] == 0 and learned["grad_norm"] > 0 and np.isfinite(learned["loss"])
    assert any(not torch.equal(a, b) for a, b in zip(weights(), start, strict=True))


@pytest.mark.parametrize(
    ("preset", "more"),
    [("rloo", {"kl_coef": 0.1}), ("grpo", {"kl_coef": 0.1}), ("dapo", {"overlong_buffer": 10}), ("grpo", {"dual_clip": 3.0})],
)
def test_regularised_objectives_run_too(preset: str, more: dict[str, Any], tmp_path: Path) -> None:
    p = plan("grpo", policies={"generator": {"objective": {"preset": preset} | more}})
    assert one_turn(p, tmp_path)["learn/generator/grad_norm"] > 0


def test_dynamic_sampling_keeps_only_mixed_groups() -> None:
    engine().copy("generator", "generator", "ref")
    p = plan("grpo", policies={"generator": {"objective": {"preset": "dapo"}}}, batch={"problems": 8, "rollouts": 2})
    one = ctx(p)
    rollouts = p.recipe.rollout(one)
    groups: dict[str, set[float]] = {}
    for rollout in rollouts:
        groups.setdefault(rollout.problem.id, set()).add(rollout.correct)
    assert all(outcomes == {0.0, 1.0} for outcomes in groups.values())
    assert len(groups) == 8 and len(rollouts) == 16
    assert one.drawn > 8  # some groups were flat, and were replaced
    assert len({rollout.id for rollout in rollouts}) == len(rollouts)


def test_dynamic_sampling_gives_up_after_its_tries_and_goes_on_with_what_there_is(tmp_path: Path) -> None:
    objective = {"preset": "dapo", "max_tries": 3}
    # Nearly greedy: the rollouts of a problem are all alike.
    cold = plan("grpo", policies={"generator": {"objective": objective}}, sampling={"temperature": 1e-4})
    engine().copy("generator", "generator", "ref")
    one = ctx(cold)
    rollouts = cold.recipe.rollout(one)
    assert one.drawn == 3 * 4 and len(rollouts) == 4 * 4
    before = weights()
    assert one_turn(cold, tmp_path)["learn/generator/steps"] == 0
    assert all(torch.equal(a, b) for a, b in zip(weights(), before, strict=True))


@pytest.mark.parametrize(("objective", "share"), [({"overlong_buffer": 10}, None), ({}, 4096 / 20480)])
def test_length_shaping_stands_beside_rewards_of_plus_and_minus_one(objective: dict[str, Any], share: float | None) -> None:
    """As in DAPO: beside 0 and 1 it would weigh twice as much, and a right answer at the limit would look wrong. Its own zone
    is a fifth of the limit."""
    whole = {"preset": "dapo", "overlong_filter": False, **objective}
    p = plan("grpo", policies={"generator": {"objective": whole}}, sampling={"max_tokens": 24})
    one = ctx(p)
    rollouts = one.ask("generator", one.problems(), 2)
    limit = one.run.get_max_tokens("generator")
    rewards = outcome_rewards(one, rollouts, p.recipe.objectives["generator"].filter)
    zone = 10 if share is None else share * limit
    expected = [2 * t.correct - 1 + min(0.0, (limit - zone - t.length) / zone) for t in rollouts]
    assert rewards == pytest.approx(expected) and any(limit - zone < t.length for t in rollouts)


def test_a_truncated_solution_that_is_filtered_gets_no_step_credit_either() -> None:
    p = plan("oracle", policies={"generator": {"objective": {"preset": "dapo"}}}, sampling={"max_tokens": 12})
    one = ctx(p)
    rollouts = one.ask("generator", one.problems(), 4)
    assert all(t.finish == "length" for t in rollouts) and any(t.steps for t in rollouts)
    (train_batch,) = p.recipe.credit(one, rollouts)
    assert train_batch.advantages is not None and not any(a.any() for a in train_batch.advantages)


# The way a run ends, and phases.


class _Shaped(Grpo):
    """GRPO with a schedule of the test's own; never registered."""

    made: Schedule

    def schedule(self) -> Schedule:
        return self.made


def shaped(schedule: Schedule, folder: Path, **settings: Any) -> tuple[Loop, RunFolder]:
    engine().copy("generator", "generator", "ref")
    p = plan("grpo", **settings)
    recipe = _Shaped(p.recipe.options, p.recipe.objectives, p.recipe.policies, p.recipe.group_size)
    recipe.made = schedule
    opened = RunFolder(folder, 1)
    changed = Plan(p.config, recipe, p.task, p.roles, p.agents, p.policies)
    return Loop(changed, engine(), opened, LiveView("", None, quiet=True)), opened


def test_a_run_that_ends_at_a_gate_is_measured_at_its_end(tmp_path: Path) -> None:
    gate = Schedule((Phase("generator", 5, Gate("lead_turn", 2)),))
    loop, folder = shaped(gate, tmp_path)
    with folder:
        report = loop.run()
    assert report["turns"] == 2
    assert "eval/generator/accuracy" in loop.rows[-1] and "eval/generator/accuracy" not in loop.rows[1]
    assert report["generator"]["accuracy"]["end"] == loop.rows[-1]["eval/generator/accuracy"]


def test_phases_act_on_the_weights_when_they_are_entered(tmp_path: Path) -> None:
    schedule = Schedule(
        (
            Phase("generator", 1),
            Phase("generator", 1, enter=(Action("snapshot", "generator", "old"),)),
            Phase("generator", 1, enter=(Action("reset", "generator"),)),
        )
    )
    loop, folder = shaped(schedule, tmp_path)
    policy = engine().policy("generator")
    with folder:
        loop.run_turn()
        first = weights()
        loop.run_turn()
        assert all(torch.equal(a, b) for a, b in zip(policy.get_tag("old"), first, strict=True))
        assert any(not torch.equal(a, b) for a, b in zip(weights(), first, strict=True))
        loop.enter_phase(schedule.intro[2], loop.next_cursor())
        assert all(torch.equal(a, b) for a, b in zip(weights(), policy.get_tag("ref"), strict=True))


def test_a_budget_of_compute_ends_a_run(tmp_path: Path) -> None:
    settings = TINY | {"budget": {"tokens": 1500, "flops": 1e18}, "policies": {"generator": FAST}}
    report = milonga.run("grpo", turns=50, out=tmp_path / "run", settings=settings, quiet=True)
    spent = [row["compute/tokens"] for row in JsonLines(tmp_path / "run" / "metrics.jsonl").rows()[1:]]
    assert 1 < report["turns"] < 50
    assert spent[-1] >= 1500 > spent[-2]


def test_what_decays_over_a_budget_of_compute_begins_with_the_first_turn_of_the_lead_agent(tmp_path: Path) -> None:
    """However much of the budget a warm-up took: arms at equal compute differ in it."""
    settings = TINY | {"budget": {"tokens": 6000}, "options": {"warmup": 3}, "policies": {"generator": FAST, "verifier": FAST}}
    milonga.run("tango", turns=50, out=tmp_path / "run", settings=settings, quiet=True)
    rows = JsonLines(tmp_path / "run" / "metrics.jsonl").rows()[1:]
    alphas = [row["credit/generator/alpha"] for row in rows if row["learner"] == "generator"]
    warm_up, first = (rows[at]["compute/tokens"] for at in (2, 3))
    assert [row["lead_turn"] for row in rows[:4]] == [0, 0, 0, 1]
    assert 600 < warm_up < 5400 and rows[-1]["compute/tokens"] >= 6000 > rows[-2]["compute/tokens"]
    assert alphas[0] == pytest.approx(0.3) and len(alphas) > 1
    share = (first - warm_up) / (6000 - warm_up)
    assert alphas[1] == pytest.approx(0.3 * (1e-3 / 0.3) ** share)


# What a recipe may know.


def recipe_files() -> list[Path]:
    package = Path(milonga.__file__).parent
    return sorted([*package.glob("systems/*/*.py"), *package.glob("patterns/*.py")])


@pytest.mark.parametrize("file", recipe_files(), ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_a_recipe_opens_no_files_and_imports_no_torch(file: Path) -> None:
    text = file.read_text()
    modules: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            modules |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            modules.add(node.module.partition(".")[0])
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id not in ("open", "exec", "eval", "__import__")
    plain = {"__future__", "abc", "collections", "dataclasses", "math", "random", "re", "typing"}
    assert modules <= plain | {"milonga", "numpy", "pydantic"}


@pytest.mark.parametrize("name", list(RECIPES))
def test_a_recipe_says_what_it_is(name: str) -> None:
    recipe = RECIPES.get(name)
    assert recipe.name == name and recipe.lead in recipe.agents and recipe.__doc__
    assert all((recipe.granularity, recipe.truth))
    assert set(recipe.bindings) == {"own", "lora", "shared"} and ALLOWED in recipe.bindings.values()


@pytest.mark.parametrize("role", list(ROLES))
@pytest.mark.parametrize("dialect", ["terse", "tagged"])
def test_prompts_hold_the_reference_answer_only_where_the_solution_does(role: str, dialect: Any) -> None:
    solver = StepSolver(dialect)
    secret = {"start": "SECRET-START", "chain": ["SECRET-CHAIN"]}
    problem = Problem("SECRET-ID", "3+4%10", "SECRET-ANSWER", secret)

    def prompt(answer: str) -> str:
        text = solver.write(["3+4=7"], answer)
        solution = Rollout.from_text("SECRET-TRACE", "generator", problem, text, solver.parse(text), Grade(True, (True,)))
        agent = ROLES.get(role)(dialect)
        return "".join(part.text for part in agent.prompt(problem, solution if agent.judges else None))

    if role == "meta_verifier":
        pytest.skip("it judges an analysis, not a solution: what it sees is in tests/test_deepseek_math_v2.py")
    if role == "annotator":
        assert prompt("7").count("SECRET") == prompt("7").count("SECRET-ANSWER") == 1, "it is shown the reference alone"
        return
    assert "SECRET" not in prompt("7")
    shown = ROLES.get(role).judges and ROLES.get(role).kind == "generative"  # a scorer reads the solution behind its prompt
    assert ("SECRET-ANSWER" in prompt("SECRET-ANSWER")) == shown


@pytest.mark.parametrize("task", ["chain", "last_letter"])
def test_what_models_see_of_a_problem_is_its_text_alone(task: str) -> None:
    for problem in make_task({"name": task}).draw_problems("train", 0, 20):
        bare = Problem("other", problem.text, "other")
        for dialect in ("terse", "tagged"):
            assert StepSolver(dialect).prompt(problem) == StepSolver(dialect).prompt(bare)  # type: ignore[arg-type]


def flipped(rollouts: Rollouts) -> None:
    for rollout in rollouts:
        if rollout.grade is not None and rollout.grade.steps is not None:
            rollout.grade = Grade(rollout.grade.correct, tuple(not right for right in rollout.grade.steps))


def credit_of(p: Plan, one: Context, rollouts: Rollouts) -> list[np.ndarray]:
    p.recipe.state = {}
    (train_batch,) = p.recipe.credit(one, rollouts)
    assert train_batch.advantages is not None
    return train_batch.advantages


@pytest.mark.parametrize("recipe", ["grpo", "tango", "frozen", "verifier_only", "oracle"])
def test_only_the_oracle_is_rewarded_by_the_truth_of_steps(recipe: str) -> None:
    engine().copy("generator", "generator", "ref")
    p = plan(recipe)
    one = ctx(p, learner=p.recipe.lead)
    solutions = one.ask("generator", one.problems(), 4)
    checks = [judged(solution) for solution in solutions for _ in range(4 if recipe == "verifier_only" else 1)]
    rollouts = Rollouts([*solutions, *(checks if "verifier" in p.agents else [])])
    before = credit_of(p, one, rollouts)
    flipped(solutions)
    after = credit_of(p, one, rollouts)
    same = all(np.array_equal(a, b) for a, b in zip(before, after, strict=True))
    assert same == (recipe != "oracle")
    if recipe != "verifier_only":
        assert any(array.any() for array in before)


def judged(solution: Rollout) -> Rollout:
    """A verification by hand: the first step is right, the others are not."""
    steps = tuple(k == 0 for k in range(len(solution.steps)))
    check = Rollout.from_text(f"{solution.id}/check", "verifier", solution.problem, "", Parsed(Verification(steps, False), 1.0))
    return replace(check, targets=(solution,), origin="sampled")


def test_step_verdicts_reach_the_tokens_of_their_steps() -> None:
    engine().copy("generator", "generator", "ref")
    p = plan("tango", options={"alpha": 1.0, "alpha_schedule": "constant"})
    one = ctx(p)
    solutions = one.ask("generator", one.problems(), 4)
    advantages = credit_of(p, one, Rollouts([*solutions, *map(judged, solutions)]))
    whole = [(t, a) for t, a in zip(solutions, advantages, strict=True) if len(t.steps) == 2 and a.any()]
    assert whole
    for rollout, array in whole:
        (start, first), (_, last) = rollout.steps
        # The first step is judged right and the second wrong: better before the first ends than after it.
        assert len(set(array[start:first])) == len(set(array[first:last])) == 1
        assert array[start] > array[first] and not array[last:].any() and not array[:start].any()


def test_classes_are_counted_in_checks_and_normalised_as_asked() -> None:
    """RL Tango counts rows: eight checks of one right solution are eight. The verifier's estimator is the one that was set."""
    engine().copy("generator", "generator", "ref")
    p = plan("tango", policies={"verifier": {"objective": {"advantage": "zscore_population"}}})
    one = ctx(p, learner="verifier")
    solutions = one.ask("generator", one.problems())
    said = [Parsed(Verification((True,), number == 0), 1.0) for number in range(8)]
    checks = Rollouts(
        [
            replace(t, id=f"{t.id}/{k}", agent="verifier", targets=(t,), parsed=verdict)
            for t in solutions
            for k, verdict in enumerate(said)
        ]
    )
    right = {t.id: float(number == 0) for number, t in enumerate(solutions)}
    p.recipe.state = {}
    batch = p.recipe.credit_verifier(one, checks, right)  # type: ignore[attr-defined]
    assert (batch.notes["class_right"], batch.notes["class_wrong"]) == (8, 8 * (len(solutions) - 1))
    # The first solution is right: one check of eight says so and earns 1 more. Its z-score over the group's own deviation is
    # sqrt(7), over the unbiased one 7 / sqrt(8); the class weight is that of 8 rows against 8 (n - 1).
    others = len(solutions) - 1
    weight = len(checks) / (8 + 8 * others / math.sqrt(others))
    assert batch.advantages is not None
    assert batch.advantages[0].max() == pytest.approx(math.sqrt(7) * weight, rel=1e-4)
