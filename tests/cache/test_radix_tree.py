"""The radix tree against a plain dictionary of sequences."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from lily.cache.radix_tree import RadixTree, common_length

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


@settings(max_examples=300)
@given(st.lists(st.tuples(st.booleans(), SEQUENCES), max_size=40), SEQUENCES)
def test_tree_equals_a_dictionary(operations, probe):
    tree, stored = RadixTree(), {}
    for insert, ids in operations:
        if insert:
            node = tree.insert(array(ids))
            node.entry = tuple(ids)
            stored[tuple(ids)] = node
        elif tuple(ids) in stored:
            node = stored.pop(tuple(ids))
            node.entry = None
            tree.prune(node)
    nodes = list(tree.nodes())
    assert {node.entry for node in nodes if node.entry is not None} == set(stored)
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
    assert match.length == max((shared(probe, ids) for ids in stored), default=0)
    found = [node.entry for node in match.path if node.entry is not None]
    assert found == sorted((ids for ids in stored if tuple(probe[: len(ids)]) == ids), key=len)
    following = tree.stored_after(match, 4).tolist()
    continued = [ids[match.length :][:4] for ids in stored if ids[: match.length] == tuple(probe[: match.length])]
    assert (following == [] and not any(continued)) or any(
        tuple(following) == ids[: len(following)] for ids in continued if ids
    )
