"""Every byte that crosses a wire or lies on a disk."""
