"""A folder's digest depends on the content of weights and configuration alone."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from kvstore_client.engines.canonical import UnidentifiableModel
from kvstore_client.engines.model_folder import folder_digest, folder_stamp

WEIGHTS = "model.safetensors"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model of a few tensors, each longer than a sample."""
    made = tmp_path / "model"
    made.mkdir()
    rng = np.random.default_rng(7)
    tensors = {
        "model.embed_tokens.weight": rng.random((300, 64), np.float32),
        "layers.0.q_proj.weight": rng.random((64, 64), np.float32),
        "layers.0.experts.gate_up_proj": rng.random((8, 64, 64), np.float32),
        "norm.weight": rng.random(64, np.float32),
    }
    save_file(tensors, made / WEIGHTS)
    (made / "config.json").write_text('{"rope_theta": 10000}')
    (made / "tokenizer.json").write_text("{}")
    return made


def change(folder: Path, name: str, place: slice | int | tuple[int, ...]) -> None:
    """Adds to a part of a tensor."""
    tensors = load_file(folder / WEIGHTS)
    tensors[name][place] += 1
    save_file(tensors, folder / WEIGHTS)


def test_it_depends_on_no_path_and_no_time(folder: Path, tmp_path: Path) -> None:
    """A copy in another folder, with another date, is the same model."""
    copy = tmp_path / "elsewhere" / "copy"
    shutil.copytree(folder, copy)
    os.utime(copy / WEIGHTS, (1, 1))
    assert folder_digest(copy) == folder_digest(folder)
    assert len(folder_digest(folder)) == 32


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("layers.0.q_proj.weight", slice(None)),
        ("norm.weight", slice(None)),
        ("norm.weight", 63),
        # Training may change only some rows of an embedding, or only some experts.
        ("model.embed_tokens.weight", 299),
        ("model.embed_tokens.weight", 0),
        ("layers.0.experts.gate_up_proj", 0),
        ("layers.0.experts.gate_up_proj", 7),
    ],
)
def test_a_change_of_any_one_tensor_tells(folder: Path, name: str, place: slice | int) -> None:
    """A changed tensor, embedding row or expert changes the digest."""
    before = folder_digest(folder)
    change(folder, name, place)
    assert folder_digest(folder) != before


def rename_tensor(folder: Path) -> None:
    """Gives a tensor another name of the same length."""
    tensors = load_file(folder / WEIGHTS)
    tensors["morn.weight"] = tensors.pop("norm.weight")
    save_file(tensors, folder / WEIGHTS)


@pytest.mark.parametrize(
    "edit",
    [
        lambda folder: (folder / "config.json").write_text('{"rope_theta": 10001}'),
        lambda folder: (folder / "quantize_config.json").write_text("{}"),
        lambda folder: (folder / "modeling_own.py").write_text("x = 1"),
        lambda folder: (folder / WEIGHTS).rename(folder / "other.safetensors"),
        rename_tensor,
    ],
    ids=["configuration", "quantization", "code", "name of the weights", "name of a tensor"],
)
def test_what_decides_how_weights_are_used_tells(
    folder: Path, edit: Callable[[Path], object]
) -> None:
    """Configuration, code and names are part of a model's digest."""
    before = folder_digest(folder)
    edit(folder)
    assert folder_digest(folder) != before


@pytest.mark.parametrize(
    "name", ["tokenizer.json", "generation_config.json", "trainer_state.json", "x.log", ".c.json"]
)
def test_what_is_of_text_and_sampling_does_not_tell(folder: Path, name: str) -> None:
    """Tokenizer and sampling defaults do not change the digest, as the KV stays the same."""
    before = folder_digest(folder)
    (folder / name).write_text('{"changed": true}')
    assert folder_digest(folder) == before


def test_a_hubs_snapshot_is_its_contents_names(folder: Path, tmp_path: Path) -> None:
    """A hub's snapshot is compared by its links' names, which are digests, and never read."""

    def snapshot(place: str, weights_name: str) -> Path:
        root = tmp_path / place
        blobs, files = root / "blobs", root / "snapshots" / "abc"
        blobs.mkdir(parents=True)
        files.mkdir(parents=True)
        for name, blob in (("config.json", "0a" * 20), (WEIGHTS, weights_name)):
            (blobs / blob).write_text("not read")
            (files / name).symlink_to(Path("../../blobs") / blob)
        return files

    first = folder_digest(snapshot("a", "0b" * 32))
    assert folder_digest(snapshot("b", "0b" * 32)) == first
    assert folder_digest(snapshot("c", "0c" * 32)) != first
    with pytest.raises(UnidentifiableModel, match="no safetensors file"):
        folder_digest(snapshot("d", "named-by-hand"))
    assert folder_digest(folder) != first


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x00" * 8,
        b"\xff" * 16,
        (9).to_bytes(8, "little") + b"not json!",
        (4).to_bytes(8, "little") + b"[{}]",
        (14).to_bytes(8, "little") + b'{"a":{"b":[]}}',
        (6).to_bytes(8, "little") + b'{"a":1',
    ],
)
def test_what_is_no_safetensors_file_is_refused(folder: Path, content: bytes) -> None:
    """A file that cannot be read is refused, and nothing is guessed."""
    (folder / WEIGHTS).write_bytes(content)
    with pytest.raises(UnidentifiableModel, match=r"model\.safetensors"):
        folder_digest(folder)


def test_a_file_that_is_cut_off_is_refused(folder: Path) -> None:
    """A partial download, with a whole header and half of the tensors, is refused."""
    file = folder / WEIGHTS
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(UnidentifiableModel, match="cut off"):
        folder_digest(folder)


def test_a_folder_without_weights_is_refused(folder: Path) -> None:
    """A folder without safetensors is refused. Other formats are not read."""
    (folder / WEIGHTS).rename(folder / "pytorch_model.bin")
    with pytest.raises(UnidentifiableModel, match="no safetensors files"):
        folder_digest(folder)


def test_an_empty_tensor_has_a_digest(folder: Path) -> None:
    """A tensor without elements and one without experts have digests."""
    tensors = load_file(folder / WEIGHTS)
    tensors["empty.weight"] = np.zeros((0, 4, 4), np.float32)
    save_file(tensors, folder / WEIGHTS)
    assert len(folder_digest(folder)) == 32


def test_a_stamp_changes_with_any_file(folder: Path) -> None:
    """A file's new time changes the stamp of its folder."""
    before = folder_stamp(folder)
    assert folder_stamp(folder) == before
    os.utime(folder / WEIGHTS, ns=(1, 1))
    assert folder_stamp(folder) != before
