"""Measures speed, memory and the machine's roof for a checkpoint, alone or alternating with another engine."""
