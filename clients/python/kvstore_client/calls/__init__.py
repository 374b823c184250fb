"""Calls to a store, over gRPC, lanes and the attach socket."""
