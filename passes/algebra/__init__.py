"""Rules of :mod:`graphopt.passes.simplify_algebra`, by topic."""
