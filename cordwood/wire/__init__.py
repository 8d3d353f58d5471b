"""Connections: hello, framed streams, corking, deadlines."""
