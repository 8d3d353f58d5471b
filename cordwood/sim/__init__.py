"""A whole cluster on a seeded virtual-time loop, its faults and its checkers."""
