"""What a caller knows of a sequence's future."""

from typing import Literal, NamedTuple

from kvstore.v1 import types_pb2

MILLISECONDS = 1000
# What may be expected, as it travels.
EXPECTED = {
    None: types_pb2.EXPECTED_REUSE_UNSPECIFIED,
    "continues": types_pb2.EXPECTED_REUSE_CONTINUES,
    "one_shot": types_pb2.EXPECTED_REUSE_ONE_SHOT,
}


class ReuseHint(NamedTuple):
    """A hint to the store's eviction policy; a wrong one costs hits, and nothing else.

    ``expected_reuse`` says that the conversation goes on, or that nobody is expected
    to ask for these pages again. It holds for ``horizon`` seconds, None: without an
    end. Pages of higher ``priority``, an int32, go later; zero is ordinary.
    """

    expected_reuse: Literal["continues", "one_shot"] | None = None
    horizon: float | None = None
    priority: int = 0

    def message(self) -> types_pb2.ReuseHint:
        """Return it as it travels; raises ``ValueError`` for an ``expected_reuse`` that is none."""
        expected = EXPECTED.get(self.expected_reuse)
        if expected is None:
            known = " or ".join(repr(each) for each in EXPECTED if each)
            msg = f"expected_reuse is {known}, not {self.expected_reuse!r}"
            raise ValueError(msg)
        # Zero would be no end.
        horizon = 0 if self.horizon is None else max(int(self.horizon * MILLISECONDS), 1)
        return types_pb2.ReuseHint(
            expected_reuse=expected, horizon_ms=horizon, priority=self.priority
        )
