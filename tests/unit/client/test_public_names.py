"""The public names of the package."""

import kvstore_client


def test_public_names_are_sorted_and_there() -> None:
    """Each name of __all__ can be imported, once, in order; errors are a module of their own."""
    assert sorted(set(kvstore_client.__all__)) == kvstore_client.__all__
    assert all(hasattr(kvstore_client, name) for name in kvstore_client.__all__)


def test_public_names_have_docstrings() -> None:
    """Everything public says what it promises."""
    missing = [n for n in kvstore_client.__all__ if not getattr(kvstore_client, n).__doc__]
    assert missing == []
