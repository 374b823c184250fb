"""The key of a namespace: its identity, and the layout of its pages."""

from dataclasses import dataclass
from typing import NamedTuple

from kvstore.v1 import types_pb2
from kvstore_client.values.page_layout import PageLayout


@dataclass(frozen=True)
class NamespaceIdentity:
    """The engines that may share pages, within the caller's own tenant.

    ``model_digest`` is of the weights and configuration. ``adapter_digest`` is of
    the adapter, or empty. ``salt`` separates namespaces that are otherwise equal.
    ``display_name`` is for people and is not compared.
    """

    model_digest: bytes
    adapter_digest: bytes = b""
    salt: bytes = b""
    display_name: str = ""

    def to_message(self) -> types_pb2.NamespaceIdentity:
        """Returns the identity as a protocol message."""
        return types_pb2.NamespaceIdentity(
            model_digest=self.model_digest,
            adapter_digest=self.adapter_digest,
            salt=self.salt,
            display_name=self.display_name,
        )


class NamespaceKey(NamedTuple):
    """The identity and layout by which a namespace is opened."""

    identity: NamespaceIdentity
    layout: PageLayout
