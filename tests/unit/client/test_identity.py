"""Who may share pages."""

from kvstore_client.layout import NamespaceIdentity, NamespaceKey, OpaqueContent, PageLayout


def test_an_identity_travels_whole() -> None:
    """Every field of an identity is in its message."""
    message = NamespaceIdentity(b"m", b"a", b"s", "name").to_message()
    assert (message.model_digest, message.adapter_digest) == (b"m", b"a")
    assert (message.salt, message.display_name) == (b"s", "name")


def test_equal_namespaces_have_equal_keys() -> None:
    """Two programs' parts that ask for the same namespace find the same one."""

    def key(salt: bytes) -> NamespaceKey:
        return NamespaceKey(
            NamespaceIdentity(b"m", salt=salt), PageLayout(4, 8, OpaqueContent(b"x"))
        )

    assert {key(b"a"): 1}[key(b"a")] == 1
    assert key(b"a") != key(b"b")
