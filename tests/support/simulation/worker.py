"""A worker's process: a real client, a device, and engines that use them."""

from kvstore_client import Client, ClientConfig, Namespace, NamespaceIdentity, OpaqueContent
from kvstore_client import PageLayout as Layout
from kvstore_client.errors import StoreError
from simulation.device import Device
from simulation.engine import Engine
from simulation.node import PAGE_BYTES, PAGE_TOKENS, StoreNode
from simulation.sockets import SimProcess
from simulation.world import World

IDENTITY = NamespaceIdentity(b"a model's digest")
LAYOUT = Layout(PAGE_TOKENS, PAGE_BYTES, OpaqueContent(b"cells", divides_by_token=True))
# Seconds. Requests are a hundred times shorter, stops some times longer than the TTL.
TTL = 0.4
CALL_TIMEOUT = 0.1


def config_of(name: str, device: Device | None = None) -> ClientConfig:
    """Returns a client's settings, with the times of a simulation."""
    return ClientConfig(
        display_name=name,
        ttl=TTL,
        call_timeout=CALL_TIMEOUT,
        connect_timeout=0.3,
        first_backoff=0.02,
        longest_backoff=0.2,
        close_timeout=1.0,
        wait_for_device=None if device is None else device.wait,
        cuda_mps=False,
    )


class Worker:
    """A process that serves requests, in one or two threads, from its start."""

    def __init__(self, world: World, name: str, uid: int) -> None:
        self.process = SimProcess(name, uid)
        self.hit = False
        self.closed = False
        self._world = world
        self._client: Client | None = None
        self._namespace: Namespace | None = None
        self._engines: list[Engine] = []
        self._lease_id = b""
        self.process.spawn("main", self._begin)

    def _begin(self) -> None:
        world, kernel = self._world, self._world.kernel
        device = Device(kernel, self.process, world.oracle)
        client = Client(world.folder, config_of(self.process.name, device))
        client.start()
        self._namespace = client.namespace(IDENTITY, LAYOUT)
        self._engines = [
            Engine(
                kernel,
                self.process,
                client,
                self._namespace,
                device=device,
                oracle=world.oracle,
                number=2 * self.process.pid + number,
                busy=lambda: world.busy,
            )
            for number in range(kernel.random.choice((1, 1, 2)))
        ]
        self._client = client
        for engine in self._engines:
            self.process.spawn("engine", engine.run)

    @property
    def idle(self) -> bool:
        """Returns whether all its requests have ended."""
        return self._client is not None and all(each.idle for each in self._engines)

    @property
    def connected(self) -> bool:
        """Returns whether its client is connected, and its namespace open if there is memory."""
        if self._client is None:
            return False
        return self._client.connected and (self._failure is None or self.has_no_memory)

    @property
    def has_no_memory(self) -> bool:
        """Returns whether all memory belongs to another tenant."""
        return self._failure is not None and "POOL_EXHAUSTED" in str(self._failure)

    @property
    def _failure(self) -> StoreError | None:
        assert self._namespace is not None
        return self._namespace.failure

    def prove(self) -> None:
        """Publishes a prompt, and find it; ``hit`` says when that is done."""
        self.process.spawn("prove", self._prove)

    def _prove(self) -> None:
        [engine, *_] = self._engines
        assert self._namespace is not None
        prompt = (9,) * (2 * PAGE_TOKENS + 1)
        while not self.hit and not self.has_no_memory:
            engine.serve(prompt)
            with self._namespace.match(prompt) as match:
                self.hit = match.token_count > 0 and match.failure is None
            self._world.kernel.sleep(0.05)
        self.hit = True

    def close(self) -> None:
        """Closes the client as a program does at its end."""
        self.process.spawn("close", self._close)

    def _close(self) -> None:
        assert self._client is not None
        self._client.close()
        self.closed = True

    def holds_at(self, node: StoreNode) -> bool:
        """Returns whether a lease of this worker is at the store."""
        return self.process.name in {each.display_name for each in node.leases()}
