"""A model's identity for the store: a digest of its weights and configuration."""

import json
from pathlib import Path
from typing import Any, Final

import torch
from safetensors import safe_open
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel
from transformers.utils import cached_file

from kvstore_transformers.weights_digest import CONFIG_FILES, folder_digest, module_digest

# The fields of a configuration that say where the weights come from and how they were loaded.
NOT_OF_THE_MODEL: Final = ("_name_or_path", "dtype")


def model_digest(module: PreTrainedModel) -> str:
    """Returns a model's digest, 64 hexadecimal digits, equal to that of ``kvstore-worker``.

    It is the digest of the files that the model was loaded from, if the class, configuration
    and all weights still equal the files. Otherwise, for example after training, it is the
    digest of the model in memory. Reads all weights once.
    """
    folder = weights_folder(module)
    if folder is not None and is_of_folder(module, folder):
        return folder_digest(folder)
    return module_digest(module)


def weights_folder(module: PreTrainedModel) -> Path | None:
    """Returns the folder that a model was loaded from, or None. Uses no network.

    Looks in the hub's cache too.
    """
    name = str(module.config._name_or_path or "")  # noqa: SLF001 - there is no public reader
    if not name:
        return None
    if Path(name).is_dir():
        return Path(name)
    revision = getattr(module.config, "_commit_hash", None)
    try:
        found = cached_file(name, CONFIG_FILES[0], revision=revision, local_files_only=True)
    except (OSError, ValueError):  # not in the cache, or not a name of the hub
        return None
    return Path(found).parent if found else None


def is_of_folder(module: PreTrainedModel, folder: Path) -> bool:
    """Returns whether ``AutoModelForCausalLM`` would load this model from a folder."""
    try:
        config = AutoConfig.from_pretrained(folder)
    except (OSError, ValueError):
        return False
    # The mapping has no public reader. Some configurations have several classes in it.
    known = AutoModelForCausalLM._model_mapping  # noqa: SLF001
    classes = known.get(type(config), ())
    if type(module) not in (classes if isinstance(classes, tuple | list) else (classes,)):
        return False
    return _said(config) == _said(module.config) and _has_weights(module, folder)


def _said(config: Any) -> dict[str, Any]:  # noqa: ANN401 - transformers is not typed
    said: dict[str, Any] = json.loads(config.to_json_string(use_diff=False))
    return {name: value for name, value in said.items() if name not in NOT_OF_THE_MODEL}


def _has_weights(module: PreTrainedModel, folder: Path) -> bool:
    """Returns whether the tensors of a folder and of a model are the same, in the model's dtype."""
    tensors: dict[str, torch.Tensor] = module.state_dict()
    equal: set[str] = set()
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, "pt") as stored:
            for name in stored.keys():  # noqa: SIM118 - it cannot be iterated
                tensor = tensors.get(name)
                if tensor is None:
                    return False
                if not torch.equal(stored.get_tensor(name).to(tensor.device, tensor.dtype), tensor):
                    return False
                equal.add(name)
    # Tied weights are only once in a file.
    places = {tensors[name].data_ptr() for name in equal}
    return all(tensors[name].data_ptr() in places for name in tensors.keys() - equal)


def weights_stamp(module: PreTrainedModel) -> int:
    """Returns a number that changes when a weight is replaced or written. Reads no weights."""
    return hash(
        tuple(
            (each.data_ptr(), 0 if each.is_inference() else each._version)  # noqa: SLF001
            for each in module.parameters()
        )
    )


def require_weights(module: PreTrainedModel, stamp: int) -> None:
    """Raises ``RuntimeError`` if ``weights_stamp`` has changed."""
    if weights_stamp(module) != stamp:
        raise RuntimeError("the model's weights have changed: make another PrefixStore")
