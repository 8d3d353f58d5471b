"""Questions about logs and nodes, and changes of them."""
