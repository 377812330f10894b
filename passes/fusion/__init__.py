"""Fusion of operators into generated kernels."""
