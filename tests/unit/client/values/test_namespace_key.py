"""The key of a namespace."""

from kvstore_client.values.namespace_key import NamespaceIdentity, NamespaceKey
from kvstore_client.values.page_layout import OpaqueContent, PageLayout


def test_an_identity_travels_whole() -> None:
    """The message of an identity has each of its fields."""
    message = NamespaceIdentity(b"m", b"a", b"s", "name").to_message()
    assert (message.model_digest, message.adapter_digest) == (b"m", b"a")
    assert (message.salt, message.display_name) == (b"s", "name")


def test_equal_namespaces_have_equal_keys() -> None:
    """Two keys of the same namespace are equal."""

    def key(salt: bytes) -> NamespaceKey:
        return NamespaceKey(
            NamespaceIdentity(b"m", salt=salt), PageLayout(4, 8, OpaqueContent(b"x"))
        )

    assert {key(b"a"): 1}[key(b"a")] == 1
    assert key(b"a") != key(b"b")
