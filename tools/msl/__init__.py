"""Translator and checks that let the Metal Shading Language kernels run and be checked on any machine."""
