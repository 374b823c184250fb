"""Registration of the host's memory: which memory, in which pieces, until when."""

from structlog.testing import capture_logs

from device.copier_rig import COUNT, SLOT, Rig


def test_memory_is_registered_until_it_goes(rig: Rig) -> None:
    """Each extent of tier 2 for itself, until its memory is freed."""
    assert list(rig.card.registered.values()) == [COUNT * SLOT]
    extent_id = rig.lower.allocate(1, SLOT).shape.extent_id
    assert list(rig.card.registered.values()) == [COUNT * SLOT] * 2
    rig.lower.destroy(extent_id)
    assert list(rig.card.registered.values()) == [COUNT * SLOT]
    rig.lower.close()
    assert rig.card.registered == {}


def test_what_is_not_registered_is_copied_all_the_same(rig: Rig) -> None:
    """The log says it once, and the copier undoes no registration that it does not have."""
    rig.card.fail = "register"
    with capture_logs() as lines:
        extent = rig.lower.allocate(1, SLOT)
    told = [line for line in lines if line["event"] == "host_memory_not_registered"]
    assert [line["size_bytes"] for line in told] == [COUNT * SLOT]
    slot = extent.shape.extent_id << 32
    contents = rig.fill(rig.first)
    assert rig.tiers.begin_all([(rig.first, slot)])() == [None]
    assert bytes(rig.tiers.read(slot) or b"") == contents[0]
    rig.lower.destroy(extent.shape.extent_id)
    assert "unregister" not in rig.card.calls


def test_a_registration_that_cuda_keeps_is_logged(rig: Rig) -> None:
    """The memory is freed all the same."""
    rig.card.fail = "unregister"
    with capture_logs() as lines:
        rig.lower.close()
    assert [line["event"] for line in lines].count("host_memory_still_registered") == 1
