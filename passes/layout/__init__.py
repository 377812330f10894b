"""Rules of :mod:`graphopt.passes.cancel_layout`, by topic."""
