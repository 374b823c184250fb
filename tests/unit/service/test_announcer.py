"""Announcements."""

from kvstore.service.event_watches import ChangePublisher


def test_everybody_who_listens_is_woken_once_an_announcement() -> None:
    """All subscribers are called at each announcement, until they unsubscribe."""
    announcer, woken = ChangePublisher(), []

    def first() -> None:
        woken.append("first")

    def second() -> None:
        woken.append("second")

    announcer.announce()
    announcer.subscribe(first)
    announcer.subscribe(second)
    announcer.announce()
    announcer.unsubscribe(first)
    announcer.announce()
    assert woken == ["first", "second", "second"]
