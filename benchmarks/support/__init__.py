"""The parts of the benchmarks, which are one folder up."""
