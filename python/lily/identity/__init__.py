"""The identity of loaded weights: a hash of their files, computed once and recorded."""
