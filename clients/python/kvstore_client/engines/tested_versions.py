"""The versions of an engine that a connector was tested with."""

import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata


@dataclass(frozen=True)
class TestedVersions:
    """A range of versions, from ``first`` on and before ``end``, each as many numbers.

    ``engine`` and ``package`` are the engine's name and its name for pip. ``distributions`` may
    carry its module, and ``any_version`` is the environment variable that only warns.
    """

    # It is no class of tests.
    __test__ = False

    connector: str
    engine: str
    package: str
    first: tuple[int, ...]
    end: tuple[int, ...]
    any_version: str
    distributions: tuple[str, ...]

    def require(self, version: str, environment: Mapping[str, str] = os.environ) -> None:
        """Raises ``ImportError`` for a version that the connector was not tested with.

        ``version`` is the module's ``__version__``. If it is no number, as in a checkout that was
        never built ("dev"), the version of the installed distribution counts. A version that
        neither tells is not supported. With the environment variable ``any_version=1`` this only
        warns (``RuntimeWarning``).
        """
        release = self._release(version) or self._installed_release()
        if release is not None and self.first <= release < self.end:
            return
        first, end = (".".join(map(str, each)) for each in (self.first, self.end))
        tested = f"{self.engine} >={first},<{end}"
        advice = f"{self.connector} was tested with {tested}, and this is {version}"
        if environment.get(self.any_version) == "1":
            warnings.warn(
                f"{advice}: {self.any_version}=1 goes on at your risk", RuntimeWarning, stacklevel=3
            )
            return
        raise ImportError(
            f"{advice}. Install one in that range, such as by pip install "
            f"'{self.package}>={first},<{end}', or set {self.any_version}=1 to try this"
        )

    def _release(self, version: str) -> tuple[int, ...] | None:
        """Returns the first numbers of a version, or None if it does not begin with them.

        Returns None also for zeros, the version of a build without tags.
        """
        parts = version.lstrip("v").partition("+")[0].split(".")[: len(self.first)]
        if len(parts) < len(self.first) or not all(part.isdigit() for part in parts):
            return None
        release = tuple(map(int, parts))
        return release if any(release) else None

    def _installed_release(self) -> tuple[int, ...] | None:
        for name in self.distributions:
            try:
                found = self._release(metadata.version(name))
            except metadata.PackageNotFoundError:
                continue
            if found is not None:
                return found
        return None
