"""Blocks whose Python runs at every call, while the operators it calls run as one graph.

Nothing about a plain Block's ``forward`` is assumed: it runs each time, on arrays that know their
shape and dtype and are not there yet (:mod:`arrays`). What it calls is written down (:mod:`tape`);
when it returns, or asks for a value, the calls are looked up as a program and run compiled
(:mod:`programs`). Suhan et al., "LazyTensor", 2021, do so for PyTorch.
"""
