"""Rebuilding: what a node says of its copies, what it gives as a donor, what it says of losses."""
