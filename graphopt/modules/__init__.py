"""MXNet's interface before Gluon: executors and modules."""
