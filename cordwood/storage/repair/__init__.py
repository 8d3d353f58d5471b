"""Repair: copies that rotted are fetched from other nodes and stored again."""
