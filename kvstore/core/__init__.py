"""The pure core: standard library only, single-threaded, time passed in."""
