"""A plain NumPy forward pass of qwen3_5_moe, written from the formulas: the contract that Lily is held to.

It shares no code with the library: its own checkpoint reader, its own dequantization, its own arithmetic, in
float64 unless told otherwise.
"""

from reference.config import ReferenceConfig, read_config
from reference.model import ReferenceModel, State, load
from reference.weights import Weights, load_weights

__all__ = ["ReferenceConfig", "ReferenceModel", "State", "Weights", "load", "load_weights", "read_config"]
