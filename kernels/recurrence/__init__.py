"""Recurrences: one small program applied step after step, to all sequences of a batch."""
