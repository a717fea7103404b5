"""Measures speed, memory and the machine's roof for a checkpoint, alone or in turn with another engine."""
