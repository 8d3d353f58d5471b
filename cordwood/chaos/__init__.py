"""Real processes, broken on purpose while clients work, and judged by the simulator's checkers."""
