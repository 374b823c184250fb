"""The identity of a rank's pages: what separates two engines, and what does not."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from kvstore_client import PagedContent, PageLayout
from kvstore_client.engines.canonical import UnidentifiableModel
from kvstore_sglang.engine.identity import engine_identity
from kvstore_sglang.engine.rank_facts import RankFacts
from kvstore_sglang.engine.settings import LinkerSettings

LAYOUT = PageLayout.paged(16, PagedContent(2, 2, 8, "float32"))
PLAIN = LinkerSettings()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model's folder."""
    made = tmp_path / "tiny"
    made.mkdir()
    save_file({"layers.0.weight": np.arange(64, dtype=np.float32)}, made / "model.safetensors")
    (made / "config.json").write_text('{"rope_theta": 10000}')
    return made


def facts_of(folder: Path, **changes: Any) -> RankFacts:  # noqa: ANN401
    """Returns one rank's facts, with some fields changed."""
    settings = {
        "model.model_path": str(folder),
        "model.revision": None,
        "model.download_dir": None,
        "model.load_format": "auto",
        "model.dtype": "float32",
        "model.kv_cache_dtype": "auto",
        "model.quantization": None,
        "exec.kernel.attention_backend": "torch_native",
        "parallel.tp_size": 1,
        "serving.served_model_name": None,
        "serving.port": 30000,
    }
    facts = RankFacts(
        rank=0,
        rank_count=1,
        settings=settings,
        hf_config={"rope_theta": 10000, "hidden_size": 64},
        vocabulary_size=512,
        version="0.5.23",
        device_type="cpu",
        device_name="AVX512 amx=False",
    )
    return replace(facts, **changes)


def changed(facts: RankFacts, **settings: object) -> RankFacts:
    """Returns facts with other settings; a double underscore stands for a dot."""
    other: Mapping[str, object] = {name.replace("__", "."): each for name, each in settings.items()}
    return replace(facts, settings={**facts.settings, **other})


def digest(
    facts: RankFacts, settings: LinkerSettings = PLAIN, layout: PageLayout = LAYOUT
) -> bytes:
    """Returns the digest of an identity."""
    return engine_identity(facts, settings, layout).model_digest


def test_every_factor_of_kv_separates(folder: Path) -> None:
    """Ranks, sizes, types, layouts, devices and versions have namespaces of their own."""
    facts = facts_of(folder)
    others = [
        digest(facts),
        digest(replace(facts, rank_count=2)),
        digest(replace(facts, rank=1, rank_count=2)),
        digest(replace(facts, version="0.5.24")),
        digest(replace(facts, device_name="AVX2 amx=False")),
        digest(replace(facts, hf_config={"rope_theta": 1, "hidden_size": 64})),
        digest(changed(facts, model__dtype="bfloat16")),
        digest(changed(facts, model__kv_cache_dtype="fp8_e4m3")),
        digest(changed(facts, model__quantization="fp8")),
        digest(changed(facts, exec__kernel__attention_backend="intel_amx")),
        digest(changed(facts, model__a_field_of_a_later_version=1)),
        digest(changed(facts, a_new_namespace__field=1)),
        digest(changed(facts, disagg__language_only=True)),
        digest(facts, layout=PageLayout.paged(32, PagedContent(2, 2, 8, "float32"))),
    ]
    assert len(set(others)) == len(others)


def test_whatever_is_no_factor_of_kv_does_not(folder: Path, tmp_path: Path) -> None:
    """Ports, names, paths and the number of ranks of the whole engine do not count."""
    facts = facts_of(folder)
    copied = tmp_path / "elsewhere"
    folder.rename(copied)
    same = [
        changed(facts, model__model_path=str(copied), serving__port=30001),
        changed(facts, model__model_path=str(copied), serving__served_model_name="chat"),
        changed(facts, model__model_path=str(copied), parallel__tp_size=8),
        changed(facts, model__model_path=str(copied), memory__radix_eviction_policy="lfu"),
    ]
    assert len({digest(each) for each in same}) == 1


def test_other_weights_are_another_model(folder: Path) -> None:
    """A change of a tensor or of a configuration file counts."""
    facts = facts_of(folder)
    before = digest(facts)
    save_file({"layers.0.weight": np.ones(64, np.float32)}, folder / "model.safetensors")
    after = digest(facts)
    (folder / "config.json").write_text('{"rope_theta": 20000}')
    assert len({before, after, digest(facts)}) == 3


def test_a_stated_digest_stands_for_the_weights(folder: Path) -> None:
    """Weights that cannot be read need one; the message says so."""
    stated = LinkerSettings(model_digest="ab" * 32)
    facts = changed(facts_of(folder), model__load_format="gguf")
    assert digest(facts, stated) != digest(facts, LinkerSettings(model_digest="cd" * 32))
    with pytest.raises(UnidentifiableModel, match=r"--load-format gguf.*Set model_digest"):
        digest(facts)
    (folder / "model.safetensors").unlink()
    with pytest.raises(UnidentifiableModel, match=r"no safetensors files\. Set model_digest"):
        digest(facts_of(folder))


def test_dummy_weights_are_those_of_their_number_of_ranks(folder: Path) -> None:
    """SGLang makes them up from one seed, each rank's by itself."""
    facts = changed(facts_of(folder), model__load_format="dummy", model__model_path="nowhere")
    assert digest(facts) == digest(facts)
    assert digest(facts) != digest(replace(facts, rank_count=2))


def test_a_file_of_scales_counts_by_its_content(folder: Path) -> None:
    """Its name may stay the same; an absent file is refused."""
    scales = folder / "scales.dat"
    facts = changed(facts_of(folder), model__quantization_param_path=str(scales))
    with pytest.raises(UnidentifiableModel, match=r"model\.quantization_param_path"):
        digest(facts)
    scales.write_bytes(b"1.0")
    before = digest(facts)
    scales.write_bytes(b"2.0")
    assert digest(facts) != before


def test_the_name_is_for_people(folder: Path) -> None:
    """It is the operator's, else SGLang's served name, else the folder's."""
    facts = facts_of(folder)
    assert facts.lease_name == "sglang tiny"
    assert replace(facts, rank=1, rank_count=2).lease_name == "sglang tiny tp1"
    names = [
        engine_identity(facts, PLAIN, LAYOUT).display_name,
        engine_identity(
            changed(facts, serving__served_model_name="chat"), PLAIN, LAYOUT
        ).display_name,
        engine_identity(facts, LinkerSettings(display_name="mine"), LAYOUT).display_name,
    ]
    assert names == ["tiny", "chat", "mine"]
    assert facts.labels == {"model_name": "tiny", "tp_rank": "0"}


def test_the_operator_s_salt_is_a_part(folder: Path) -> None:
    """Two engines share only with the same salt."""
    facts = facts_of(folder)
    salts = {
        engine_identity(facts, LinkerSettings(salt=salt), LAYOUT).salt for salt in ("", "a", "b")
    }
    assert len(salts) == 3
    assert b"" in salts
