"""Planning: formulas against numbers worked out by hand, shapes against published counts, the fit against what was measured."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open

import calibrate_plan
import draw_scaling
import milonga
from helpers import PROPERTY, Command
from milonga.cli.shell import console
from milonga.errors import UserError
from milonga.planning import (
    ACCELERATORS,
    SHAPES,
    Lengths,
    Machine,
    Shape,
    Simulation,
    Workload,
    calibrate,
    find_accelerator,
    find_shape,
    make_plan,
    make_plans,
    simulate,
)
from milonga.planning import memory as room
from milonga.planning.calibrate import MEASURED, Measurement, fit_efficiencies, predict_seconds
from milonga.planning.hardware import Accelerator
from milonga.planning.model import (
    Efficiencies,
    learn_parts,
    prefill_parts,
    sample_parts,
    step_parts,
    sum_parts,
)
from milonga.planning.pipeline import compute_cycle_seconds, iterate_publish_times, make_turn_order
from milonga.planning.plan import ENOUGH, Planner, find_fewest_gpus, list_group_sizes
from milonga.planning.workload import Call, Study
from short import short_loop

GIB = 2**30
ROUND = Accelerator("round", flops=1e12, bandwidth=1e11, memory=1e10, link=1e10, network=1e9, price=1.0, node=2)
HALVES = Efficiencies(
    bandwidth=0.5, layer_s=1e-3, prefill=0.5, token_s=1e-5, products=0.5, traffic=10.0, read_s=1e-6, rollout_s=1e-4
)
BY_HAND = Machine(ROUND, HALVES)
SMALL = Shape("small", layers=2, hidden=8, heads=2, kv_heads=1, head_size=4, inner=16, vocabulary=10, tied=True)
"""Parameters: 2 x (2 x 8 x (8 + 4) attention + 3 x 8 x 16 MLP) + 5 norms of 8 + 80 = 1,272."""
ALIKE = Lengths(32, 32, spread=0.0)
H200 = Machine(ACCELERATORS["h200"], calibrate().reached)


def tango(problems: int = 32, rollouts: int = 8, lengths: Lengths = Lengths(512, 1024)) -> Workload:  # noqa: B008
    return Workload("tango", problems, rollouts, 256, lengths, lengths)


def both(name: str) -> dict[str, Shape]:
    return dict.fromkeys(("generator", "verifier"), find_shape(name))


# --- shapes ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("smollm2-135m", 134_515_008),
        ("qwen2.5-1.5b", 1_543_714_304),
        ("qwen2.5-7b", 7_615_616_512),
        ("llama-3-8b", 8_030_261_248),
        ("qwen2.5-32b", 32_763_876_352),
        ("llama-3-70b", 70_553_706_496),
        ("qwen2.5-72b", 72_706_203_648),
        ("deepseek-v3", 671_026_419_200),
    ],
)
def test_parameters_are_those_that_were_published(name: str, parameters: int) -> None:
    assert SHAPES[name].parameters == parameters


def test_what_a_token_costs_by_hand() -> None:
    seven = find_shape("7b")
    assert seven.cache_bytes == 2 * 28 * 4 * 128 * 2
    assert seven.count_bytes_read(np.array([1.0, 99.0])).tolist() == [2.0 * seven.active] * 2
    assert seven.flops(10, 50) == 2 * seven.active * 10 + 4 * 28 * 3584 * 50
    assert seven.flops(10, 0) - seven.flops(10, 0, heads=3) == 2 * 152064 * 3584 * 7
    assert SMALL.parameters == SMALL.active == 1272 and SMALL.cache_bytes == 2 * 2 * 2 * 1 * 4


def test_a_mixture_reads_the_experts_that_rows_are_sent_to() -> None:
    large = SHAPES["deepseek-v3"]
    one, all_of_them = (float(large.count_bytes_read(np.array(rows))) for rows in (1.0, 1e6))
    assert one == pytest.approx(2 * large.active, rel=1e-6) and 36e9 < large.active < 38e9
    assert all_of_them == pytest.approx(2 * (large.parameters - large.embedding), rel=1e-6)
    assert large.cache_bytes == 61 * (512 + 64) * 2, "compressed keys and values"


def test_a_folder_is_counted_as_its_weights_are() -> None:
    folder = Path(milonga.__file__).parent / "embedded" / "base"
    with safe_open(str(folder / "model.safetensors"), "np") as weights:
        stored = sum(math.prod(weights.get_slice(name).get_shape()) for name in weights.keys())  # noqa: SIM118
    shape = find_shape(str(folder))
    assert shape.parameters == stored and shape.source == "config.json"


def test_a_config_of_a_mixture_is_read(tmp_path: Path) -> None:
    config = {
        "model_type": "deepseek_v3", "num_hidden_layers": 61, "hidden_size": 7168, "num_attention_heads": 128,
        "num_key_value_heads": 128, "intermediate_size": 18432, "vocab_size": 129280, "head_dim": 128, "n_routed_experts": 256,
        "num_experts_per_tok": 8, "n_shared_experts": 1, "moe_intermediate_size": 2048, "first_k_dense_replace": 3,
        "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    known = SHAPES["deepseek-v3"]
    assert replace(find_shape(str(tmp_path)), name=known.name, source=known.source) == known
    del config["vocab_size"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match="has no 'vocab_size'"):
        find_shape(str(tmp_path))
    for wrong in ({"num_attention_heads": 0}, {"num_hidden_layers": -2}, {"num_experts_per_tok": 300}, {"hidden_size": 1e400}):
        (tmp_path / "config.json").write_text(json.dumps(config | {"vocab_size": 9} | wrong))
        with pytest.raises(UserError, match="cannot be read"):
            find_shape(str(tmp_path))
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(UserError, match="cannot be read"):
        find_shape(str(tmp_path))


@given(st.floats(1.6, 72))
@PROPERTY
def test_a_size_that_nobody_published_is_interpolated_and_says_so(billions: float) -> None:
    shape = find_shape(f"{billions:.4f}b")
    assert shape.parameters == pytest.approx(billions * 1e9, rel=0.01)
    assert shape.source.startswith("interpolated between qwen2.5-") or shape.name in SHAPES
    assert shape.inner > shape.hidden and shape.heads % 2 == 0


# --- formulas by hand --------------------------------------------------------------------------------------------------------


def test_a_decoding_step_by_hand() -> None:
    rows, context = np.array([10.0]), np.array([100.0])
    found = step_parts(BY_HAND, SMALL, rows, context, tensor=1)
    assert found["weights"][0] == pytest.approx(2 * 1272 / 0.5e11)
    assert found["cache"][0] == pytest.approx(10 * 100 * 32 / 0.5e11)
    assert found["layers"][0] == pytest.approx(2e-3) and found["products"][0] == 0 and "tensor links" not in found


def test_where_computing_takes_longer_it_counts_instead() -> None:
    slow = Machine(replace(ROUND, flops=1e9), HALVES)
    found = step_parts(slow, SMALL, np.array([10.0]), np.array([100.0]), tensor=1)
    assert found["products"][0] == pytest.approx((2 * 1272 * 10 + 4 * 2 * 8 * 10 * 100) / 0.5e9)
    assert found["weights"][0] == found["cache"][0] == 0


def test_an_engine_of_several_gpus_divides_bytes_and_pays_for_sums() -> None:
    rows, context = np.array([10.0]), np.array([100.0])
    one, two, four = (step_parts(BY_HAND, SMALL, rows, context, tensor) for tensor in (1, 2, 4))
    assert two["weights"][0] == one["weights"][0] / 2
    assert two["cache"][0] == one["cache"][0], "one head of keys and values cannot be cut"
    assert two["layers"][0] == one["layers"][0]
    assert two["tensor links"][0] == pytest.approx(4 * (1.0 * 2 * 10 * 8 / 0.7e10 + 10e-6))
    assert four["tensor links"][0] == pytest.approx(4 * (1.5 * 2 * 10 * 8 / 0.7e9 + 30e-6)), "beyond a node of two"


def test_parsed_prompts_by_hand() -> None:
    found = prefill_parts(BY_HAND, SMALL, prompts=3, prompt=100, tensor=1)
    products = 2 * (1272 * 300 - 80 * 297)  # the head is computed at the last token of each
    assert found == {"prompts": pytest.approx((products + 4 * 2 * 8 * 3 * 5000) / 0.5e12)}


def test_a_call_is_the_sum_of_its_steps() -> None:
    call = Call("g", rows=6, prompts=3, prompt=100, lengths=ALIKE)
    found = sample_parts(BY_HAND, SMALL, call, engines=2, tensor=1, slots=512)
    middles = np.arange(32) + 0.5
    steps = step_parts(BY_HAND, SMALL, np.full(32, 3.0), 100 + middles, tensor=1)
    for name in ("weights", "cache", "layers"):
        assert found[name] == pytest.approx(steps[name].sum())
    assert found["host"] == pytest.approx(3 * 32 * 1e-5)
    assert found["prompts"] == prefill_parts(BY_HAND, SMALL, 2, 100, 1)["prompts"], "the fuller engine rules"
    waiting = sample_parts(BY_HAND, SMALL, call, engines=2, tensor=1, slots=1)
    assert waiting["layers"] == pytest.approx(3 * found["layers"]), "one row at a time takes three times as many steps"


def test_links_by_hand() -> None:
    assert ROUND.gather_s(1e9, 1) == 0
    assert ROUND.gather_s(1e9, 2) == pytest.approx(1e9 / 2 / 1e10 / 0.7)
    assert ROUND.gather_s(1e9, 4) == pytest.approx(1e9 / 2 / (2 * 1e9) / 0.7), "half of it comes in by a node's two cards"
    assert ROUND.hand_over_s(1e9, 4, near=False) == pytest.approx(1e9 / 4e9 / 0.7)


def test_learning_by_hand() -> None:
    study = Study("g", rows=8, prompt=68, lengths=ALIKE)
    forward = 2 * (1272 * 800 - 80 * 8 * 68) + 4 * 2 * 8 * 8 * 5000
    one = learn_parts(BY_HAND, SMALL, study, gpus=1, tokens=400, recompute=False)
    assert one["products"] == pytest.approx(3 * forward / 0.5e12)
    each = 2 * (8 * 8 + 2 * (2 * 8 + 2 * 3 * 4 + 3 * 16))
    assert SMALL.activation_bytes == each and one["activations"] == pytest.approx(10 * 800 * each / 1e11)
    assert one["learner host"] == pytest.approx(800e-6)
    assert one["learner links"] == 0 and one["optimizer"] == pytest.approx(30 * 1272 / 0.5e11)
    again = learn_parts(BY_HAND, SMALL, study, gpus=1, tokens=400, recompute=True)
    assert again["products"] == pytest.approx(4 / 3 * one["products"])


def test_only_what_is_not_hidden_of_a_learners_links_counts() -> None:
    study = Study("g", rows=8, prompt=68, lengths=ALIKE)
    sharded = learn_parts(BY_HAND, SMALL, study, gpus=4, tokens=100, recompute=False)
    links = 2 * (2 * ROUND.gather_s(2 * 1272, 4) + ROUND.gather_s(4 * 1272, 4))  # two passes
    compute = sharded["products"] + sharded["activations"]
    assert sharded["learner links"] == pytest.approx(max(0.0, links - compute))
    slow = Machine(replace(ROUND, network=1e5), HALVES)
    exposed = learn_parts(slow, SMALL, study, gpus=4, tokens=100, recompute=False)
    assert exposed["learner links"] == pytest.approx(links * 1e4 - compute, rel=1e-6)


# --- lengths -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lengths", [Lengths(2048, 8192), Lengths(500, 1000, 1.5), Lengths(256, 256, 0.2)])
def test_expected_lengths_are_those_of_draws(lengths: Lengths) -> None:
    drawn = lengths.draw(64 * 2000, 0).reshape(2000, 64)
    assert lengths.truncated_mean() == pytest.approx(drawn.mean(), rel=0.01)
    assert lengths.expected_longest(64) == pytest.approx(drawn.max(axis=1).mean(), rel=0.02)
    ages = (drawn**2).sum() / (2 * drawn.sum())
    assert lengths.mean_tokens_so_far() == pytest.approx(ages, rel=0.02)


def test_lengths_that_are_alike_are_exact() -> None:
    alike = Lengths(300, 1000, spread=0.0)
    assert (
        alike.truncated_mean() == pytest.approx(300)
        and alike.expected_longest(50) == pytest.approx(300)
        and alike.mean_tokens_so_far() == pytest.approx(150)
    )
    assert set(alike.draw(4, 0).tolist()) == {300.0}


# --- memory ------------------------------------------------------------------------------------------------------------------


def test_memory_by_hand() -> None:
    shape = find_shape("1.5b")
    alone = room.compute_pass_memory(shape, 1, 1000, recompute=False)
    assert sum_parts(alone) == pytest.approx(18 * shape.parameters + 1000 * shape.activation_bytes)
    sharded = room.compute_pass_memory(shape, 8, 0, recompute=False)
    assert sharded["moments"] == shape.parameters and sharded["working weights"] == 8 * shape.embedding
    call = Call("g", rows=64, prompts=64, prompt=1000, lengths=Lengths(1000, 1000, 0.0))
    found = room.fit_sampler(ACCELERATORS["h200"], shape, call, rows=64, tensor=2)
    assert found is not None
    assert found.memory == {"weights": shape.parameters, "cache": pytest.approx(64 * 2000 * shape.cache_bytes / 2)}


def test_activations_are_computed_again_only_where_they_must_be() -> None:
    shape, study = find_shape("7b"), Study("g", 8, 1000, Lengths(7000, 7000, 0.0))
    wide, tight = (room.fit_learner(gpu, shape, study, 16) for gpu in (ACCELERATORS["h200"], ACCELERATORS["l40s"]))
    assert wide is not None and not wide.recompute and tight is not None and tight.recompute
    assert room.fit_learner(ACCELERATORS["l40s"], shape, study, 1) is None


@given(
    st.sampled_from(sorted(SHAPES)), st.integers(1, 512), st.integers(1, 512), st.integers(0, 9999), st.integers(0, 9999),
    st.booleans(),
)  # fmt: skip
@PROPERTY
def test_memory_grows_with_tokens_and_shrinks_with_gpus(name: str, a: int, b: int, x: int, y: int, again: bool) -> None:
    few, many, short, long = min(a, b) + 1, max(a, b) + 1, min(x, y), max(x, y)
    shape = SHAPES[name]
    assert sum_parts(room.compute_pass_memory(shape, many, short, again)) <= sum_parts(
        room.compute_pass_memory(shape, few, short, again)
    )
    assert sum_parts(room.compute_pass_memory(shape, few, short, again)) <= sum_parts(
        room.compute_pass_memory(shape, few, long, again)
    )
    assert room.activation_bytes_per_token(shape, True) < room.activation_bytes_per_token(shape, False)


@pytest.mark.parametrize(("name", "gpus"), [("7b", 1), ("72b", 8), ("671b", 64)])
def test_what_does_not_fit_is_refused_with_the_number_that_would(name: str, gpus: int) -> None:
    with pytest.raises(UserError, match=r"do not hold .* it takes at least (\d+) GPUs") as refused:
        make_plan(H200, tango(), both(name), gpus, staleness=1)
    least = find_fewest_gpus(Planner(H200, tango(), both(name), near=False))
    assert least is not None and f"at least {least} GPUs" in str(refused.value)
    before = [size for size in list_group_sizes(least) if size < least]
    plans = make_plans(H200, tango(), both(name), [*before[-1:], least], staleness=1)
    assert plans[-1] is not None and plans[:-1] == [None] * (len(plans) - 1)


def test_who_takes_turns_keeps_the_state_of_all_learners() -> None:
    plan = make_plan(H200, tango(), both("7b"), 8, staleness=0)
    assert plan.best.kind == "colocated"
    state = 16 * find_shape("7b").parameters / 8
    held = [group.memory["learners' state"] for group in plan.best.groups]
    assert held == [pytest.approx(state * others) for others in (2, 2, 1, 1)]


def test_what_is_offloaded_leaves_room_and_costs_time() -> None:
    shape, study = find_shape("7b"), Study("generator", rows=8, prompt=68, lengths=ALIKE)
    each = shape.parameters / 8
    plain, thrifty = (room.fit_learner(H200.gpu, shape, study, 8, offload=offload) for offload in (False, True))
    assert plain is not None and thrifty is not None
    assert "moments" in plain.memory and sum_parts(thrifty.memory) <= sum_parts(plain.memory) - 8 * each + 1
    assert room.fit_learner(replace(H200.gpu, memory=16 * each), shape, study, 8, offload=True) is None, "a step must fit"
    before, after = (make_plan(H200, tango(), both("7b"), 8, 0, offload) for offload in (False, True))
    held = [group.memory["learners' state"] for group in after.best.groups]
    assert after.best.kind == "colocated" and held == [pytest.approx(4 * each * others) for others in (2, 2, 1, 1)]
    learners = [(a, b) for a, b in zip(before.best.groups, after.best.groups, strict=True) if a.work == "learner"]
    moves = 2 * 8 * each / (64e9 * 0.7)
    assert all(sum(parts.get("offload", 0.0) for parts in b.times) == pytest.approx(moves) for _, b in learners)
    assert "offload" not in {name for group in before.best.groups for parts in group.times for name in parts}
    fewest = [find_fewest_gpus(Planner(H200, tango(), both("72b"), near=False, offload=offload)) for offload in (False, True)]
    assert fewest[0] is not None and fewest[1] is not None and fewest[1] < fewest[0]


def test_a_whole_7b_learns_on_one_gpu_of_141_gb_with_offload() -> None:
    """By hand: in a step 4 bytes of weights, 4 of gradients and 8 of moments for each parameter; in a pass 4 + 4, 2 to compute
    with, and activations; to sample 4, and 2 to sample with. Nine tenths of the memory may be used."""
    shape, lengths = find_shape("7b"), Lengths(512, 1024, 0.5)
    assert shape.parameters == 7_615_616_512 and H200.gpu.memory == 141e9
    grpo = Workload("grpo", 32, 8, 256, lengths, lengths)
    plan = make_plan(H200, grpo, {"generator": shape}, 1, staleness=0, offload=True)
    sampler, learner = plan.best.groups
    assert sum_parts(learner.memory) == 16 * 7_615_616_512 == 121_849_864_192 < 0.9 * 141e9
    passing = room.compute_pass_memory(shape, 1, learner.tokens, learner.recompute, offload=True)
    assert sum_parts(passing) == pytest.approx(10 * 7_615_616_512 + learner.tokens * shape.activation_bytes)
    assert learner.tokens >= 256 + 1024 and not learner.recompute
    assert sampler.memory["learners' state"] + sampler.memory["weights"] == 6 * 7_615_616_512
    with pytest.raises(UserError, match="it takes at least 2 GPUs"):
        make_plan(H200, grpo, {"generator": shape}, 1, staleness=0)


def test_what_fits_nowhere_is_refused_too() -> None:
    with pytest.raises(UserError, match="fits on no number of h200"):
        make_plan(H200, tango(lengths=Lengths(1e6, 2_000_000)), both("72b"), 8, staleness=1)


# --- placement ---------------------------------------------------------------------------------------------------------------


def test_a_cycle_by_hand() -> None:
    def cycle(staleness: int, playing: list[float], learning: list[float], counts: list[int]) -> float:
        return float(compute_cycle_seconds([np.array(s) for s in playing], [np.array(s) for s in learning], counts, staleness))

    assert cycle(0, [3.0], [2.0], [1]) == pytest.approx(5)
    assert cycle(1, [3.0], [2.0], [1]) == cycle(3, [3.0], [2.0], [1]) == pytest.approx(3), "the slower side rules"
    assert cycle(0, [3.0, 1.0], [2.0, 4.0], [3, 1]) == pytest.approx(3 * 5 + 5)
    assert cycle(1, [3.0, 1.0], [2.0, 4.0], [3, 1]) == pytest.approx(5 + 3 + 3 + 5), "a single turn never overlaps"


@pytest.mark.parametrize("counts", [[1], [3, 1], [4, 2]])
@pytest.mark.parametrize("staleness", [0, 1, 3])
def test_turns_that_are_played_through_take_what_the_closed_form_says(counts: list[int], staleness: int) -> None:
    playing, learning = [3.0, 5.0][: len(counts)], [2.0, 7.0][: len(counts)]
    filling, kinds = make_turn_order(counts)
    found = list(iterate_publish_times(((kind, playing[kind], learning[kind]) for kind in kinds), staleness))
    mean = (found[-1] - found[filling - 1]) * sum(counts) / (len(found) - filling)
    sides = [[np.array(seconds) for seconds in side] for side in (playing, learning)]
    assert mean == pytest.approx(float(compute_cycle_seconds(sides[0], sides[1], counts, staleness)))
    uneven = [(0, 1.0, 1.0), (0, 1.0, 5.0), (0, 1.0, 1.0), (0, 5.0, 1.0)]
    assert list(iterate_publish_times(uneven, 1)) == [2, 7, 8, 13] and list(iterate_publish_times(uneven, 2)) == [2, 7, 8, 9]


@pytest.mark.parametrize("recipe", ["grpo", "frozen", "tango"])
def test_stretches_are_those_of_the_loop(recipe: str, tmp_path: Path) -> None:
    """What may overlap in a plan is what the loop plays ahead: turns of one learner, up to the next one of another."""
    counts = [turn.times for turn in Workload(recipe, 3, 4, 10, ALIKE, ALIKE).turns()]
    options = {"warmup": 0, "n_generator": counts[0]} if recipe == "tango" else {}
    with short_loop(recipe, tmp_path, {"options": options, "batch": {"problems": 2, "rollouts": 2}}) as loop:
        for count in counts:
            found = len(list(loop.list_prefetchable_turns(loop.next_cursor())))
            assert found == (100 if len(counts) == 1 else count)
            for _ in range(count):
                loop.run_turn()


@given(
    st.sampled_from(["smollm2-135m", "1.5b", "7b"]), st.sampled_from(["tango", "grpo", "frozen"]), st.integers(1, 6),
    st.integers(2, 8), st.integers(0, 3), st.floats(0, 1),
)  # fmt: skip
@settings(PROPERTY, max_examples=8)
def test_more_gpus_are_never_slower(name: str, recipe: str, problems: int, rollouts: int, stale: int, spread: float) -> None:
    lengths = Lengths(400, 1000, spread)
    load = Workload(recipe, 16 * problems, rollouts, 200, lengths, lengths)
    shapes = dict.fromkeys(load.policies, find_shape(name))
    plans = [plan for plan in make_plans(H200, load, shapes, [1, 4, 8, 12, 40], stale) if plan is not None]
    times = [plan.best.turn_s for plan in plans]
    assert len(times) >= 3 and all(after <= ENOUGH * before for before, after in pairwise(times))
    for plan in plans:
        assert plan.best.gpus <= plan.gpus and 0 < plan.best.busy_share <= 1.001
        assert all(sum_parts(group.memory) <= H200.gpu.memory for group in plan.best.groups)
        assert plan.best.turn_s >= max(sum_parts(parts) for parts in plan.best.loads.values()) / load.cycle * (1 - 1e-9)


def test_a_split_is_the_best_of_all_sizes() -> None:
    planner = Planner(H200, tango(8, 4), both("1.5b"), near=True, staleness=2)
    axes = planner.list_group_options(6)
    found = planner.place_split(axes, 6)
    every = [
        planner.make_placement("split", [a, b, c, d])
        for a in axes[0] for b in axes[1] for c in axes[2] for d in axes[3] if a.gpus + b.gpus + c.gpus + d.gpus <= 6
    ]  # fmt: skip
    assert found is not None and len(every) == 15
    assert found.turn_s <= ENOUGH * min(one.turn_s for one in every)


@pytest.mark.parametrize("recipe", ["grpo", "frozen", "tango"])
def test_a_workload_is_what_the_recipe_plays(recipe: str, tmp_path: Path) -> None:
    batch = {"problems": 3, "rollouts": 4}
    options = {"warmup": 0, "n_generator": 1} if recipe == "tango" else {}
    load = Workload(recipe, 3, 4, 10, ALIKE, ALIKE)
    with short_loop(recipe, tmp_path, {"batch": batch, "options": options}) as loop:
        engine: Any = loop.run_context.engine
        sample, learn = engine.sample, engine.learn
        for turn in load.turns():
            calls: list[tuple[str, int]] = []
            learned: list[tuple[str, int]] = []
            engine.sample = lambda p, r, *rest, seen=calls: (seen.append((p, len(r))), sample(p, r, *rest))[1]
            engine.learn = lambda train_batch, *rest, seen=learned: (
                seen.append((train_batch.policy, len(train_batch.rollouts))),
                learn(train_batch, *rest),
            )[1]
            loop.run_turn()
            assert calls == [(call.policy, call.rows) for call in turn.calls]
            assert learned == [(turn.study.policy, turn.study.rows)]


# --- simulation --------------------------------------------------------------------------------------------------------------


def played_out(*args: Any, **kwargs: Any) -> Simulation:
    found = simulate(*args, **kwargs)
    assert found is not None
    return found


def test_what_would_take_long_is_not_simulated(milonga: Command) -> None:
    assert simulate(make_plan(H200, tango(2**12, 16), both("1.5b"), 8, 0)) is None
    done = milonga("plan", "--generator", "1.5b", "--gpus", "8", "--problems", "1000000", "--rollouts", "16")
    assert done.code == 0 and "not simulated: a turn has more than 65,536 rows" in done.out


@pytest.mark.parametrize("staleness", [0, 1, 3])
@pytest.mark.parametrize("recipe", ["grpo", "tango"])
def test_simulation_and_closed_form_agree_where_lengths_are_alike(recipe: str, staleness: int) -> None:
    alike = Lengths(512, 1024, spread=0.0)
    load = Workload(recipe, 32, 16, 256, alike, alike)
    plan = make_plan(H200, load, dict.fromkeys(load.policies, find_shape("7b")), 16, staleness)
    for placement in (plan.best, plan.other):
        assert placement is not None and abs(played_out(plan, placement).difference) < 0.01


def test_a_row_that_waits_takes_the_place_of_one_that_is_done() -> None:
    alike = Lengths(200, 200, spread=0.0)
    load = Workload("grpo", 256, 8, 200, alike, alike)  # four rounds of 512 rows
    plan = make_plan(H200, load, {"generator": find_shape("1.5b")}, 1, 0)
    assert abs(played_out(plan).difference) < 0.01


def test_drawn_lengths_are_near_the_closed_form_and_follow_the_seed() -> None:
    plan = make_plan(H200, tango(64, 8), both("7b"), 16, staleness=2)
    first, again, other = played_out(plan), played_out(plan), played_out(plan, seed=1)
    assert first == again and first.turn_s != other.turn_s
    assert abs(first.difference) < 0.06 and abs(other.difference) < 0.06


# --- calibration -------------------------------------------------------------------------------------------------------------


def test_the_fit_finds_what_made_the_measurements() -> None:
    """Times that the model itself makes, of known efficiencies, give these efficiencies back."""
    true = Efficiencies(0.6, 3e-5, 0.5, 1e-6, 0.7, 12.0, 1e-6, 1e-4)
    gpu, seen = calibrate().gpu, calibrate().measurements
    made = [replace(one, seconds=predict_seconds(one, gpu, true)) for one in seen]
    found = asdict(fit_efficiencies(made, gpu))
    assert found == {name: pytest.approx(value, rel=1e-6) for name, value in asdict(true).items()}


def test_no_unknown_is_negative() -> None:
    gpu, seen = calibrate().gpu, calibrate().measurements
    faster = [replace(one, seconds=one.seconds * (0.1 if one.kind == "sample" else 1)) for one in seen]
    assert all(value >= 0 for value in asdict(fit_efficiencies(faster, gpu)).values())


def test_the_model_predicts_what_was_measured() -> None:
    """Bounds are a little above what is now: a worse formula, or a worse measurement, must be looked at."""
    found = calibrate().errors()
    assert found["median"] < 0.04 and found["from the smallest model, worst"] < 0.22
    bounds = {"sampling": 0.06, "learning": 0.11, "between": 0.25}
    for check in calibrate().checks:
        # Of a small model's pass three fifths are no products: one number for each part is too simple there.
        bound = 0.30 if check.one.shape == "smollm2-135m" and check.one.tokens else bounds[check.one.group]
        assert abs(check.error(check.unseen)) < bound, check.one.name
    for one in calibrate().held:
        assert abs(one.predicted_bytes / one.size - 1) < (0.03 if one.shape == "qwen2.5-1.5b" else 0.07), one.name


def test_an_unseen_measurement_is_not_seen() -> None:
    found = calibrate()
    seen = [replace(one, seconds=one.seconds * (1 + (one.name == "tango: verify"))) for one in found.measurements]
    spoilt = replace(found, measurements=tuple(seen))
    (before,) = (check for check in found.checks if check.one.name == "tango: verify")
    (after,) = (check for check in spoilt.checks if check.one.name == "tango: verify")
    assert after.unseen == pytest.approx(before.unseen) and after.fitted > 1.05 * before.fitted


def test_measurements_are_those_of_the_benchmarks() -> None:
    assert MEASURED.read_text(encoding="utf-8") == calibrate_plan.text()
    assert all(isinstance(one, Measurement) and one.seconds > 0 for one in calibrate().measurements)


def test_only_what_was_measured_is_called_calibrated() -> None:
    def standing(name: str, gpus: int = 1, gpu: str = "h200", tokens: int = 256, problems: int = 64) -> str:
        alike = Lengths(tokens, tokens, 0.0)
        load = Workload("grpo", problems, 8, 125, alike, alike)
        machine = Machine(find_accelerator(gpu), calibrate().reached)
        plan = make_plan(machine, load, {"generator": find_shape(name)}, gpus, 0)
        return plan.classify_standing(plan.best, calibrate())

    assert standing("135m") == standing("1.5b") == "calibrated"
    assert {standing("3b"), standing("135m", gpu="h100"), standing("135m", tokens=900), standing("135m", problems=4)} == {
        "model"
    }
    assert standing("1.5b", gpus=8) == "model"


def test_planning_needs_no_torch() -> None:
    code = "import sys, milonga.cli.plan; sys.exit(any(name in sys.modules for name in ('torch', 'transformers')))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# --- the command and its page ------------------------------------------------------------------------------------------------


def test_the_command_prints_tables_with_model_beside_every_number(milonga: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console, "width", 200)  # workers of pytest have a width of their own
    done = milonga("plan", "--generator", "7b", "--verifier", "7b", "--gpus", "64", "--all")
    assert done.code == 0 and done.err == ""
    rows = (" a turn", " GPU", "   from", "   sampling", " bound", " cost")
    numbers = [line for line in done.out.splitlines() if line.startswith(rows)]
    assert len(numbers) == 9 and all(line.count("model") == 2 for line in numbers)
    for word in (
        "qwen2.5-7b",
        "sampling : learning",
        "assumptions:",
        "simulated, ",
        "-22.0%",
        "error on what a fit did not see",
    ):
        assert word in done.out, word


def test_json_has_all_of_it(milonga: Command) -> None:
    done = milonga(
        *(
            "plan",
            "--recipe",
            "grpo",
            "--generator",
            "14b",
            "--gpus",
            "8",
            "--gpu",
            "h100",
            "--price",
            "2",
            "--turns",
            "10",
            "--json",
        )
    )
    data = done.json
    assert list(data) == [
        "recipe", "models", "gpu", "workload", "price", "best", "other", "simulation", "assumptions", "calibration",
    ]  # fmt: skip
    assert data["models"]["generator"]["source"] == "interpolated between qwen2.5-7b and qwen2.5-32b"
    best = data["best"]
    assert best["standing"] == "model" and best["kind"] in ("colocated", "split")
    assert best["gpu_hours"] == pytest.approx(10 * best["turn_s"] / 3600 * best["gpus"])
    assert best["cost"] == pytest.approx(2 * best["gpu_hours"]) and data["price"] == {"hour": 2.0, "assumed": False}
    for group in best["groups"]:
        assert group["turn_s"] == pytest.approx(sum(group["parts_s"].values()))
        assert group["memory_total"] == pytest.approx(sum(group["memory"].values())) and group["memory_total"] < 80e9
    assert len(data["calibration"]["checks"]) == len(calibrate().measurements)
    assert set(data["calibration"]["checks"][0]) == {
        "name", "source", "measured_s", "unseen_s", "error", "error_from_smallest",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--generator", "7bb", "--gpus", "8"], "did you mean '7b'?"),
        (["--generator", "100b", "--gpus", "8"], "no shape of 100b"),
        (["--generator", "7b", "--gpus", "0"], "--gpus"),
        (["--generator", "7b", "--gpus", "8", "--gpu", "h2000"], "did you mean 'h200'?"),
        (["--generator", "7b", "--gpus", "8", "--recipe", "tengo"], "did you mean 'tango'?"),
        (["--generator", "7b", "--verifier", "7b", "--gpus", "8", "--recipe", "grpo"], "has no verifier"),
        (["--generator", "7b", "--gpus", "8", "--mean", "4000"], "beyond the limit"),
        (["--generator", "7b", "--gpus", "8", "--price", "inf"], "--price"),
        (["--generator", "671b", "--gpus", "8"], "it takes at least"),
    ],
)
def test_nonsense_is_one_line(milonga: Command, arguments: list[str], says: str) -> None:
    done = milonga("plan", *arguments)
    assert done.code == 2 and done.out == "" and len(done.err.splitlines()) == 1 and says in done.err


def test_the_page_shows_what_the_code_gives_now() -> None:
    scaling = draw_scaling.Scaling()
    page = draw_scaling.PAGE.read_text(encoding="utf-8")
    assert page == draw_scaling.written(page, scaling.tables()), "run scripts/draw_scaling.py"
    drawn = draw_scaling.PICTURE.read_text(encoding="utf-8")
    assert drawn == draw_scaling.make_standalone(scaling.picture()), "run scripts/draw_scaling.py"
