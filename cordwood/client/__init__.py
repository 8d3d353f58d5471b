"""The client: it appends, reads and asks. It is asyncio code, with a blocking front for callers
without a loop."""
