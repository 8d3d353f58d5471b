"""Rebuilding on a node: its answers about copies, its work as a donor, its reports of losses."""
