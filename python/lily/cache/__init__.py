"""Prefix reuse: a radix tree of snapshots, and prefill that starts from the longest known prefix."""

from __future__ import annotations

from lily.cache.explanation import CacheExplanation
from lily.cache.prefix_cache import PrefixCache
from lily.cache.statistics import CacheStats

__all__ = ["CacheExplanation", "CacheStats", "PrefixCache"]
