"""CacheStats: the counters of a prefix cache."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["CacheStats"]


@dataclass(frozen=True)
class CacheStats:
    """Counters of a prefix cache since it was made."""

    snapshots: int  #: held now
    bytes: int  #: bytes held now, each shared piece counted once
    limit_bytes: int
    hits: int  #: prompts of which at least one token came from the cache
    misses: int
    cached_tokens: int  #: prompt tokens that came from the cache
    computed_tokens: int  #: prompt tokens that were computed
    evictions: int  #: snapshots dropped to stay within the limit
    files: int = 0  #: in ``prefix_cache_dir``
    file_bytes: int = 0
