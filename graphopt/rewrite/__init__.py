"""Local rewriting: rules over one node and what stands above it, and the driver that applies them.

A :class:`Rule` is a function with a name and the operators it starts from; a
:class:`~graphopt.rewrite.pattern.PatternRule` says the same with an expression to look for.
"""

from graphopt.rewrite.driver import apply_rules
from graphopt.rewrite.edit import Edit
from graphopt.rewrite.pattern import Match, Op, PatternRule, Var
from graphopt.rewrite.rule import Mismatch, Rule

__all__ = ["Edit", "Match", "Mismatch", "Op", "PatternRule", "Rule", "Var", "apply_rules"]
