"""Who goes where, reckoned before anything is started: no Ray cluster is needed for it."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray")

from engine_helpers import model_folder, section
from helpers import Command
from milonga.config import PlacementSection, PolicySection, VllmSection
from milonga.engine.local import LocalEngine
from milonga.engine.local.engine import group_by_sampler
from milonga.engine.local.vllm_sampler import iterate_parameters, iterate_weights
from milonga.engine.ray import layout
from milonga.engine.ray.layout import Machine, Need
from milonga.engine.ray.sharding import GroupDataParallel
from milonga.errors import ConfigError, UserError
from milonga.resolve import resolve

GIB = 2**30


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


def needs(
    sections: dict[str, PolicySection],
    machines: list[Machine],
    device: str = "cpu",
    vllm: VllmSection | None = None,
    **options: Any,
) -> dict[str, Need]:
    sizes = {name: layout.compute_size(p) for name, p in sections.items()}
    found = layout.compute_needs(sections, sizes, PlacementSection(**options), device, vllm, machines)
    return {need.name: need for need in found}


CORES = [Machine("here", 4, 0, 8 * GIB)]
GPUS = [Machine("left", 8, 2, 64 * GIB, 40 * GIB), Machine("right", 8, 2, 64 * GIB, 40 * GIB)]


@pytest.mark.parametrize("lora", [None, {"rank": 4}, {"rank": 4, "targets": ["q_proj", "down_proj"]}])
@pytest.mark.parametrize("arch", ["llama", "qwen2"])
def test_sizes_are_those_of_the_loaded_models(root: Path, arch: str, lora: dict[str, Any] | None) -> None:
    chosen = section(model_folder(root, arch), lora=lora)
    policy = LocalEngine({"p": chosen}, device="cpu").policy("p")
    size = layout.compute_size(chosen)
    assert size.trained == sum(p.numel() for p in policy.parameters)
    base = sum(p.numel() for n, p in policy.causal.named_parameters() if "lora_" not in n)
    assert size.total == base and size.block < base


def test_what_a_learner_holds_shrinks_with_their_number_and_what_it_keeps(root: Path) -> None:
    plain = {"p": section(model_folder(root), micro_tokens=1)}

    def each(policies: dict[str, PolicySection], **options: Any) -> int:
        return needs(policies, CORES, **options)["learners of p"].bytes

    size = layout.compute_size(plain["p"])
    assert each(plain) > 4 * 4 * size.total, "weights, gradients and two moments"
    assert each({"p": section(model_folder(root), micro_tokens=1, ema=0.9)}) == each(plain) + 4 * size.total
    assert each(plain, learners=4, samplers=1) < each(plain, learners=2, samplers=1) < each(plain, samplers=1)
    assert each(plain, learners=4, samplers=1) < each(plain, learners=4), "to sample, shards are gathered"
    assert each({"p": section(model_folder(root), micro_tokens=1, lora={"rank": 4})}) < each(plain)


def test_what_is_offloaded_counts_on_the_host(root: Path) -> None:
    """The GPU must hold the most that is there at once: here the moments, in a step; with long passes, those."""
    size = layout.compute_size(section(model_folder(root)))

    def need(vllm: VllmSection | None = None, learners: int = 1, where: list[Machine] = GPUS, **options: Any) -> Need:
        made = section(model_folder(root), **{"micro_tokens": 1, **options})
        found = needs({"p": made}, where, "auto", vllm, learners=learners, samplers=int(learners > 1))
        return found["learners of p"]

    rests = need(offload=True, ema=0.9)
    assert rests.bytes == 4 * 4 * size.total and rests.host == 4 * 3 * size.total, "two moments and the average"
    token = need(offload=True, micro_tokens=10**6).bytes - need(offload=True, micro_tokens=10**6 - 1).bytes
    assert need(ema=0.9).bytes == 4 * 5 * size.total + token
    assert need(offload=True, optimism=True).bytes == 4 * 5 * size.total
    assert need(offload=True, learners=2).bytes < need(learners=2).bytes
    assert need(VllmSection(), offload=True).host == 4 * (2 + 1) * size.total, "and the weights, while vLLM samples"
    line = layout.format_lines([rests], GPUS)[0]
    assert "GiB of the GPU and" in line and "GiB of the host" in line
    assert need(offload=True, where=CORES) == need(where=CORES), "a CPU has one memory"
    with pytest.raises(UserError, match=r"and 65\.00 GiB of the host; left are"):
        layout.place_workers([Need("x", 1, 1, 1, GIB, 65 * GIB)], GPUS)


def test_adapters_on_one_base_share_samplers_and_heads_have_none(root: Path) -> None:
    one, other = model_folder(root), model_folder(root, "qwen2")
    adapted = {"a": section(one, lora={"rank": 4}), "b": section(one, lora={"rank": 4}), "c": section(other, lora={"rank": 4})}
    policies = adapted | {"d": section(one), "e": section(one, kind="scalar")}
    assert group_by_sampler(policies) == [["a", "b"], ["c"], ["d"]]
    found = needs(policies, CORES, samplers=1, cpus=0.1, policies={"d": {"samplers": 3, "cpus": 0.5}})
    assert found["samplers of a, b"].workers == 1 and "samplers of e" not in found
    assert (found["samplers of d"].workers, found["samplers of d"].cpus) == (3, 0.5)


def test_workers_are_put_where_there_is_room(root: Path) -> None:
    found = needs({"p": section(model_folder(root))}, GPUS, "auto", learners=3, samplers=1)
    assert layout.place_workers(list(found.values()), GPUS) == [["left", "left", "right"], ["right"]]
    assert all(need.gpus == 1 for need in found.values())
    assert "3 x (1 CPU, 1 GPU" in layout.format_lines(list(found.values()), GPUS)[0]


@pytest.mark.parametrize(
    ("need", "told"),
    [
        (Need("x", 5, 1, 0, GIB), "1 of 5 workers do not fit. Each needs 1 CPU, 0 GPU and 1.00 GiB; left are here 0 CPU"),
        (Need("x", 3, 1, 0, 3 * GIB), "1 of 3 workers do not fit"),
        (Need("x", 1, 1, 1, GIB), "1 of 1 workers do not fit. Each needs 1 CPU, 1 GPU"),
    ],
)
def test_what_cannot_fit_is_refused_with_the_numbers(need: Need, told: str) -> None:
    with pytest.raises(UserError, match=told.replace(".", r"\.")):
        layout.place_workers([need], CORES)


def test_a_gpu_that_is_too_small_is_refused() -> None:
    layout.place_workers([Need("x", 4, 1, 1, 39 * GIB)], GPUS)
    with pytest.raises(UserError, match=r"GPUs of 40\.0 GiB"):
        layout.place_workers([Need("x", 1, 1, 1, 41 * GIB)], GPUS)
    with pytest.raises(UserError, match="do not fit"):
        layout.place_workers([Need("x", 1, 1, 0.5, 21 * GIB)], GPUS)


def test_a_part_of_a_gpu_is_of_one_gpu() -> None:
    layout.place_workers([Need("x", 4, 1, 0.6, GIB), Need("y", 4, 1, 0.4, GIB)], GPUS)
    with pytest.raises(UserError, match=r"1 of 5 workers do not fit.*left 7\.8 CPU, 0 \+ 0\.4 \+ 0\.4 GPU"):
        layout.place_workers([Need("x", 5, 0.1, 0.6, GIB)], GPUS)
    with pytest.raises(UserError, match="1 of 1 workers do not fit"):
        layout.place_workers([Need("x", 4, 1, 0.1, GIB), Need("y", 1, 1, 2, GIB)], GPUS[:1])


@pytest.mark.parametrize(
    ("device", "options", "told"),
    [
        ("cuda:1", {}, "Ray chooses the GPU"),
        ("cuda", {}, "no machine of the cluster has a GPU"),
        ("cpu", {"gpus": 1.0}, "placement.gpus is 1"),
        ("auto", {"gpus": 0.5}, "there are none"),
        ("auto", {"gpus": 1.5}, "a part of one GPU, or whole ones"),
    ],
)
def test_devices_that_make_no_sense_are_refused(root: Path, device: str, options: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        needs({"p": section(model_folder(root))}, CORES, device, **options)


def test_what_sharded_learners_cannot_do_is_refused(root: Path) -> None:
    with pytest.raises(ConfigError, match="recompute"):
        needs({"p": section(model_folder(root), recompute=True)}, CORES, learners=2)


ONE_GPU = [Machine("here", 8, 1, 64 * GIB, 40 * GIB)]
VLLM = VllmSection()


@pytest.mark.parametrize(
    ("transfer", "vllm", "machines", "options", "told"),
    [
        ("nccl", None, GPUS, {"samplers": 1}, "set sampling.sampler=vllm"),
        ("nccl", VLLM, GPUS, {}, "set placement.samplers"),
        ("nccl", VLLM, CORES, {"samplers": 1}, "it takes GPUs"),
        ("ipc", VLLM, CORES, {"samplers": 1}, "it takes GPUs"),
        ("nccl", VLLM, ONE_GPU, {"samplers": 1, "gpus": 0.5}, "NCCL needs two GPUs, and workers with 0.5"),
        ("ipc", VLLM, GPUS, {"samplers": 1, "gpus": 0.5}, "must share a GPU"),
        ("ipc", VLLM, ONE_GPU, {"samplers": 1, "learners": 2, "gpus": 0.3}, "must share a GPU"),
    ],
)
def test_transfers_that_cannot_be_are_refused(
    root: Path, transfer: str, vllm: VllmSection | None, machines: list[Machine], options: dict[str, Any], told: str
) -> None:
    policies = {"p": section(model_folder(root))}
    with pytest.raises(ConfigError, match=f"placement.transfer is {transfer}, but for policy 'p' .*{told}"):
        needs(policies, machines, "auto", vllm, transfer=transfer, **options)
    unaffected = {"q": section(model_folder(root), lora={"rank": 4}), "r": section(model_folder(root), kind="scalar")}
    needs(unaffected, machines, "auto", vllm, transfer=transfer, **options)
    needs(policies, machines, "auto", vllm, **options)


@pytest.mark.parametrize(
    ("transfer", "machines", "options", "by"),
    [
        ("auto", GPUS, {}, None),
        ("store", GPUS, {}, None),
        ("nccl", GPUS, {"learners": 2}, "nccl"),
        ("ipc", ONE_GPU, {"gpus": 0.5}, "ipc"),
    ],
)
def test_transfers_are_of_whole_weights(
    root: Path, transfer: str, machines: list[Machine], options: dict[str, Any], by: str | None
) -> None:
    placement = PlacementSection(samplers=1, transfer=transfer, **options)
    whole, adapted = section(model_folder(root)), section(model_folder(root), lora={"rank": 4})
    layout.place_workers(
        list(needs({"p": whole}, machines, "auto", VLLM, samplers=1, transfer=transfer, **options).values()), machines
    )
    assert (layout.choose_transfer(whole, placement), layout.choose_transfer(adapted, placement)) == (by, None)


@pytest.mark.parametrize("arch", ["llama", "qwen2"])
def test_a_checkpoint_has_the_names_and_shapes_of_a_folder(root: Path, arch: str) -> None:
    policy = LocalEngine({"p": section(model_folder(root, arch))}, device="cpu").policy("p")
    made = {name: tuple(tensor.shape) for name, tensor in iterate_weights(policy)}
    assert made == {name: tuple(tensor.shape) for name, tensor in policy.causal.state_dict().items()}
    assert "lm_head.weight" in made, "tied or not"
    assert list(made) == [name for name, _ in iterate_parameters(policy)]


def test_a_policy_that_is_not_there_is_named() -> None:
    with pytest.raises(ConfigError, match="unknown policy 'generatr': did you mean 'generator'"):
        resolve([{"recipe": "tango", "engine": "ray", "placement": {"policies": {"generatr": {"learners": 2}}}}])


def test_a_resolved_placement_resolves_to_itself() -> None:
    given = {"learners": 2, "policies": {"verifier": {"learners": 1}}}
    plan = resolve([{"recipe": "tango", "engine": "ray", "placement": given}])
    again = resolve([plan.config.model_dump(mode="json", exclude_none=True)])
    assert again.config == plan.config
    assert (
        again.config.placement.for_policy("generator").learners,
        again.config.placement.for_policy("verifier").learners,
    ) == (2, 1)


def test_a_dry_run_shows_who_goes_where_and_refuses_what_cannot_fit(milonga: Command) -> None:
    options = ("--engine", "ray", "--dry-run", "--set", "device=cpu", "--set", "placement.cpus=0.5")
    told = milonga("run", "tango", *options)
    assert told.code == 0 and told.out.count("# learners of ") == 2 and "1 x (0.5 CPU, 0 GPU, 0." in told.out
    assert len(milonga("run", "tango", *options, "--json").json["placement"]) == 2
    refused = milonga("run", "tango", *options, "--set", "placement.learners=1000")
    assert refused.code == 2 and "of 1000 workers do not fit" in refused.err and "Traceback" not in refused.err


@pytest.mark.parametrize("address", ["127.0.0.1:{free}", "127.0.0.1:99999999", "..:6379"])
def test_a_cluster_that_is_not_there_is_said_at_once(address: str, milonga: Command) -> None:
    """Ray itself would knock for many minutes."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))  # nobody listens there
        address, began = address.format(free=held.getsockname()[1]), time.monotonic()
        done = milonga("run", "tango", "--engine", "ray", "--dry-run", "--set", f"placement.address={address}")
    assert done.code == 2 and len(done.err.splitlines()) == 1 and f"the Ray cluster at '{address}' cannot be joined" in done.err
    assert time.monotonic() - began < 30


def test_a_cluster_starts_and_ends_without_a_word() -> None:
    code = (
        "from milonga.config import PlacementSection; from milonga.engine.ray import cluster; import ray; "
        "assert cluster.connect(PlacementSection(), 0); ray.shutdown()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == done.stderr == ""


@pytest.mark.parametrize("units", [None, [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5]])
def test_rows_are_dealt_out_whole_and_evenly(units: list[int] | None) -> None:
    sizes = [5, 90, 3, 44, 12, 71, 8, 60, 33, 25, 2]
    shares = []
    for rank in range(3):
        parallel = GroupDataParallel.__new__(GroupDataParallel)
        parallel.rank, parallel.workers = rank, 3
        shares.append(parallel.select_own_rows(sizes, units))
    assert sorted(row for share in shares for row in share) == list(range(11))
    if units is not None:
        owners = [{units[row] for row in share} for share in shares]
        assert not owners[0] & owners[1] and not owners[1] & owners[2] and not owners[0] & owners[2]
    tokens = [sum(sizes[row] for row in share) for share in shares]
    assert max(tokens) < 2.5 * min(tokens)
