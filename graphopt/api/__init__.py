"""The functions behind ``import graphopt``; one idea a module."""
