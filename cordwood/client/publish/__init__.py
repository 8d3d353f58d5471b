"""Staging and publishing: the batches of many writers, each of them once."""
