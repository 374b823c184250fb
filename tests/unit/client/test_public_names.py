"""The public names of the package."""

import kvstore_client


def test_public_names_are_sorted_and_there() -> None:
    """The names of __all__ are importable, unique and sorted."""
    assert sorted(set(kvstore_client.__all__)) == kvstore_client.__all__
    assert all(hasattr(kvstore_client, name) for name in kvstore_client.__all__)


def test_public_names_have_docstrings() -> None:
    """Every public name has a docstring."""
    missing = [n for n in kvstore_client.__all__ if not getattr(kvstore_client, n).__doc__]
    assert missing == []
