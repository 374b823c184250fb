"""Runs a program as if a package were not installed.

``python -m processes.without_package PACKAGE MODULE ARGUMENT...`` runs ``python -m MODULE``.
"""

import runpy
import sys

if __name__ == "__main__":
    missing, module, *arguments = sys.argv[1:]
    sys.modules[missing] = None  # type: ignore[assignment]
    sys.argv[1:] = arguments
    runpy.run_module(module, run_name="__main__", alter_sys=True)
