"""Questions to CUDA itself: cupy, the driver and processes alone, none of the project's code.

A probe that answers no says that this machine cannot do it. A test of the project that fails where
its probe answers yes has found a fault of the project.
"""
