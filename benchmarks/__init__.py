"""Measurements that are not part of the package: they want other people's servers."""
