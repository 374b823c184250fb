"""SGLang's router in front of servers, in an environment of its own."""

import json
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any, Final

from kvstore_client.testing import wait_until
from support.loopback import HOST, free_ports

PYTHON: Final = Path(__file__).parents[3] / ".venv-routers" / "bin" / "python"
# Seconds for a router to find its servers.
START_SECONDS: Final = 60.0
STOP_SECONDS: Final = 15.0
# Notices a dead server within a second or two, and takes it out after two failures. The defaults
# are a look a minute, and ten failures.
OPTIONS: Final = (
    *("--assignment-mode", "min_load"),
    *("--worker-startup-check-interval", "1", "--health-check-interval-secs", "1"),
    *("--health-check-timeout-secs", "2", "--health-failure-threshold", "2"),
    *("--cb-failure-threshold", "2", "--cb-timeout-duration-secs", "2"),
    *("--retry-max-retries", "10", "--retry-initial-backoff-ms", "20"),
    *("--retry-max-backoff-ms", "500", "--request-timeout-secs", "120"),
)


class SglangRouter:
    """A running ``sglang_router.launch_router``. One thread uses it."""

    def __init__(self, servers: Sequence[str], policy: str, log: Path) -> None:
        """Starts it in front of servers' URLs, and does not wait."""
        self._servers = list(servers)
        self._log = log
        self._port, prometheus = free_ports(2)
        self.url = f"http://{HOST}:{self._port}"
        command = [str(PYTHON), "-m", "sglang_router.launch_router", "--policy", policy]
        command += ["--host", HOST, "--port", str(self._port), "--worker-urls", *self._servers]
        command += ["--prometheus-host", HOST, "--prometheus-port", str(prometheus), *OPTIONS]
        with log.open("wb") as output:
            self._process = subprocess.Popen(  # noqa: S603 - a program that was installed for this
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output
            )

    def wait(self) -> None:
        """Waits until it knows all servers and finds them well; raises ``RuntimeError``."""
        wait_until(
            lambda: self._process.poll() is not None or len(self.healthy()) == len(self._servers),
            START_SECONDS,
        )
        if len(self.healthy()) != len(self._servers):
            raise RuntimeError(f"no router started:\n{self._log.read_text(errors='replace')}")

    def workers(self) -> list[dict[str, Any]]:
        """Returns its descriptions of the servers, none while it does not answer."""
        with closing(HTTPConnection(HOST, self._port, timeout=5.0)) as connection:
            try:
                connection.request("GET", "/workers")
                found = json.loads(connection.getresponse().read())
            except (OSError, HTTPException, ValueError):
                return []
        workers: list[dict[str, Any]] = found.get("workers", [])
        return workers

    def healthy(self) -> list[str]:
        """Returns the URLs of the servers that it finds well."""
        return sorted(each["url"] for each in self.workers() if each.get("is_healthy"))

    @property
    def log(self) -> str:
        """The router's log so far."""
        return self._log.read_text(errors="replace")

    def close(self) -> None:
        """Ends it, by force if it takes too long."""
        self._process.terminate()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


@contextmanager
def routing(servers: Sequence[str], policy: str, log: Path) -> Iterator[SglangRouter]:
    """Runs a router in front of servers' URLs until the block ends."""
    router = SglangRouter(servers, policy, log)
    with closing(router):
        router.wait()
        yield router
