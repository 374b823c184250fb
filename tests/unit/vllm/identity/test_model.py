"""Engines share pages if their KV is the same, and only then."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from kvstore_client import OpaqueContent
from kvstore_client.engines.canonical import UnidentifiableModel
from kvstore_vllm.blocks.engine_layout import LayerFacts, LayoutFacts, layout_of
from kvstore_vllm.engine.connector_settings import ConnectorSettings
from kvstore_vllm.identity.model import PlatformFacts, engine_salt, model_identity
from kvstore_vllm.identity.request_key import RequestKey
from vllm_rig.vllm_stand_ins import (
    AttentionFacts,
    CacheFacts,
    DraftFacts,
    EngineFacts,
    LoadFacts,
    ModelFacts,
    ParallelFacts,
)

PLAIN = ConnectorSettings()
CPU = PlatformFacts("0.32.0", "cpu", "AVX2")
Edit = Callable[[EngineFacts], object]


@dataclass
class HubConfig:
    """A stand-in for ``PretrainedConfig``."""

    facts: dict[str, object]

    def to_dict(self) -> dict[str, object]:
        """Returns its values."""
        return self.facts


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model's folder."""
    save_file({"a": np.ones((4, 4), np.float32)}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text("{}")
    return tmp_path


def engine(folder: Path) -> EngineFacts:
    """Returns an engine with the default configuration."""
    facts = {"rope_theta": 1, "_name_or_path": str(folder), "inner": {"_commit_hash": "abc"}}
    return EngineFacts(ModelFacts(str(folder), HubConfig(facts)))


def digest(config: EngineFacts, settings: ConnectorSettings = PLAIN) -> bytes:
    """Returns an engine's digest."""
    return model_identity(config, settings, CPU).model_digest


@pytest.mark.parametrize(
    "edit",
    [
        lambda c: setattr(c.model_config, "dtype", "float16"),
        lambda c: setattr(c.model_config, "max_model_len", 8192),
        lambda c: setattr(c.model_config, "quantization", "fp8"),
        lambda c: c.model_config.hf_config.facts.update(rope_theta=2),
        lambda c: c.model_config.hf_config.facts.update(inner={"scale": 1}),
        lambda c: setattr(c.cache_config, "cache_dtype", "fp8"),
        lambda c: setattr(c.parallel_config, "tensor_parallel_size", 2),
        lambda c: setattr(c.attention_config, "backend", "OTHER"),
        lambda c: setattr(c, "additional_config", {"x": 1}),
        lambda c: setattr(c.load_config, "load_format", "dummy"),
        lambda c: setattr(c, "speculative_config", DraftFacts("mtp", c.model_config)),
    ],
    ids=list("abcdefghijk"),
)
def test_what_decides_over_kv_keeps_engines_apart(folder: Path, edit: Edit) -> None:
    """Dtypes, lengths, overrides, ranks, kernels and drafts each separate engines."""
    config = engine(folder)
    before = digest(config)
    edit(config)
    assert digest(config) != before


@pytest.mark.parametrize(
    "edit",
    [
        lambda c: setattr(c.model_config, "served_model_name", ["b", "c"]),
        lambda c: setattr(c.model_config, "hf_token", "secret"),
        lambda c: setattr(c.model_config, "enforce_eager", True),
        lambda c: setattr(c.model_config, "seed", 5),
        lambda c: c.model_config.hf_config.facts.update(_name_or_path="/other"),
        lambda c: c.model_config.hf_config.facts.update(inner={"_commit_hash": "def"}),
        lambda c: setattr(c.cache_config, "gpu_memory_utilization", 0.1),
        lambda c: setattr(c.parallel_config, "data_parallel_rank", 3),
        lambda c: setattr(c, "instance_id", "x"),
        lambda c: setattr(c, "lora_config", object()),
        lambda c: setattr(c, "speculative_config", DraftFacts("ngram")),
    ],
    ids=list("abcdefghijk"),
)
def test_what_does_not_decide_lets_engines_share(folder: Path, edit: Edit) -> None:
    """Names, secrets, sizes and places separate no engines."""
    config = engine(folder)
    before = digest(config)
    edit(config)
    assert digest(config) == before


def test_pages_free_of_the_rank_count_are_shared_by_any(folder: Path) -> None:
    """The number of ranks is left out on demand, and alone; what has it shares with none."""
    one, two, other = engine(folder), engine(folder), engine(folder)
    two.parallel_config.tensor_parallel_size = 2
    other.parallel_config.tensor_parallel_size = 2
    other.model_config.dtype = "float16"
    free = [
        model_identity(each, PLAIN, CPU, any_rank_count=True).model_digest
        for each in (one, two, other)
    ]
    assert free[0] == free[1] != free[2]
    assert not {digest(one), digest(two)} & set(free)


def test_it_depends_on_no_path(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """The same files in another folder are the same model."""
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    for each in folder.iterdir():
        (elsewhere / each.name).write_bytes(each.read_bytes())
    assert digest(engine(elsewhere)) == digest(engine(folder))


def test_platforms_share_nothing(folder: Path) -> None:
    """Another version, device or instruction set shares nothing."""
    config = engine(folder)
    platforms = [
        CPU,
        replace(CPU, vllm_version="0.32.1"),
        replace(CPU, device_type="cuda"),
        replace(CPU, device_name="AVX512"),
    ]
    digests = {model_identity(config, PLAIN, each).model_digest for each in platforms}
    assert len(digests) == 4


@pytest.mark.parametrize(
    ("config", "named"),
    [
        (lambda m: EngineFacts(m, load_config=LoadFacts("sharded_state")), "model_digest"),
        (lambda m: EngineFacts(replace(m, model="/nowhere")), "model_digest"),
        (lambda m: EngineFacts(replace(m, model_weights="s3://x")), "s3://x.*model_digest"),
        (lambda m: EngineFacts(replace(m, hf_config=lambda: 1)), "hf_config"),
        (lambda m: EngineFacts(m, parallel_config=ParallelFacts(1, 2)), "pipeline"),
        (lambda m: EngineFacts(m, parallel_config=ParallelFacts(1, 1, 2)), "prefill_context"),
        (lambda m: EngineFacts(m, parallel_config=ParallelFacts(1, 1, 1, 2)), "decode_context"),
        (
            lambda m: EngineFacts(m, attention_config=AttentionFacts(None, use_non_causal=True)),
            "causal",
        ),
        (lambda m: EngineFacts(m, diffusion_config=1), "diffusion"),
        (lambda m: EngineFacts(replace(m, is_prefix_caching_supported=False)), "prefixes"),
        (lambda m: EngineFacts(m, cache_config=CacheFacts(cache_dtype=min)), "cache_dtype"),
        (
            lambda m: EngineFacts(
                replace(m, use_mla=True), CacheFacts(enable_prefix_caching=False)
            ),
            "MLA on this CPU",
        ),
    ],
    ids=list("abcdefghijkl"),
)
def test_what_cannot_be_told_is_refused(
    folder: Path, config: Callable[[ModelFacts], EngineFacts], named: str
) -> None:
    """The message says what is unknown, and what to set."""
    with pytest.raises(UnidentifiableModel, match=named):
        digest(config(engine(folder).model_config))


def test_weights_of_other_models_are_not_told(folder: Path) -> None:
    """A configuration is refused if it names another model whose weights it includes."""
    config = engine(folder)
    config.model_config.hf_config = HubConfig({})
    config.model_config.hf_config.text_model_id = "someone/else"  # type: ignore[attr-defined]
    with pytest.raises(UnidentifiableModel, match="text_model_id"):
        digest(config)


def test_a_stated_digest_stands_for_the_weights_alone(folder: Path) -> None:
    """A stated digest allows any weight format. All other factors still count."""
    config = engine(folder)
    config.load_config.load_format = "tensorizer"
    first = digest(config, ConnectorSettings(model_digest="ab" * 32))
    assert digest(config, ConnectorSettings(model_digest="cd" * 32)) != first
    config.model_config.dtype = "float16"
    assert digest(config, ConnectorSettings(model_digest="ab" * 32)) != first


def test_made_up_weights_are_their_seed(folder: Path) -> None:
    """Weights of the dummy format follow from a seed, and from no file."""
    config = engine(folder)
    config.load_config.load_format = "dummy"
    config.model_config.model = "/nowhere"
    first = digest(config)
    assert digest(config) == first
    config.model_config.seed = 1
    assert digest(config) != first


def test_made_up_weights_depend_on_the_number_of_ranks(folder: Path) -> None:
    """Pages free of the ranks do not help: each rank makes up its own part of the weights."""
    one, two = engine(folder), engine(folder)
    two.parallel_config.tensor_parallel_size = 2
    for each in (one, two):
        each.load_config.load_format = "dummy"
    settings = ConnectorSettings(model_digest="ab" * 32)
    for chosen, shared in ((PLAIN, False), (settings, True)):
        digests = {
            model_identity(each, chosen, CPU, any_rank_count=True).model_digest
            for each in (one, two)
        }
        assert (len(digests) == 1) is shared


def test_code_from_elsewhere_needs_a_commit(folder: Path) -> None:
    """Code of another repository needs a fixed commit. Code of the folder is digested."""
    (folder / "config.json").write_text('{"auto_map": {"AutoModel": "a/b--modeling.Own"}}')
    config = engine(folder)
    plain = digest(config)
    config.model_config.trust_remote_code = True
    for revision in (None, "main"):
        config.model_config.code_revision = revision
        with pytest.raises(UnidentifiableModel, match="code-revision"):
            digest(config)
    config.model_config.code_revision = "0a" * 20
    assert digest(config) != plain


def test_the_engines_salt_is_that_of_a_plain_request(folder: Path) -> None:
    """A request without a salt uses the namespace that the engine opened."""
    from vllm_rig.vllm_stand_ins import PromptRequest  # noqa: PLC0415

    for settings in (PLAIN, ConnectorSettings(salt="blue")):
        identity = model_identity(engine(folder), settings, CPU)
        key = RequestKey.of(PromptRequest([1]), base_salt=engine_salt(settings))
        assert key is not None
        assert key.salt == identity.salt
    assert engine_salt(PLAIN) == b""
    assert len(engine_salt(ConnectorSettings(salt="blue"))) == 32


def test_people_see_a_name(folder: Path) -> None:
    """The name is the configured or the served one, cut to the store's limit."""
    config = engine(folder)
    config.model_config.served_model_name = ["é" * 200, "b"]
    assert model_identity(config, PLAIN, CPU).display_name == "é" * 128
    named = ConnectorSettings(display_name="mine")
    assert model_identity(config, named, CPU).display_name == "mine"


LAYERS = (LayerFacts("a", 512, "torch.float32"), LayerFacts("b", 1024, "torch.float32"))
LAYOUT = LayoutFacts(16, LAYERS, "LBHNC", (0, 1, 2, 3, 4), 2)


def test_a_page_has_all_ranks_bytes() -> None:
    """A page has the bytes of all ranks, and the store sees a single rank."""
    layout = layout_of(LAYOUT)
    assert (layout.page_tokens, layout.page_bytes) == (16, 2 * 1536)
    assert layout.tensor_parallel_size == 1
    assert LAYOUT.rank_page_bytes == 1536
    assert isinstance(layout.content, OpaqueContent)
    assert not layout.content.divides_by_token
    assert layout_of(LAYOUT) == layout


def test_pages_that_differ_are_of_namespaces_that_differ(folder: Path) -> None:
    """Engines with different layouts get different namespaces."""
    config, other = engine(folder), layout_of(replace(LAYOUT, page_tokens=32))
    identities = [
        model_identity(config, PLAIN, CPU, layout=layout)
        for layout in (layout_of(LAYOUT), other, None)
    ]
    assert len({each.model_digest for each in identities}) == 3


def test_layouts_that_differ_have_other_fingerprints() -> None:
    """Order, dtype, names and bytes each change a layout's fingerprint."""
    layouts = [
        LAYOUT,
        replace(LAYOUT, layers=LAYERS[::-1]),
        replace(LAYOUT, layers=(LAYERS[0], replace(LAYERS[1], dtype="torch.int32"))),
        replace(LAYOUT, layers=(LAYERS[0], replace(LAYERS[1], name="c"))),
        replace(LAYOUT, layout_name="BLHNC"),
        replace(LAYOUT, stride_order=(0, 1, 3, 2, 4)),
        replace(LAYOUT, tensor_parallel_size=4),
        replace(LAYOUT, page_tokens=32),
    ]
    assert len({layout_of(each).content for each in layouts}) == len(layouts)
