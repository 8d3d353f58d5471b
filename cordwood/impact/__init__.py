"""Impact: what the absence of nodes would stop, judged for every epoch that may hold records."""
