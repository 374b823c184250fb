"""benchmarks/recovery.py, with one kill."""

import json
from itertools import count
from pathlib import Path
from random import Random

from kvstore_client import Client
from kvstore_client.testing import running_store, wait_until
from processes.benchmark_process import run_benchmark
from support.recovery.load import Load, Told, _insert
from support.recovery.prompts import IDENTITY, LAYOUT, tokens_of

LIMIT = 60.0


def test_the_benchmark_says_what_survived_a_kill(tmp_path: Path) -> None:
    """All acknowledged pages survive a kill, and none is wrong, also in a deep folder."""
    deep = tmp_path / ("deeper-than-a-socket-may-be-" * 4)
    deep.mkdir()
    output = run_benchmark("recovery", "--json", "--kills", "1", "--folder", str(deep))
    document = json.loads(output.splitlines()[-1])
    assert document["kills"] == 1
    assert document["acknowledged_pages"] > 0
    assert document["served_pages"] == document["acknowledged_pages"]
    assert document["served_fraction"] == 1
    assert document["wrong_pages"] == document["returned_pages"] == 0
    assert list(deep.iterdir()) == []


def test_what_tier_3_has_nothing_of_is_not_acknowledged() -> None:
    """A page that tier 3 does not have is not acknowledged."""
    told = Told()
    with running_store() as store, Client(store.runtime_dir) as client:
        namespace = client.namespace(IDENTITY, LAYOUT)
        assert namespace.wait_open(LIMIT)
        load = Load(client, namespace, told, count(1), Random(1))
        load.end()
        assert wait_until(lambda: _insert(namespace, 0))
        assert not load._is_there(0, tokens_of(0))
    assert told.acknowledged == {}
