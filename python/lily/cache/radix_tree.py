"""A radix tree over token ids: each entry lies at the end of its ids, and shared prefixes are stored once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt

__all__ = ["Match", "Node", "RadixTree", "common_length"]

Ids = npt.NDArray[np.int32]
E = TypeVar("E")


class Node(Generic[E]):
    """The end of an edge. `tokens` are those from the parent to here; `length` counts those from the root."""

    __slots__ = ("children", "entry", "length", "parent", "tokens")

    def __init__(self, tokens: Ids, parent: Node[E] | None) -> None:
        self.tokens = tokens
        self.parent = parent
        self.length: int = (parent.length if parent else 0) + len(tokens)
        self.children: dict[int, Node[E]] = {}
        self.entry: E | None = None


@dataclass(frozen=True)
class Match(Generic[E]):
    """How far some ids lead into the tree."""

    length: int  # ids that the tree knows
    path: list[Node[E]]  # nodes whose ids all match, from the root's child to the deepest
    beyond: Node[E] | None  # the node on whose edge the ids stop matching


class RadixTree(Generic[E]):
    """Ids to entries. Not thread-safe."""

    def __init__(self) -> None:
        self._root: Node[E] = Node(np.empty(0, np.int32), None)

    def match(self, ids: Ids) -> Match[E]:
        """Follow `ids` from the root as far as they go."""
        node = self._root
        path: list[Node[E]] = []
        while node.length < len(ids):
            child = node.children.get(int(ids[node.length]))
            if child is None:
                return Match(node.length, path, None)
            shared = common_length(child.tokens, ids[node.length :])
            if shared < len(child.tokens):
                return Match(node.length + shared, path, child)
            path.append(child)
            node = child
        return Match(node.length, path, None)

    def insert(self, ids: Ids) -> Node[E]:
        """The node at the end of `ids`, made if needed."""
        match = self.match(ids)
        node = match.path[-1] if match.path else self._root
        if match.beyond is not None and match.length > node.length:
            node = self._split(match.beyond, match.length - node.length)
        if node.length < len(ids):
            child: Node[E] = Node(np.array(ids[node.length :]), node)
            node.children[int(child.tokens[0])] = child
            node = child
        return node

    def prune(self, node: Node[E]) -> None:
        """Forget ids that no longer lead to an entry, after `node` has lost its own."""
        while node.parent is not None and node.entry is None and not node.children:
            parent = node.parent
            del parent.children[int(node.tokens[0])]
            node = parent
        if node.parent is not None and node.entry is None and len(node.children) == 1:
            (child,) = node.children.values()
            child.tokens = np.concatenate([node.tokens, child.tokens])
            child.parent = node.parent
            node.parent.children[int(child.tokens[0])] = child

    @staticmethod
    def continuations(node: Node[E]) -> int:
        """Number of ways that lead on from a node, counted where they first part or meet an entry; 0 at an end.

        The first ids of a template's next part may be the same for all that goes on from here.
        """
        while len(node.children) == 1:
            (child,) = node.children.values()
            if child.entry is not None:
                return 1
            node = child
        return len(node.children)

    @staticmethod
    def entry_above(node: Node[E]) -> Node[E] | None:
        """The nearest node above with an entry."""
        above = node.parent
        while above is not None and above.entry is None:
            above = above.parent
        return above

    @staticmethod
    def entry_below(node: Node[E]) -> Node[E] | None:
        """The next node with an entry, where only one way leads on."""
        while len(node.children) == 1:
            (node,) = node.children.values()
            if node.entry is not None:
                return node
        return None

    def nodes(self) -> Iterator[Node[E]]:
        """Every node but the root."""
        waiting = list(self._root.children.values())
        while waiting:
            node = waiting.pop()
            waiting.extend(node.children.values())
            yield node

    def stored_after(self, match: Match[E], count: int) -> Ids:
        """Up to `count` ids that the tree holds after the matching ones; of several branches the newest."""
        node = match.beyond
        parent = match.path[-1] if match.path else self._root
        if node is None:
            node = self._newest_child(parent)
        found: list[Ids] = []
        skip = match.length - parent.length
        while node is not None and sum(map(len, found)) < count:
            found.append(node.tokens[skip:])
            node, skip = self._newest_child(node), 0
        return np.concatenate(found)[:count] if found else np.empty(0, np.int32)

    @staticmethod
    def _newest_child(node: Node[E]) -> Node[E] | None:
        return next(reversed(node.children.values()), None)

    @staticmethod
    def _split(node: Node[E], count: int) -> Node[E]:
        """Put a node `count` ids down the edge that ends at `node`."""
        parent = node.parent
        assert parent is not None
        upper: Node[E] = Node(np.array(node.tokens[:count]), parent)
        parent.children[int(upper.tokens[0])] = upper
        node.tokens = np.array(node.tokens[count:])
        node.parent = upper
        upper.children[int(node.tokens[0])] = node
        return upper


def common_length(first: Ids, second: Ids) -> int:
    """Number of equal ids at the beginning of both."""
    count = min(len(first), len(second))
    differs = first[:count] != second[:count]
    position = int(differs.argmax()) if count else 0
    return position if count and differs[position] else count
