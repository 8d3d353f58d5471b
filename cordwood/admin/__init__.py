"""Calls about logs, consumers and nodes, answered by any node."""
