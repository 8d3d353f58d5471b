"""Scrubbing: copies that rotted are found before they are needed."""
