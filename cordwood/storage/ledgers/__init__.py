"""Ledgers on a storage node: their entries, their fences, and what is told of their LAC."""
