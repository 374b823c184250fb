"""Modules in place of packages for a GPU that SGLang imports and a CPU engine never calls.

`torchvision`, `torchaudio`, `sgl_kernel` and `triton` have no build for a CPU, or one of a
gigabyte. Their names can be imported and used as decorators and types; a call of any other
function raises ``RuntimeError`` with its name.
"""

import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Sequence
from typing import Any

REPLACED = ("torchvision", "torchaudio", "sgl_kernel", "triton")
# Decorators that are called with options before they get a function.
WITH_OPTIONS = frozenset({"triton.jit", "triton.autotune", "triton.heuristics"})


class _AnyAttribute(type):
    """The type of classes whose every attribute is a name."""

    def __getattr__(cls, name: str) -> str:
        if name.startswith("__"):
            raise AttributeError(name)
        return f"{cls.__name__}.{name}"


class _Function:
    """A function of a replaced module. It decorates, and computes what imports compute with it."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> "_Function":
        if name.startswith("__"):
            raise AttributeError(name)
        return _Function(f"{self._name}.{name}")

    def __call__(self, *arguments: Any, **named: Any) -> Any:  # noqa: ANN401  # any function
        if len(arguments) == 1 and callable(arguments[0]) and not named:
            return arguments[0]
        if self._name in WITH_OPTIONS:
            return lambda function: function
        if self._name == "triton.cdiv":
            return -(arguments[0] // -arguments[1])
        if self._name == "triton.next_power_of_2":
            return 1 << (arguments[0] - 1).bit_length()
        if self._name.startswith("triton.language."):
            return arguments[0] if arguments else None
        raise RuntimeError(f"{self._name} has no CPU build, and this module only names it")


class _Module(types.ModuleType):
    """A replaced module, or one within it: capitalised names are types, others functions."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__path__: list[str] = []
        self.__file__ = __file__
        self.__version__ = "0.0.0"

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401  # a type or a function
        if name.startswith("__"):
            raise AttributeError(name)
        value: Any
        if name[:1].isupper():
            members = {"__module__": self.__name__, "__init__": lambda *_, **__: None}
            value = _AnyAttribute(name, (), members)
        else:
            value = _Function(f"{self.__name__}.{name}")
        setattr(self, name, value)
        return value


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the replaced packages and everything within them."""

    def find_spec(
        self,
        name: str,
        path: Sequence[str] | None = None,  # noqa: ARG002  # importlib's arguments
        target: types.ModuleType | None = None,  # noqa: ARG002
    ) -> importlib.machinery.ModuleSpec | None:
        """Returns a specification for a replaced module, None for any other."""
        if name.split(".", maxsplit=1)[0] in REPLACED:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        """Returns the module of a specification."""
        return _Module(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """Runs nothing: all names are made at their first use."""


sys.meta_path.insert(0, _Finder())
