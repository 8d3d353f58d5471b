"""Jobs around logs: small modules over the source and the sink, each with a CLI verb."""
