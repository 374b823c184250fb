"""Why there is no tier 3. Once a slab is open it raises nothing: it is slow, full or failed."""


class SlabUnusable(Exception):
    """The file cannot be a slab, or not on this disk; the message says what to do about it."""


class SlabInUse(SlabUnusable):
    """Another process has the file."""
