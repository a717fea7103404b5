"""The radix tree against a plain dictionary of sequences."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from lily.cache.radix_tree import Node, RadixTree, common_length

SEQUENCES = st.lists(st.integers(0, 2), min_size=1, max_size=9)


def array(ids):
    return np.array(ids, np.int32)


def shared(first, second):
    return next(
        (i for i, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), min(len(first), len(second))
    )


@given(SEQUENCES, SEQUENCES)
def test_common_length(first, second):
    assert common_length(array(first), array(second)) == shared(first, second)


class Dictionary:
    """Stored sequences, and since when each beginning has been one of theirs."""

    def __init__(self) -> None:
        self.nodes: dict[tuple[int, ...], Node[tuple[int, ...]]] = {}
        self._since: dict[tuple[int, ...], int] = {}

    def add(self, ids: tuple[int, ...], node: Node[tuple[int, ...]], time: int) -> None:
        self.nodes[ids] = node
        for count in range(1, len(ids) + 1):
            self._since.setdefault(ids[:count], time)

    def remove(self, ids: tuple[int, ...]) -> Node[tuple[int, ...]]:
        node = self.nodes.pop(ids)
        self._since = {known: time for known, time in self._since.items() if self.longer(known[:-1], known)}
        return node

    def longer(self, ids: tuple[int, ...], beginning: tuple[int, ...] | None = None) -> list[tuple[int, ...]]:
        """Stored sequences that go on from `ids` (with `beginning`)."""
        start = ids if beginning is None else beginning
        return [one for one in self.nodes if len(one) > len(ids) and one[: len(start)] == start]

    def newest(self, ids: tuple[int, ...], count: int) -> list[int]:
        """What follows `ids`, along the branch that came last wherever there are several."""
        found = ids
        while len(found) < len(ids) + count and (longer := self.longer(found)):
            found = max((one[: len(found) + 1] for one in longer), key=lambda known: self._since[known])
        return list(found[len(ids) :])


@settings(max_examples=300)
@given(st.lists(st.tuples(st.booleans(), SEQUENCES), max_size=40), SEQUENCES)
def test_tree_equals_a_dictionary(operations, probe):
    tree: RadixTree[tuple[int, ...]] = RadixTree()
    stored = Dictionary()
    for time, (insert, ids) in enumerate(operations):
        if insert:
            node = tree.insert(array(ids))
            node.entry = tuple(ids)
            stored.add(tuple(ids), node, time)
        elif tuple(ids) in stored.nodes:
            node = stored.remove(tuple(ids))
            node.entry = None
            tree.prune(node)
    nodes = list(tree.nodes())
    assert {node.entry for node in nodes if node.entry is not None} == set(stored.nodes)
    for node in nodes:
        # No node without a purpose, and every node spells its ids.
        assert node.entry is not None or len(node.children) > 1
        spelled, up = [], node
        while up is not None:
            spelled[:0] = up.tokens.tolist()
            up = up.parent
        assert len(spelled) == node.length
        assert node.entry is None or node.entry == tuple(spelled)

    match = tree.match(array(probe))
    assert match.length == max((shared(probe, ids) for ids in stored.nodes), default=0)
    found = [node.entry for node in match.path if node.entry is not None]
    assert found == sorted((ids for ids in stored.nodes if tuple(probe[: len(ids)]) == ids), key=len)
    assert tree.stored_after(match, 4).tolist() == stored.newest(tuple(probe[: match.length]), 4)

    for ids, node in stored.nodes.items():
        longer = stored.longer(ids)
        common = next((one for one in longer if all(other[: len(one)] == one for other in longer)), None)
        below, common = common, common or ids[: len(ids)]
        while not below and longer and len({one[: len(common) + 1] for one in longer}) == 1:
            common = longer[0][: len(common) + 1]
        ways = 1 if below else len({one[len(common)] for one in longer})
        assert tree.continuations(node) == ways
        assert (None if (one := tree.entry_below(node)) is None else one.entry) == below
        shorter = [one for one in stored.nodes if len(one) < len(ids) and ids[: len(one)] == one]
        above = tree.entry_above(node)
        assert (None if above is None else above.entry) == max(shorter, key=len, default=None)
