"""Faults put into the server on purpose, to show that outlive.py sees what it is for."""

from collections.abc import Callable
from types import MappingProxyType

MUTANTS: MappingProxyType[str, Callable[[], None]] = MappingProxyType({})
