"""Page runs as newer stores pack them."""

from struct import pack

from kvstore.v1 import types_pb2


def packed(run: types_pb2.PageRun) -> types_pb2.PageRun:
    """Returns a run of repeated fields with its numbers packed instead."""
    return types_pb2.PageRun(
        extent_id=run.extent_id,
        tier=run.tier,
        slot_count=run.slot_count,
        packed_slot_indexes=pack(f"<{len(run.slot_indexes)}I", *run.slot_indexes),
        packed_generations=pack(f"<{len(run.generations)}Q", *run.generations),
    )


def unchanged(run: types_pb2.PageRun) -> types_pb2.PageRun:
    """Returns a run as older stores answer it."""
    return run
