"""The parts of benchmarks/remote.py: its pages, its ceiling on a real Valkey, and its figures."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from inference_worker.demo.valkey_server import ValkeyServer, running_valkey
from kvstore.core.values.segments import segment_start
from kvstore.remote.secret.sealing import TAG_BYTES
from support.loopback import HOST, free_ports
from support.remote.cipher_way import CipherWay
from support.remote.pages import PageMemory, page_path
from support.remote.rounds import Samples, figures, ratio
from support.remote.ways import RawWay, names_of

COUNT, SIZE = 9, 70_000


@pytest.fixture
def server() -> Iterator[ValkeyServer]:
    """Provides an empty Valkey with a port."""
    with tempfile.TemporaryDirectory(prefix="kvs-") as folder:
        place = Path(folder)
        [port] = free_ports(1)
        with (
            (place / "log").open("wb") as log,
            running_valkey(place / "e", log=log, memory="64mb", port=port) as found,
        ):
            yield found


def test_a_path_is_a_chain_in_segments() -> None:
    """Each page follows the one before, in the segment that the store would choose."""
    path = page_path("a", 100)
    writes = list(path.writes)
    assert [each.key for each in writes] == list(path.keys)
    assert writes[0].parent == path.namespace
    assert [each.parent for each in writes[1:]] == [each.digest for each in path.keys[:-1]]
    firsts = [path.keys[segment_start(number)].digest for number in range(100)]
    assert [each.segment for each in path.keys] == firsts
    assert not set(path.keys) & set(page_path("b", 100).keys)
    assert path.keys[:30] == page_path("a", 30).keys


@pytest.mark.parametrize(
    ("way_type", "more_bytes"), [(RawWay, 0), (CipherWay, TAG_BYTES)], ids=["raw", "cipher"]
)
@pytest.mark.parametrize("connections", [1, 2])
@pytest.mark.parametrize("unix", [True, False])
def test_a_ceiling_moves_every_byte(
    server: ValkeyServer,
    way_type: type[RawWay],
    more_bytes: int,
    connections: int,
    unix: bool,  # noqa: FBT001 - a case
) -> None:
    """Bytes come back as they were, over one connection or two, and looks count them."""
    place = str(server.socket) if unix else (HOST, server.port)
    source, target = (PageMemory(COUNT, SIZE) for _ in range(2))
    source.fill()
    way = way_type(place, connections)
    try:
        assert way.look("t", COUNT) == 0
        way.write("t", source.pages)
        assert way.look("t", COUNT) == COUNT
        way.read("t", target.pages)
        assert [bytes(each) for each in target.pages] == [bytes(each) for each in source.pages]
        assert server.command("STRLEN", names_of("t", COUNT)[-1]) == b":%d\r\n" % (
            SIZE + more_bytes
        )
        target.clear()
        assert not any(map(any, target.pages))
    finally:
        way.close()


def test_ratios_are_of_rounds_and_to_the_faster_ceiling() -> None:
    """A ratio is the median of the rounds' own, so a slow moment of the machine does not count."""
    samples = {name: Samples() for name in ("one", "two", "ours")}
    for slow in (1, 1, 10):
        for what in ("write", "read"):
            samples["one"].add(what, 4.0 * slow, 1.0, 1.0)
            samples["two"].add(what, 2.0 * slow, 1.0, 2.0)
            samples["ours"].add(what, 5.0 * slow, 3.0, 3.0)
    for each in samples.values():
        each.looks[128] = [0.003, 0.001, 0.002]
    found = figures(samples, 10**9, ("one", "two"))
    assert {way["write"]["ceiling"] for way in found.values()} == {"two"}
    assert [found[name]["read"]["to_ceiling"] for name in samples] == [0.5, 1.0, 0.4]
    assert found["ours"]["write"]["gb_per_s"] == 0.2
    assert found["ours"]["write"]["client_cpu_s_per_gb"] == 3.0
    assert found["two"]["write"]["server_cpu_s_per_gb"] == 2.0
    assert found["one"]["look_ms"] == {"128": 2.0}
    assert ratio(samples["one"], samples["ours"], "read") == 0.8
