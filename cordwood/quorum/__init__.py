"""Nodesets, copysets, and the sets of nodes whose answers decide a question."""
