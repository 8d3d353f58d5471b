"""Appends of the client: records into blocks, blocks to sequencers, answers back."""
