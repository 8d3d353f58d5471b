"""Push streams: blocks on their way to readers."""
