"""How the client finds logs, their numbers, and where they end."""
