"""Scrubbing: finds rotten copies before readers need them."""
