"""Shapes of small models that the GPU engine takes."""

from engine_helpers import CONFIG

# Odd counts everywhere but in the head dimensions, which are multiples of 32 on a GPU.
GPU_CONFIG = {**CONFIG, "linear_key_head_dim": 32, "linear_value_head_dim": 16}
