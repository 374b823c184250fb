"""A short run of nonsense over every RPC and the attach socket, as in benchmarks/fuzz.py."""

from random import Random

import pytest
from google.protobuf import message_factory
from rich.console import Console

from fuzz import __main__ as fuzz
from fuzz.calls import methods
from fuzz.messages import Messages
from kvstore.rpc.server import SERVICES
from kvstore.v1 import prefix_cache_pb2

INPUTS = 6_000
SEED = 20_261_130


@pytest.mark.slow
def test_nonsense_harms_nothing() -> None:
    """Nonsense causes no crash or unexplained answer, and many of its calls are accepted."""
    result = fuzz.fuzz(INPUTS, SEED, Console(stderr=True))
    assert (result["crashes"], result["faults"], result["unexplained_errors"]) == (0, [], 0)
    done = {name.removesuffix(" OK") for name in result["outcomes"] if name.endswith(" OK")}
    assert {"MatchPrefix", "AcquirePrefix", "InsertPrefix", "ReservePages", "Check"} <= done
    assert {"lane MatchPrefix", "lane ReservePages", "lane ReleasePins", "lane RenewLease"} <= done
    assert {"welcome", "bound", "acknowledged", "refused INVALID_FIELD"} <= set(result["outcomes"])


def test_every_method_of_the_contract_is_called() -> None:
    """Every method of the contract is called, new services included."""
    called = {each.path.split("/")[1] for each in methods()}
    assert set(SERVICES) < called


def test_a_seed_repeats_its_inputs() -> None:
    """The same seed draws the same inputs, and another seed draws others."""
    kind = message_factory.GetMessageClass(prefix_cache_pb2.InsertPrefixRequest.DESCRIPTOR)

    def drawn(seed: int) -> list[bytes]:
        messages = Messages(Random(seed), {"lease_id": (bytes(16),)})
        return [messages.request(kind) for _ in range(200)]

    assert drawn(1) == drawn(1) != drawn(2)
