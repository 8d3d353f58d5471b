"""The client: append, read, ask; asyncio inside, blocking for callers without a loop."""
