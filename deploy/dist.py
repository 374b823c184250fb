"""Builds what is released: an sdist of the last commit, and from that sdist the wheel.

The same commit gives the same bytes: times in the archives are the commit's, or
``$SOURCE_DATE_EPOCH``. It is built twice and compared. The one argument is the folder that
both go to.
"""

import hashlib
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]


def build(kind: str, tree: Path, out: Path, epoch: str) -> Path:
    """Build the ``sdist`` or ``wheel`` of a tree with this environment's backend; return its path.

    ``epoch`` is the time that files have in it, in seconds since 1970. Ends the process with
    what the backend said where that fails.
    """
    before = set(out.glob("*")) if out.exists() else set()
    said = subprocess.run(  # noqa: S603 - our own interpreter
        [sys.executable, "-m", "hatchling", "build", "--target", kind, "--directory", str(out)],
        cwd=tree,
        env={**os.environ, "SOURCE_DATE_EPOCH": epoch},
        capture_output=True,
        text=True,
        check=False,
    )
    if said.returncode:
        sys.exit(f"The {kind} cannot be built:\n{said.stdout}{said.stderr}")
    (made,) = set(out.glob("*")) - before
    return made


def build_both(tree: Path, out: Path, epoch: str) -> list[Path]:
    """Builds a tree's sdist, and the wheel of what is in that sdist; returns both paths."""
    sdist = build("sdist", tree, out, epoch)
    with tempfile.TemporaryDirectory(prefix="kvstore-dist-") as folder:
        with tarfile.open(sdist) as archive:
            if hasattr(tarfile, "data_filter"):
                archive.extractall(folder, filter="data")
            else:  # Python 3.11.2 has none
                archive.extractall(folder)  # noqa: S202 - made right above
        (unpacked,) = Path(folder).iterdir()
        return [sdist, build("wheel", unpacked, out, epoch)]


def digests(paths: list[Path]) -> dict[str, str]:
    """Returns the SHA-256 of files by their names."""
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}


def git(*arguments: str) -> bytes:
    """Returns what git says of our tree; raises ``CalledProcessError``."""
    command = ["git", "-C", str(ROOT), *arguments]
    return subprocess.run(command, capture_output=True, check=True).stdout  # noqa: S603


def main() -> int:
    """Builds both twice, and returns 1 where they differ."""
    out = Path(sys.argv[1]).resolve()
    epoch = os.environ.get("SOURCE_DATE_EPOCH") or git("log", "-1", "--format=%ct").decode().strip()
    if git("status", "--porcelain"):
        print("What is not committed is not in it.")
    found = []
    with tempfile.TemporaryDirectory(prefix="kvstore-dist-") as folder:
        for name in ("first", "second"):
            tree = Path(folder) / name
            tree.mkdir()
            command = ["tar", "--extract", "--directory", str(tree)]
            archive = git("archive", "--format=tar", "HEAD")
            subprocess.run(command, input=archive, check=True)  # noqa: S603
            where = out if name == "first" else Path(folder) / "again"
            found.append(digests(build_both(tree, where, epoch)))
    for name, digest in found[0].items():
        print(f"{digest}  {name}")
    if found[0] != found[1]:
        print("The second build differs from the first.")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
