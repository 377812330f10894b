"""Facts about a graph, computed without changing it."""
