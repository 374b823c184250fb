"""Writes kvstore/v1 and docs/protocol.md from proto/kvstore/v1/*.proto.

Run it after a change of the contract: `.venv/bin/python proto/generate.py`.
The result is committed, and tests/static/test_generated_code.py keeps the three in step.
`--out FOLDER` writes FOLDER/kvstore/v1 and FOLDER/docs/protocol.md instead, and leaves the tree
alone.
"""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.rpc import status_pb2

import reference

PROTO = Path(__file__).resolve().parent
PACKAGE = Path("kvstore", "v1")
PAGE = Path("docs", "protocol.md")
# What this script owns in the package; whatever else lies there is not its business.
GENERATED = ("*_pb2.py", "*_pb2.pyi", "*_pb2_grpc.py")
INIT = '''"""The protocol, generated from proto/kvstore/v1 by proto/generate.py: do not edit."""
'''


def sources() -> list[str]:
    """Returns the contract's files, relative to proto/, in a fixed order."""
    return sorted(path.relative_to(PROTO).as_posix() for path in (PROTO / PACKAGE).glob("*.proto"))


def include_options() -> list[str]:
    """Returns protoc's search path: ours, and where the package of google.rpc keeps its protos.

    protoc brings google.protobuf itself.
    """
    googleapis = Path(status_pb2.__file__).parents[2]
    return [f"-I{PROTO}", f"-I{googleapis}"]


def generate(out: Path) -> Path:
    """Writes package and page under `out`, in place of files generated before; returns the package.

    Raises CalledProcessError where protoc refuses the contract.
    """
    package = out / PACKAGE
    package.mkdir(parents=True, exist_ok=True)
    for pattern in GENERATED:
        for stale in package.glob(pattern):
            stale.unlink()
    (out / PAGE).parent.mkdir(parents=True, exist_ok=True)
    outputs = [f"--{kind}_out={out}" for kind in ("python", "pyi", "grpc_python")]
    protoc = [sys.executable, "-m", "grpc_tools.protoc", *include_options()]
    with tempfile.TemporaryDirectory() as folder:
        described = Path(folder, "contract.binpb")
        outputs += ["--include_source_info", f"--descriptor_set_out={described}"]
        subprocess.run([*protoc, *outputs, *sources()], check=True)  # noqa: S603 - our own arguments
        files = FileDescriptorSet.FromString(described.read_bytes()).file
    (package / "__init__.py").write_text(INIT, encoding="utf-8")
    (out / PAGE).write_text(reference.page(files), encoding="utf-8")
    return package


def main() -> int:
    """Generate, and exit 0; protoc has said what is wrong where it exits 1."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=PROTO.parent, help="default: the repository")
    out: Path = parser.parse_args().out
    try:
        generate(out)
    except subprocess.CalledProcessError:
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
