"""x."""


def run(best, seed): ...
