"""Rules of :mod:`graphopt.passes.replace_numpy`, by topic."""
