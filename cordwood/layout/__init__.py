"""The layout of every byte that Cordwood sends over a wire or writes to a disk."""
