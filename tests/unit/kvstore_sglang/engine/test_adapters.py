"""The adapters of an engine, told apart by their files."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from kvstore_sglang.engine.adapters import adapter_digests
from kvstore_sglang.engine.salts import RequestSalts


@dataclass
class LoRARef:
    """The fields of SGLang's reference to an adapter."""

    lora_id: str
    lora_path: str | None


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An adapter's folder."""
    made = tmp_path / "adapter"
    made.mkdir()
    write(made, 1)
    (made / "adapter_config.json").write_text('{"r": 8}')
    return made


def write(folder: Path, value: int) -> None:
    """Writes an adapter's weights."""
    save_file({"lora_A": np.full(64, value, np.float32)}, folder / "adapter_model.safetensors")


def digest(folder: Path, **settings: object) -> bytes:
    """Returns the digest of one adapter."""
    named = {f"lora.{name}": value for name, value in settings.items()}
    return adapter_digests({"lora.lora_paths": [LoRARef("id", str(folder))], **named})["id"]


def test_files_and_settings_distinguish_adapters(folder: Path) -> None:
    """Neither id nor path counts: other files under the same name are another adapter."""
    before = digest(folder)
    assert digest(folder) == before
    other_backend = digest(folder, lora_backend="triton")
    write(folder, 2)
    assert len({before, other_backend, digest(folder)}) == 3


def test_an_adapter_that_cannot_be_read_is_shared_with_nobody(tmp_path: Path) -> None:
    """Each engine has bytes of its own for it."""
    absent = tmp_path / "absent"
    assert digest(absent) != digest(absent)


def test_an_engine_without_adapters_has_none() -> None:
    """Its settings have no paths."""
    assert adapter_digests({"lora.lora_paths": None}) == adapter_digests({}) == {}


def test_a_request_s_salt_has_the_adapter_s_digest_in_place_of_its_id() -> None:
    """Two servers that name the same files differently share, and the user's part still counts."""
    one = RequestSalts("", {"id-of-one": b"1" * 32, "id-of-two": b"2" * 32})
    other = RequestSalts("", {"another-id": b"1" * 32})
    assert one.of("id-of-one", None) == other.of("another-id", None)
    assert one.of("users-id-of-one", None) == other.of("users-another-id", None)
    salts = {
        one.plain,
        one.of("id-of-one", None),
        one.of("id-of-two", None),
        one.of("users-id-of-one", None),
        one.of("id-of-one", "salt"),
        one.of("an-id-of-chance", None),
    }
    assert len(salts) == 6
