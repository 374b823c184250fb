"""Keeps gRPC's core out of the server's log; to be imported before ``grpc``, which reads it then.

The core writes lines of its own to stderr, with the server name of a TLS handshake as it
came, line ends included: whoever reaches the address could write what looks like ours.
An operator who looks for the cause of a failed handshake sets GRPC_VERBOSITY=error.
"""

import os

os.environ.setdefault("GRPC_VERBOSITY", "NONE")
