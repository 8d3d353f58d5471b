"""Staged blocks: durable, and without LSNs yet."""
