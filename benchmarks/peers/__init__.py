"""Cordwood and its peers through the same workloads, on one machine, in one run.

`python -m benchmarks.peers` (`make peers`) measures, saves what it measured as JSON, and draws
the page and the charts from that. One peer's servers run at a time, in a temporary directory,
on loopback. A peer that is not installed is skipped, and the page says so.

Source: docs/sources/hotpath.md §5 (fair clients); research digest on peers §3 (how each is
started).
"""
