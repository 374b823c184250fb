"""The time until a slab knows its pages again."""

import time
from pathlib import Path
from statistics import median
from typing import Any

from kvstore.storage.slab.slab import Slab, SlabConfig
from support.slab.pages import memory, page_of
from support.slab.speed import Ceiling, timed, write_all

PAGE_BYTES = 4096
SEGMENT_BYTES = 64 << 20
# The distance of headers beside their slots, as on a real slab.
STRIDE = 64 << 10
SAMPLE = 4096


def measure_restart(folder: Path, pages: int, rounds: int) -> dict[str, Any]:
    """Returns the seconds to open a slab, and those to read as many scattered headers."""
    path, plain = folder / "restart.slab", folder / "plain"
    size = pages * (PAGE_BYTES + 128) + 2 * SEGMENT_BYTES
    config = SlabConfig(path, size, segment_bytes=SEGMENT_BYTES)
    source = memory(PAGE_BYTES)
    with Slab(config) as slab:
        write_all(slab, source, [page_of(number) for number in range(pages)], PAGE_BYTES)
    wall, processor = [], []
    for _ in range(rounds):
        begun = time.process_time()
        opened = time.perf_counter()
        slab = Slab(config)
        wall.append(time.perf_counter() - opened)
        processor.append(time.process_time() - begun)
        found = slab.use().page_count
        slab.close()
        assert found == pages, found
    path.unlink()
    ceiling = Ceiling(plain, SAMPLE * STRIDE, memory(16 << 20), memory(16 << 20))
    ceiling.write()
    scattered = median(timed(lambda: ceiling.read_places(SAMPLE, STRIDE)) for _ in range(rounds))
    ceiling.close()
    plain.unlink()
    return {
        "pages": pages,
        "seconds": round(median(wall), 3),
        "processor_seconds": round(median(processor), 3),
        "scattered_headers_read_seconds": round(scattered * pages / SAMPLE, 3),
        "raw_seconds": [round(each, 3) for each in wall],
    }
