"""The salts that separate an engine's requests."""

from hypothesis import given
from hypothesis import strategies as st

from kvstore_sglang.engine.salts import RequestSalts

KEYS = st.one_of(st.none(), st.text(max_size=5))


def test_a_plain_request_of_an_engine_without_a_salt_has_none() -> None:
    """Engines without a salt share their plain pages."""
    assert RequestSalts("").plain == b""
    assert RequestSalts("").of("", "") == RequestSalts("").of(None, None) == b""
    assert RequestSalts("blue").plain == RequestSalts("blue").plain != b""


@given(KEYS, KEYS, KEYS, KEYS)
def test_two_requests_share_a_salt_only_if_both_keys_are_equal(
    extra: str | None, user: str | None, other_extra: str | None, other_user: str | None
) -> None:
    """An extra key is never taken for a salt, and neither for a part of the other."""
    salts = RequestSalts("blue")
    same = (extra or "", user or "") == (other_extra or "", other_user or "")
    assert (salts.of(extra, user) == salts.of(other_extra, other_user)) is same


def test_after_a_flush_every_salt_is_another() -> None:
    """Neither the engine itself nor a second one has these salts again."""
    one, other = RequestSalts(""), RequestSalts("")
    seen = {one.of("a", None), one.plain}
    for salts in (one, other, one):
        salts.renew()
        seen |= {salts.of("a", None), salts.plain}
    assert len(seen) == 8
    assert one.plain == one.plain
