"""The gRPC services: each method reads a request, makes one call, and answers."""
