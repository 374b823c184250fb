"""The succession of a store, by the settings."""

from pathlib import Path

import pytest

from kvstore.assembly.succession_setup import carrier_of, settings_to_keep, succession_of
from kvstore.config.loading import load_config
from kvstore.holder.carrier import CarrierRefused
from kvstore.holder.holder_client import HolderClient
from kvstore.holder.systemd_store import SystemdStore

MIB = 1 << 20
pytestmark = pytest.mark.usefixtures("no_settings_around")


def test_without_a_holder_nothing_outlives_the_server() -> None:
    """This is the default."""
    succession = succession_of(load_config([]))
    succession.own()
    succession.restore_carrier()
    assert (succession.outlives, succession.failure, succession.use()) == (False, "", None)
    succession.close()


def test_a_folder_is_a_holder_s(tmp_path: Path) -> None:
    """Nobody is asked before the server owns."""
    carrier = carrier_of(load_config(["--holder", str(tmp_path / "holder")]))
    assert isinstance(carrier, HolderClient)
    assert not (tmp_path / "holder").exists()


def test_systemd_keeps_memory_only_if_it_started_the_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The error says which settings of the unit are missing."""
    config = load_config(["--holder", "systemd"])
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    with pytest.raises(CarrierRefused, match="FileDescriptorStoreMax="):
        carrier_of(config)
    monkeypatch.setenv("NOTIFY_SOCKET", "@kvstore-test")
    assert isinstance(carrier_of(config), SystemdStore)


@pytest.mark.parametrize(
    ("flags", "size"),
    [
        ([], 16 * MIB),
        (["--tier1-bytes", "64GiB", "--tier2-bytes", "64GiB"], 256 * MIB),
        (["--tier1-bytes", "64GiB", "--journal-bytes", "1GiB"], 1024 * MIB),
    ],
)
def test_the_journal_is_a_part_of_the_tiers(flags: list[str], size: int) -> None:
    """It is 16 MiB at least, and as large as the setting says if that is there."""
    config = load_config(flags)
    assert config.bytes_of_the_journal == size
    assert config.in_force()["journal_bytes"] == size


@pytest.mark.parametrize(
    ("flags", "name"),
    [
        (["--device", "cuda:0"], "device"),
        (["--prefix-cache-backend", "hash"], "prefix_cache_backend"),
        (["--tier2-bytes", "1MiB"], "tier2_bytes"),
        (["--tier3-path", "slab", "--tier3-bytes", "1GiB"], "tier3_path"),
    ],
)
def test_settings_that_change_the_memory_have_to_be_equal(flags: list[str], name: str) -> None:
    """Others, such as sizes, may differ."""
    before, after = settings_to_keep(load_config([])), settings_to_keep(load_config(flags))
    assert {each for each in before if before[each] != after[each]} == {name}
    larger = settings_to_keep(load_config(["--tier1-bytes", "2GiB", "--hugepages", "2MiB"]))
    assert larger == before
