"""The ways for two vLLM servers of a host to share a prefix, with their requirements."""

import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple

from kvstore_client.testing import running_store, wait_until
from support.loopback import free_ports, listens

ALONE, LMCACHE, EXAMPLE = "vLLM alone", "LMCache", "ExampleConnector"
KVSTORE, OFFLOADING = "kvstore", "kvstore offloading"
TREE = Path(__file__).parents[3]
VLLM_PYTHON = TREE / ".venv-vllm" / "bin" / "python"
LMCACHE_FOLDER = TREE / ".venv-peers" / "lmcache-vllm"
MEMORY = Path("/dev/shm")  # noqa: S108  # tmpfs is what is measured
START_SECONDS = 120.0
STOP_SECONDS = 20.0
STORE = ("--tier1-bytes", "4GiB", "--extent-bytes", "512MiB")


@dataclass(frozen=True)
class Way:
    """A connector in the form that servers get it. ``transfer`` is None for a server without one.

    ``files`` is the folder of a connector's files, ``environment`` has the variables of its
    servers. ``byte_counter`` is the name of its counters of copied bytes, with ``stored`` or
    ``loaded`` for the braces.
    """

    name: str
    transfer: dict[str, object] | None = None
    environment: dict[str, str] = field(default_factory=dict)
    files: Path | None = None
    byte_counter: str | None = None

    def arguments(self) -> list[str]:
        """Returns the arguments of a server's command line."""
        if self.transfer is None:
            return []
        asked = {"kv_role": "kv_both", "kv_load_failure_policy": "recompute", **self.transfer}
        return ["--kv-transfer-config", json.dumps(asked)]


@contextmanager
def _alone() -> Iterator[Way]:
    """Yields vLLM without a connector."""
    yield Way(ALONE)


@contextmanager
def _kvstore(name: str, connector: str) -> Iterator[Way]:
    """Yields one of kvstore's connectors, with a store."""
    with running_store(*STORE) as store:
        # This tree's own connector, wherever one is installed.
        path = os.pathsep.join([str(TREE), str(TREE / "clients" / "python")])
        transfer: dict[str, object] = {
            "kv_connector": connector,
            "kv_connector_module_path": "kvstore_vllm",
            "kv_connector_extra_config": {"runtime_dir": str(store.runtime_dir)},
        }
        # vLLM's own connector counts its bytes otherwise.
        counter = "kvstore_{}_bytes" if name == KVSTORE else None
        yield Way(name, transfer, {"PYTHONPATH": path}, byte_counter=counter)


@contextmanager
def _example() -> Iterator[Way]:
    """Yields vLLM's own example connector, with its files in memory."""
    with tempfile.TemporaryDirectory(prefix="vllm-example-", dir=MEMORY) as folder:
        transfer: dict[str, object] = {
            "kv_connector": "ExampleConnector",
            "kv_connector_extra_config": {"shared_storage_path": folder},
        }
        yield Way(EXAMPLE, transfer, files=Path(folder))


@contextmanager
def _lmcache() -> Iterator[Way]:
    """Yields LMCache's standalone server and its connector from a separate folder."""
    port, http, metrics = free_ports(3)
    name = f"vllm-bench-{os.getpid()}-{port}"
    environment = {"PYTHONPATH": str(LMCACHE_FOLDER), "LMCACHE_DISABLE_BANNER": "1"}
    command = [
        *(str(VLLM_PYTHON), "-m", "lmcache.cli.main", "server"),
        *("--host", "127.0.0.1", "--port", str(port), "--http-port", str(http)),
        *("--prometheus-port", str(metrics), "--shm-name", name),
        # Without these two options bytes are sent as pickles.
        *("--supported-transfer-mode", "engine_driven", "--no-l1-use-lazy"),
        *("--l1-size-gb", "4", "--eviction-policy", "LRU", "--chunk-size", "256"),
    ]
    with ExitStack() as stack:
        log_path = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="lmcache-")), "log")
        log = stack.enter_context(log_path.open("wb"))
        stack.callback((MEMORY / name).unlink, missing_ok=True)
        server = subprocess.Popen(  # noqa: S603  # our own command line
            command, env={**os.environ, **environment}, stdout=log, stderr=log
        )
        stack.callback(_stop, server)
        if not wait_until(lambda: server.poll() is not None or listens(port), START_SECONDS) or (
            server.poll() is not None
        ):
            said = log_path.read_text(encoding="utf-8", errors="replace")
            raise RuntimeError(f"LMCache's server did not start:\n{said[-4_000:]}")
        transfer: dict[str, object] = {
            "kv_connector": "LMCacheMPConnector",
            "kv_connector_extra_config": {
                "lmcache.mp.host": "tcp://127.0.0.1",
                "lmcache.mp.port": port,
            },
        }
        yield Way(LMCACHE, transfer, environment)


def _lmcache_missing() -> str:
    """Returns why LMCache cannot run here, or nothing if it can."""
    if LMCACHE_FOLDER.exists():
        return ""
    return "not set up: run benchmarks/peers/lmcache_vllm_environment.py"


def _stop(process: "subprocess.Popen[bytes]") -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


class WayStart(NamedTuple):
    """The start of a way. ``missing`` returns why it cannot run here, or nothing if it can.

    ``start`` runs what the way needs beside vLLM until its ``with`` ends. Raises
    ``RuntimeError`` if that does not start.
    """

    start: Callable[[], AbstractContextManager[Way]]
    missing: Callable[[], str] = str


# In the order of the tables. A further way is one more line.
WAYS = {
    ALONE: WayStart(_alone),
    KVSTORE: WayStart(partial(_kvstore, KVSTORE, "KvstoreConnector")),
    OFFLOADING: WayStart(partial(_kvstore, OFFLOADING, "KvstoreOffloadingConnector")),
    LMCACHE: WayStart(_lmcache, _lmcache_missing),
    EXAMPLE: WayStart(_example),
}
