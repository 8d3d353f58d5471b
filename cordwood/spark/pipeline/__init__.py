"""Pipelines in a file: logs to tables and logs, without a line of Spark code."""
