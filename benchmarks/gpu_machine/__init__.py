"""Runs the project on a GPU machine that is lent for minutes and has no network.

``bundle.py`` packs the folder that travels, ``run.py`` runs one of four scripts there,
``dry_run.py`` runs all of them on a machine without a GPU. docs/gpu.md says when to run which.
"""
