"""Plain data and arithmetic: tokens, layouts, slots, requests, limits, counters, events."""
