"""Errors of remote engines, one class a reason, and the reaction that each one calls for.

::

    RemoteError                 reaction
    ├── EngineUnreachable       AWAY     no connection: refused, no route, no such name
    ├── EngineCut               AWAY     the connection ended in the middle of a call
    ├── DeadlinePassed          AWAY     the deadline passed before the answer
    ├── ReplyMalformed          AWAY     the reply breaks the protocol or has another length
    ├── EngineLoading           AWAY     the engine reads its data and serves nothing yet
    ├── EngineBusy              AWAY     the engine runs something long
    ├── ClusterDown             AWAY     the engine's cluster or master is down
    ├── EngineClosed            AWAY     this side closed the engine
    ├── EngineFaulty            AWAY     this side's part of the engine has a fault
    ├── NodeAway                NODE     one node of the engine is away, and others answer
    ├── CredentialRefused       OPERATOR the engine does not accept the credential
    ├── CommandForbidden        OPERATOR the credential may not run the command on the key
    ├── WrongNode               OPERATOR another node of a cluster has the key
    ├── EngineFull              VALUE    no memory is left for a value
    ├── EngineReadOnly          VALUE    the engine is a replica
    ├── EngineNotPersisting     VALUE    the engine cannot save and refuses writes
    ├── ReplicasMissing         VALUE    fewer replicas are connected than the engine requires
    ├── TryAgain                VALUE    the engine moves the key to another node
    └── EngineRefused           VALUE    the engine refused for a reason that no other class names

No class is final: an engine whose password was rotated works again once the file has the new one.
"""

from enum import Enum
from typing import ClassVar


class Reaction(Enum):
    """The part of the tier that an error concerns."""

    AWAY = "away"
    """Nothing is known of the call, and the engine may come back by itself."""
    NODE = "node"
    """Nothing is known of these names, and the engine serves those of its other nodes."""
    OPERATOR = "operator"
    """The engine answers, and refuses until somebody changes a setting: probe slowly, and alarm."""
    VALUE = "value"
    """The engine refused this value alone, which counts as a write that was lost."""


class RemoteError(Exception):
    """An engine did not do what a call asked. Nothing is known of the values it did not yield."""

    reaction: ClassVar[Reaction] = Reaction.AWAY


class EngineUnreachable(RemoteError):
    """No connection exists: the engine refused it, or its name or route is unknown."""


class EngineCut(RemoteError):
    """The connection ended during the call."""


class DeadlinePassed(RemoteError):
    """The deadline passed before the answer, or before a connection was free."""


class ReplyMalformed(RemoteError):
    """The reply is none of the protocol, or longer than the value that was asked for."""


class EngineLoading(RemoteError):
    """The engine reads its data and serves nothing yet."""


class EngineBusy(RemoteError):
    """The engine runs something long and answers nothing else."""


class ClusterDown(RemoteError):
    """The engine's cluster, or the master of this replica, is down."""


class EngineClosed(RemoteError):
    """This side closed the engine."""


class EngineFaulty(RemoteError):
    """The engine or a library of it raised an error of no class of these."""


class NodeAway(RemoteError):
    """The node that has the names does not answer, and other nodes of the engine do."""

    reaction = Reaction.NODE


class CredentialRefused(RemoteError):
    """The engine does not accept the credential, or the file of it cannot be read."""

    reaction = Reaction.OPERATOR


class CommandForbidden(RemoteError):
    """The credential may not run the command, or not on this key."""

    reaction = Reaction.OPERATOR


class WrongNode(RemoteError):
    """Another node of a cluster has the key."""

    reaction = Reaction.OPERATOR


class EngineFull(RemoteError):
    """The engine has no memory left for a value."""

    reaction = Reaction.VALUE


class EngineReadOnly(RemoteError):
    """The engine is a replica, or was made one."""

    reaction = Reaction.VALUE


class EngineNotPersisting(RemoteError):
    """The engine cannot save its data, and is set to refuse writes then."""

    reaction = Reaction.VALUE


class ReplicasMissing(RemoteError):
    """Fewer replicas are connected than the engine requires for a write."""

    reaction = Reaction.VALUE


class TryAgain(RemoteError):
    """The engine moves the key to another node at the moment."""

    reaction = Reaction.VALUE


class EngineRefused(RemoteError):
    """The engine refused for a reason that no other class names. The message has its words."""

    reaction = Reaction.VALUE
