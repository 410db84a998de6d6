"""Model folders and checkpoints that somebody else made: weights and nothing else, from here, and finite."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from milonga.checksum import checksum
from milonga.config import PolicySection
from milonga.engine.base import Decoding, Request
from milonga.engine.local import LocalEngine
from milonga.engine.local.models import check_model, load_model, make_source, resolve_model_path
from milonga.errors import ConfigError, RunFolderError, UserError
from milonga.pair import Pair
from milonga.runfolder.checkpoints import MARKER
from milonga.types import Parsed, Problem, Rollout, Segment

torch.set_num_threads(1)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model folder, as somebody else would send it."""
    return shutil.copytree(resolve_model_path("embedded"), tmp_path / "model")


def edit_json(file: Path, **fields: Any) -> None:
    file.write_text(json.dumps((json.loads(file.read_text()) if file.exists() else {}) | fields))


def pickle_weights(model: Path) -> None:
    torch.save(load_file(model / "model.safetensors"), model / "pytorch_model.bin")
    (model / "model.safetensors").unlink()


def index_pickles(model: Path, index: str = "model", file: str = "pytorch_model.bin") -> None:
    pickle_weights(model)
    (model / "pytorch_model.bin").rename(model / file)
    edit_json(model / f"{index}.safetensors.index.json", metadata={}, weight_map={"lm_head.weight": file})


MODELS: dict[str, tuple[Callable[[Path], object], str]] = {
    "pickled weights": (pickle_weights, "a pickle"),
    "pickled weights in an index": (index_pickles, "names the weights 'pytorch_model.bin'"),
    "pickled weights in another index": (
        lambda model: index_pickles(model, "other", "pickle.safetensors.index.json"),
        "names the weights 'pickle.safetensors.index.json'",
    ),
    "weights of another folder": (
        lambda model: edit_json(model / "config.json", transformers_weights="../other.safetensors"),
        r"names the weights '\.\./other\.safetensors'",
    ),
    "pickled weights in the config": (
        lambda model: edit_json(model / "config.json", transformers_weights="adapter_model.bin"),
        "names the weights 'adapter_model.bin'",
    ),
    "an adapter beside it": (
        lambda model: edit_json(model / "adapter_config.json", base_model_name_or_path="somebody/model"),
        "is an adapter",
    ),
    "a kernel of the hub": (
        lambda model: edit_json(model / "config.json", text_config={"_attn_implementation": "somebody/kernel"}),
        "asks for the kernel 'somebody/kernel'",
    ),
}


@pytest.mark.parametrize("case", MODELS)
def test_a_model_folder_that_would_load_more_than_weights_is_refused(model: Path, case: str) -> None:
    prepare, said = MODELS[case]
    check_model(str(model))
    prepare(model)
    with pytest.raises(ConfigError, match=said):
        check_model(str(model))


HIDDEN = {
    "a number that is none": '{"metadata": {"total_size": NaN}, "weight_map": %s}',
    "a key twice": '{"metadata": {}, "metadata": {}, "weight_map": %s}',
    "deep nesting": '{"metadata": {"a": ' + "[" * 100 + "]" * 100 + '}, "weight_map": %s}',
    "a long number": '{"metadata": {"total_size": ' + "9" * 400 + '}, "weight_map": %s}',
    "half a character": '{"metadata": {"a": "\\ud800"}, "weight_map": %s}',
    "a list around it": '[{"weight_map": %s}]',
}


@pytest.mark.parametrize("weights", ["weights.bin", "../other/model.safetensors"])
@pytest.mark.parametrize("case", HIDDEN)
def test_an_index_that_cannot_be_read_is_not_followed(model: Path, case: str, weights: str) -> None:
    """transformers reads what our reader of JSON refuses."""
    shutil.copytree(model, model.parent / "other")
    tensors = load_file(model / "model.safetensors")
    torch.save(tensors, model / "weights.bin")
    (model / "model.safetensors").rename(model / "x.safetensors")
    (model / "model.safetensors.index.json").write_text(HIDDEN[case] % json.dumps(dict.fromkeys(tensors, weights)))
    with pytest.raises(ConfigError, match=r"model\.safetensors\.index\.json cannot be read") as refused:
        check_model(str(model))
    assert "\n" not in str(refused.value)


def test_a_config_may_hold_infinity_and_name_a_kernel_that_torch_replaces(model: Path) -> None:
    edit_json(model / "config.json", time_step_limit=[0.0, float("inf")], _attn_implementation="flash_attention_2")
    check_model(str(model))
    found, plain = (load_model(name).state_dict() for name in (str(model), "embedded"))
    assert found.keys() == plain.keys() and all(torch.equal(found[key], plain[key]) for key in plain)


@pytest.mark.parametrize("key", ["n_layer", "num_layers", "decoder_layers", "depths", "num_experts", "n_routed_experts"])
def test_more_layers_or_experts_than_any_model_has_are_refused(model: Path, key: str) -> None:
    edit_json(model / "config.json", text_config={key: [2, 10**6] if key == "depths" else 10**6})
    with pytest.raises(ConfigError, match=f"{key} is 1000000; no model has more than 10000"):
        check_model(str(model))


def test_sizes_that_are_named_after_layers_or_experts_may_be_large(model: Path) -> None:
    edit_json(model / "config.json", vocab_size_per_layer_input=262_144, shared_expert_intermediate_size=20_480)
    check_model(str(model))


def test_whatever_a_config_calls_them_so_many_modules_are_not_made(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load_model(str(model))
    monkeypatch.setattr("milonga.engine.local.models.MOST_MODULES", 10)
    with pytest.raises(ConfigError, match="cannot be loaded: its config asks for more than 10 modules"):
        load_model(str(model))


ODD: dict[str, tuple[str, dict[str, Any]]] = {
    "a text as an end": ("generation_config.json", {"eos_token_id": ["x"]}),
    "a huge end": ("generation_config.json", {"eos_token_id": 10**400}),
    "a huge end within 64 bits": ("generation_config.json", {"eos_token_id": [10**12]}),
    "no layers": ("config.json", {"num_hidden_layers": -1}),
    "a window of text": ("config.json", {"sliding_window": "x"}),
    "a list as a length": ("tokenizer_config.json", {"model_max_length": []}),
}


@pytest.mark.parametrize("case", ODD)
def test_odd_values_in_a_model_folder_are_one_line(model: Path, case: str) -> None:
    file, fields = ODD[case]
    edit_json(model / file, **fields)
    check_model(str(model))
    with pytest.raises(ConfigError, match="cannot be loaded: ") as refused:
        LocalEngine({"generator": PolicySection(model=str(model))}, "cpu")
    assert "\n" not in str(refused.value)


def test_an_adapter_beside_a_file_of_weights_is_not_loaded_with_it(tmp_path: Path) -> None:
    pytest.importorskip("gguf")
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    check_model(str(tmp_path / "model.gguf"))
    edit_json(tmp_path / "adapter_config.json", base_model_name_or_path="somebody/model")
    with pytest.raises(ConfigError, match=r"has an adapter_config\.json beside it"):
        check_model(str(tmp_path / "model.gguf"))


def test_code_of_a_model_folder_is_never_run(model: Path) -> None:
    (model / "evil.py").write_text("from pathlib import Path\nPath(__file__).with_name('it-ran').touch()\n")
    edit_json(model / "config.json", model_type="evil", auto_map={"AutoConfig": "evil.C", "AutoModelForCausalLM": "evil.M"})
    with pytest.raises(ConfigError, match="cannot be loaded"):
        load_model(str(model))
    assert not (model / "it-ran").exists()


def test_no_kind_of_model_is_loaded_with_code_of_its_own() -> None:
    for name in ("embedded", "./folder", "a/hub-name", "./folder/file.gguf", "a/hub-name/file.gguf"):
        source = make_source(name)
        assert source["trust_remote_code"] is False
        assert source["local_files_only"] is not name.startswith("a/")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -3e38, 1e20])
def test_weights_that_are_not_finite_are_refused(model: Path, trained: Path, tmp_path: Path, value: float) -> None:
    file = model / "model.safetensors"
    weights = load_file(file)
    weights[max(weights)][0] = value
    save_file(weights, file, metadata={"format": "pt"})
    with pytest.raises(ConfigError, match="are not finite"):
        load_model(str(model))
    run = shutil.copytree(trained, tmp_path / "run")
    newest = max((run / "checkpoints").iterdir())
    state = load_file(newest / "generator.safetensors")
    state[next(key for key in state if key.startswith("live/"))].view(-1)[-1] = value
    save_file(state, newest / "generator.safetensors")
    marker = json.loads((newest / MARKER).read_text())
    marker["files"]["generator.safetensors"]["crc32"] = checksum(newest / "generator.safetensors")
    (newest / MARKER).write_text(json.dumps(marker))
    with pytest.raises(RunFolderError, match="policy 'generator' are not finite"):
        Pair.open(run)


def test_weights_that_overflow_in_a_pass_are_one_line_where_they_are_first_used(model: Path) -> None:
    weights = load_file(model / "model.safetensors")
    for key, large in (("model.norm.weight", 1e19), ("model.embed_tokens.weight", 1e18)):  # the last two factors of a logit
        weights[key] = torch.where(weights[key] < 0, -large, large).float()
    save_file(weights, model / "model.safetensors", metadata={"format": "pt"})
    engine = LocalEngine({"generator": PolicySection(model=str(model))}, "cpu")
    prompt = np.arange(4)
    for greedy in (False, True):
        with pytest.raises(UserError, match="policy 'generator' computes numbers that are not finite"):
            engine.sample("generator", [Request(prompt, 1)], Decoding(max_tokens=2, greedy=greedy))
    ids = np.append(prompt, prompt[:1])
    spoken = (Segment("generator", len(prompt), len(ids), "generator", 0, trained=True),)
    row = Rollout("a", "generator", Problem("a", "3+4%100", "7"), ids, spoken, np.zeros(len(ids)), "", Parsed(None, 0.0))
    with pytest.raises(UserError, match="policy 'generator' computes numbers that are not finite"):
        engine.score("generator", [row])
