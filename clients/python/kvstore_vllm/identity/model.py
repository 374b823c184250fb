"""The identity of a model: a digest of everything that an engine's KV depends on, never a name."""

import json
from dataclasses import dataclass
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from kvstore_client import NamespaceIdentity, PageLayout
from kvstore_client.engines.canonical import (
    UnidentifiableModel,
    canonical_json,
    framed,
    mixed_salt,
    text_bytes,
)
from kvstore_client.engines.model_folder import folder_digest, hub_snapshot
from kvstore_client.engines.setting_values import cut_name
from kvstore_vllm.engine.connector_settings import ConnectorSettings
from kvstore_vllm.identity.config_factors import config_factors, part_factors

MARK: Final = b"kvstore_vllm model 1"
# Load formats that read the safetensors files of the model's folder.
SAFETENSORS_FORMATS: Final = frozenset(
    {"auto", "hf", "safetensors", "fastsafetensors", "instanttensor", "mistral", "runai_streamer"}
)
# Fields of a Hugging Face configuration that name models whose weights are part of this one.
WEIGHTS_ELSEWHERE: Final = ("text_model_id", "audio_model_id", "vision_model_id")
# The load format with weights made up from a seed.
DUMMY: Final = "dummy"
# Methods of drafting that keep no KV.
DRAFTS_WITHOUT_KV: Final = frozenset({"ngram", "ngram_gpu", "suffix"})
COMMIT_DIGITS: Final = 40
CPU: Final = "cpu"
ADVICE: Final = (
    "Set model_digest in kv_connector_extra_config to a digest of the weights, such as sha256sum "
    "of their files prints; engines with other weights must have another"
)


@dataclass(frozen=True)
class PlatformFacts:
    """The version of vLLM, the kind of device, and its name or its instructions.

    The layout within a page and the quantization of values follow from them: attention on a
    CPU packs keys by the CPU's instructions.
    """

    vllm_version: str
    device_type: str
    device_name: str

    @classmethod
    def read(cls) -> "PlatformFacts":
        """Asks vLLM, which must be installed; initialises no device."""
        import torch  # noqa: PLC0415  # where vLLM is

        vllm: Any = import_module("vllm")
        platform: Any = import_module("vllm.platforms").current_platform
        device_type = str(platform.device_type)
        if device_type == CPU:
            amx = bool(torch.cpu._is_amx_tile_supported())  # noqa: SLF001  # as vLLM asks
            name = f"{torch.backends.cpu.get_cpu_capability()} amx={amx}"
        else:
            name = f"{platform.get_device_name()} {platform.get_device_capability()}"
        return cls(str(vllm.__version__), device_type, name)


def engine_salt(settings: ConnectorSettings) -> bytes:
    """Returns the salt of the engine's settings: the base of each request's salt."""
    return mixed_salt(engine=text_bytes(settings.salt))


def model_identity(
    vllm_config: Any,  # noqa: ANN401  # a VllmConfig
    settings: ConnectorSettings,
    platform: PlatformFacts | None = None,
    *,
    layout: PageLayout | None = None,
    any_rank_count: bool = False,
) -> NamespaceIdentity:
    """Returns the identity that engines must have in common to share pages.

    Its digest covers the weights (or ``settings.model_digest`` in their place), each setting
    that decides over KV, and ``layout``. A store refuses a namespace with two layouts, so
    engines whose pages differ have one namespace each. The identity is the same in each
    process that loads the same model, on any day, from any path. With ``any_rank_count`` it
    is also the same for each number of tensor-parallel ranks; pages MUST be free of it then.

    Takes from milliseconds to seconds.

    Raises ``UnidentifiableModel``, whose message says what to set, if a factor is unknown.
    Raises it also for engines that share nothing: pipeline or context parallel, diffusing, or
    without vLLM's own prefix caching.
    """
    platform = platform or PlatformFacts.read()
    _require_prefixes(vllm_config, platform.device_type)
    model = vllm_config.model_config
    parts = {
        "platform": canonical_json(platform, "platform"),
        "weights": _weights(model, vllm_config, vllm_config.load_config, settings),
        "layout": b"" if layout is None else repr(layout).encode(),
        **config_factors(vllm_config, any_rank_count=any_rank_count),
        **_draft(vllm_config, settings),
    }
    named = [each for name, part in sorted(parts.items()) for each in (name.encode(), part)]
    name = settings.display_name or _served_name(model)
    return NamespaceIdentity(
        model_digest=sha256(framed(MARK, *named)).digest(),
        salt=mixed_salt(base=engine_salt(settings)),
        display_name=name,
    )


def _require_prefixes(config: Any, device_type: str) -> None:  # noqa: ANN401  # a VllmConfig
    parallel = config.parallel_config
    for name in (
        "pipeline_parallel_size",
        "prefill_context_parallel_size",
        "decode_context_parallel_size",
    ):
        if getattr(parallel, name, 1) > 1:
            raise UnidentifiableModel(
                f"{name} is {getattr(parallel, name)}: kvstore stores whole pages of all layers, "
                "which such an engine has in no place; set it to 1, or use no connector"
            )
    if getattr(config, "diffusion_config", None) is not None:
        raise UnidentifiableModel("a diffusion model's KV changes after it was computed")
    if getattr(config.attention_config, "use_non_causal", False):
        raise UnidentifiableModel("without causal attention KV depends on later tokens")
    if not getattr(config.model_config, "is_prefix_caching_supported", True):
        raise UnidentifiableModel("vLLM caches no prefixes of this model, so kvstore does not")
    compressed = getattr(config.model_config, "use_mla", False)
    if compressed and device_type == CPU and not config.cache_config.enable_prefix_caching:
        # vLLM turns it off for attention that cannot go on after a prefix: answers would differ.
        raise UnidentifiableModel(
            "vLLM caches no prefixes of a model with MLA on this CPU, so kvstore does not"
        )


def _weights(model: Any, config: Any, load: Any, settings: ConnectorSettings) -> bytes:  # noqa: ANN401  # vLLM's configs
    stated = settings.model_digest
    load_format = str(getattr(load.load_format, "value", load.load_format))
    if stated is not None:
        return b"stated " + bytes.fromhex(stated)
    if load_format == DUMMY:
        # vLLM makes up each rank's part by itself, so another number of ranks has other weights.
        return f"dummy {model.seed} {config.parallel_config.tensor_parallel_size}".encode()
    if load_format not in SAFETENSORS_FORMATS:
        raise UnidentifiableModel(f"load_format {load_format} is not read by kvstore. {ADVICE}")
    try:
        _require_one_place(model)
        folder = _folder(model, load)
        if model.trust_remote_code:
            _require_code(folder, model.code_revision)
        return b"folder " + folder_digest(folder)
    except (OSError, UnidentifiableModel) as error:
        raise UnidentifiableModel(f"{error}. {ADVICE}") from error


def _require_one_place(model: Any) -> None:  # noqa: ANN401  # a ModelConfig
    """Raises if weights come from anywhere besides the model's folder."""
    if getattr(model, "model_weights", ""):
        raise UnidentifiableModel(f"the weights are in {model.model_weights}, which is no folder")
    for name in WEIGHTS_ELSEWHERE:
        if getattr(model.hf_config, name, None):
            raise UnidentifiableModel(f"a part of the weights is of another model, by its {name}")


def _folder(model: Any, load: Any) -> Path:  # noqa: ANN401  # vLLM's configs
    folder = Path(model.model)
    if folder.is_dir():
        return folder
    return hub_snapshot(str(model.model), model.revision, load.download_dir)


def _require_code(folder: Path, code_revision: str | None) -> None:
    """Raises if code comes from another repository without a fixed commit."""
    config = folder / "config.json"
    described = json.loads(config.read_bytes()) if config.is_file() else {}
    elsewhere = [each for each in (described.get("auto_map") or {}).values() if "--" in str(each)]
    if elsewhere and len(str(code_revision or "")) != COMMIT_DIGITS:
        raise UnidentifiableModel(
            f"its code is {elsewhere[0]}, of no commit that is known: set --code-revision to one"
        )


def _draft(config: Any, settings: ConnectorSettings) -> dict[str, bytes]:  # noqa: ANN401  # a VllmConfig
    """Returns the KV factors of a draft model, whose layers are in the pages too."""
    speculative = config.speculative_config
    if speculative is None or str(speculative.method) in DRAFTS_WITHOUT_KV:
        return {}
    draft = speculative.draft_model_config
    load = speculative.draft_load_config or config.load_config
    factors = part_factors("model_config", draft)
    factors["method"] = canonical_json(speculative.method, "speculative_config.method")
    factors["kv_cache_dtype"] = canonical_json(speculative.kv_cache_dtype, "kv_cache_dtype")
    factors["weights"] = _weights(draft, config, load, settings)
    return {f"speculative_config.{name}": part for name, part in factors.items()}


def _served_name(model: Any) -> str:  # noqa: ANN401  # a ModelConfig
    served = model.served_model_name or model.model
    name = str(served if isinstance(served, str) else served[0])
    if name.startswith("/"):
        # Without a served name, vLLM uses the folder's path as the name.
        name = Path(name).name
    return cut_name(name)
