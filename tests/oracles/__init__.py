"""Comparison of Lily with independent implementations: the NumPy reference, transformers and mlx-lm."""
