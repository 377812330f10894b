"""Embedded models and data for the demo, the benches and the tests; nothing is downloaded."""
