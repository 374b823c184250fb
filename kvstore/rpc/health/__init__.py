"""The health of the server, as grpc.health.v1 reports it."""
