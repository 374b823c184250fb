"""The cache machine: a hypothesis state machine of the core beside a naive model."""
