"""Measurements that anyone can run again, each beside a reference from the same run.

Machines differ, and the same machine differs by the hour, so a number alone says little. A figure
is the median of several repeats, and its ratio to a reference that was measured between them.
"""
