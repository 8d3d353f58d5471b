"""The write path: activation, numbering, waves."""
