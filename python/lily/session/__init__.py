"""Sessions: sequences of tokens with their state, the generations that extend them, snapshots, and files of them."""

from __future__ import annotations

from lily.session.generation import GeneratedToken, Generation, TokenMask
from lily.session.progress import Progress
from lily.session.session import Session
from lily.session.snapshot import Snapshot

__all__ = ["GeneratedToken", "Generation", "Progress", "Session", "Snapshot", "TokenMask"]
