"""The pass mechanism: protocol, text pipelines, manager, instruments, remarks.

The collection of passes is :mod:`graphopt.passes`.
"""
