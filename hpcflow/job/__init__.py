"""Batch node: the supervisor, parent of every process of an attempt."""
