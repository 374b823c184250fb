"""What an engine's lease is called where people look at leases."""

from uuid import UUID

from kvstore_vllm.settings import LONGEST_NAME

# What vLLM puts between an engine's id and its data-parallel rank.
RANK = "_dp"


def lease_name(model: str, engine_id: str) -> str:
    """Return the model's name with what tells its engines apart, of at most 256 bytes.

    That is the `engine_id` of the kv-transfer-config where an operator chose one, and the
    data-parallel rank: both are as they were after a restart. One that vLLM drew says nothing.
    """
    chosen, _, rank = engine_id.rpartition(RANK)
    if not rank.isdecimal() or not chosen:
        chosen, rank = engine_id, ""
    own = "" if _is_drawn(chosen) else chosen
    which = _cut(" ".join(filter(None, (own, rank and f"dp{rank}"))), LONGEST_NAME // 2)
    named = _cut(f"vllm {model}".strip(), LONGEST_NAME - len(f" {which}".encode()))
    return f"{named} {which}".strip()


def _is_drawn(engine_id: str) -> bool:
    try:
        UUID(engine_id)
    except ValueError:
        return False
    return True


def _cut(text: str, most: int) -> str:
    return text.encode()[:most].decode(errors="ignore")
