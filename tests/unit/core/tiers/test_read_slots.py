"""The uses that count as recent, by time."""

from kvstore.core.tiers.read_slots import NOTE_SECONDS, RECENT_SECONDS, RecentUses


def test_everything_is_recent_at_the_start() -> None:
    """Until there is a note of a minute ago nothing may be evicted."""
    uses = RecentUses()
    assert uses.since(0.0) == 0
    uses.note(0.0, 7)
    assert uses.since(RECENT_SECONDS - 1) == 0
    assert uses.since(RECENT_SECONDS) == 8


def test_the_latest_note_of_a_minute_ago_counts() -> None:
    """Older ones are dropped, and so are those within a second of another."""
    uses = RecentUses()
    for second in range(200):
        uses.note(float(second), 10 * second)
        uses.note(second + NOTE_SECONDS / 2, 10 * second + 5)
    assert uses.since(199.0) == 10 * 139 + 1
    assert len(uses._notes) <= RECENT_SECONDS + 2


def test_a_pause_in_the_notes_makes_more_of_the_uses_recent() -> None:
    """A page is not evicted for what nobody noted."""
    uses = RecentUses()
    uses.note(0.0, 5)
    uses.note(100.0, 50)
    assert uses.since(120.0) == 6
    assert uses.since(160.0) == 51
