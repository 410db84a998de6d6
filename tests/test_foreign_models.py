"""Model folders and checkpoints that somebody else made: weights and nothing else, from here, and finite."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from milonga.checksum import checksum
from milonga.engine.local.models import check_model, load_model, make_source, resolve_model_path
from milonga.errors import ConfigError, RunFolderError
from milonga.pair import Pair
from milonga.runfolder.checkpoints import MARKER

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


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
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
