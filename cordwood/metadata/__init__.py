"""The metadata store: epochs, logs and members, by versioned compare-and-set."""
