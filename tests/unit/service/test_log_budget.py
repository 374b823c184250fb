"""Lines that strangers cause are few, and say how many more there would have been."""

from kvstore.service.log_budget import LogBudget


def test_a_flood_is_few_lines() -> None:
    """As many as a second brings at once; then one says how many were left out."""
    now = 100.0
    lines: list[tuple[str, dict[str, object]]] = []
    budget = LogBudget(lambda: now, 4.0)

    def write(event: str, **fields: object) -> None:
        lines.append((event, fields))

    for _ in range(10):
        budget.write(write, "refused", uid=1)
    assert lines == [("refused", {"uid": 1})] * 4
    now += 0.5
    for _ in range(10):
        budget.write(write, "ended")
    assert lines[4:] == [("ended", {"left_out": 6}), ("ended", {})]
