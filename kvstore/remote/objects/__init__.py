"""Engines that keep objects by the library obstore: shared folders and S3."""
