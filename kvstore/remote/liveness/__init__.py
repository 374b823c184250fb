"""The engine as a store uses it: calls with deadlines, failures, probes and ramps."""
