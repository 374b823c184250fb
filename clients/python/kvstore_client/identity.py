"""Who may share pages."""

from dataclasses import dataclass
from typing import NamedTuple

from kvstore.v1 import types_pb2
from kvstore_client.layout import PageLayout


@dataclass(frozen=True)
class NamespaceIdentity:
    """Who may share, within the caller's own tenant.

    ``model_digest`` is of the weights and configuration, ``adapter_digest`` of
    the adapter or empty, ``salt`` keeps otherwise equal namespaces apart.
    ``display_name`` is for people and plays no part in identity.
    """

    model_digest: bytes
    adapter_digest: bytes = b""
    salt: bytes = b""
    display_name: str = ""

    def to_message(self) -> types_pb2.NamespaceIdentity:
        """Returns the identity as it travels."""
        return types_pb2.NamespaceIdentity(
            model_digest=self.model_digest,
            adapter_digest=self.adapter_digest,
            salt=self.salt,
            display_name=self.display_name,
        )


class NamespaceKey(NamedTuple):
    """What a namespace is opened by."""

    identity: NamespaceIdentity
    layout: PageLayout
