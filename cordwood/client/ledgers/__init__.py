"""Ledgers for clients: made, written, read, recovered."""
