"""Ledgers on a storage node: their entries, their fences, and their LAC as reported."""
