"""The versions of SGLang that this package was tested with."""

from typing import Final

from kvstore_client.engines.tested_versions import TestedVersions

# The external linker changes between SGLang's patch releases.
VERSIONS: Final = TestedVersions(
    connector="kvstore_sglang",
    engine="SGLang",
    package="sglang",
    first=(0, 5, 23),
    end=(0, 5, 24),
    any_version="KVSTORE_SGLANG_ANY_VERSION",
    distributions=("sglang",),
)
