"""A naive consumer of KV events has the store's tree after any history."""

import random
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import given, settings
from hypothesis import strategies as st

from core.core_builders import CoreWorld
from core.tiered_world import make, move
from kv_events.stream_rig import StreamRig
from stores.store_world import ManualClock

# A step of a history: what happens, and a number that says to what.
STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            ["publish", "publish", "publish", "evict", "move", "step", "step", "read", "restart"]
        ),
        st.integers(0, 1 << 30),
    ),
    max_size=40,
)


def world_of(tiers: int) -> CoreWorld:
    """Returns a cache that soon has to evict."""
    return CoreWorld(slots=12) if tiers == 1 else make(slots=8, lower_slots=12)


def letters_of(number: int) -> str:
    """Returns a sequence that begins as others do."""
    chance = random.Random(number)
    return "".join(chance.choices("ab", k=chance.randint(1, 6)))


@settings(deadline=None)
@given(
    steps=STEPS,
    tiers=st.sampled_from([1, 2]),
    loss=st.sampled_from([0.0, 0.3, 0.8]),
    most_batches=st.sampled_from([2, 8, 1000]),
    room_bytes=st.sampled_from([900, 1 << 20]),
    seed=st.integers(0, 1 << 16),
)
def test_a_consumer_has_the_tree_of_the_store(
    steps: list[tuple[str, int]],
    tiers: int,
    loss: float,
    most_batches: int,
    room_bytes: int,
    seed: int,
) -> None:
    """Splits, merges, evictions, moves, restarts, lost batches, small buffers and overflows."""
    chance = random.Random(seed)
    clock = ManualClock()
    walls = count(1_700_000_000, -1000)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))

        def start() -> StreamRig:
            rig = StreamRig(
                folder,
                world_of(tiers),
                most_batches=most_batches,
                room_bytes=room_bytes,
                wall_seconds=next(walls),
                clock=clock,
            )
            stack.callback(rig.close)
            return rig

        rig = start()
        consumer = rig.consumer(lambda _: chance.random() < loss)
        stack.callback(consumer.close)
        for step, number in steps:
            match step:
                case "publish":
                    rig.world.worker.publish(letters_of(number))
                case "evict":
                    rig.world.evict_prefix(letters_of(number)[:2])
                case "move":
                    move(rig.world, most=1 + number % 4, rounds=1)
                case "step":
                    clock.now += number % 12
                    rig.stream.step()
                case "read":
                    consumer.receive(step=rig.step)
                case "restart":
                    rig.close()
                    rig = start()
        # It needs all batches of a snapshot that is larger than the buffer.
        consumer.loses = lambda _: False
        rig.settle(consumer)
