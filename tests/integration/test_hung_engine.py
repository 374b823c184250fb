"""A shared engine that hangs: the stock client keeps its local hits, and its breaker closed."""

import pytest

from kvstore_client import ClientConfig
from kvstore_client.testing import running_store
from pages.stamped_pages import SMALL_STORE, open_client, prompt, write_and_insert
from processes.hung_engine import LOOK, READ, program

KNOWN = 2
ROUNDS = 6


@pytest.mark.parametrize("call", [LOOK, READ])
def test_a_hung_engine_costs_no_local_hit(call: str) -> None:
    """Prompts of which the engine is asked are misses in time, so the client goes on."""
    with running_store(*SMALL_STORE, program=program(call)) as store:
        client, namespace = open_client(store.runtime_dir, ClientConfig(call_timeout=1.0))
        with client:
            for number in range(KNOWN):
                write_and_insert(namespace, prompt(number))
            for number in range(ROUNDS):
                with namespace.match(prompt(100 + number)) as missed:
                    assert missed.failure is None, missed.failure
                    assert missed.page_count == 0
                known = prompt(number % KNOWN)
                with namespace.match(known) as match:
                    assert match.failure is None, match.failure
                    assert match.token_count == len(known) - 1
