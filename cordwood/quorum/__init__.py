"""Who must answer: nodesets, copysets and the sets of nodes that decide."""
