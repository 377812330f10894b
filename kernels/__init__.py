"""The kernels of graphopt, imported as `graphopt.kernels`."""

if __name__ != "graphopt.kernels":
    raise ImportError("import graphopt.kernels: the folder kernels/ is not a package of its own")
