"""Gluon layers of graphopt, and optimized versions of the user's own Blocks."""
