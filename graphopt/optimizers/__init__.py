"""Optimizers of MXNet, whose updates of all weights are one call of compiled kernels."""
