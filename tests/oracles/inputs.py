"""Token ids on which the network is continuous.

Where two experts are almost equally likely to be chosen last, the smallest rounding decides, and the outputs of two
exact implementations differ visibly there and, through the state, afterwards. Logits are compared on inputs without
such ties; whole texts, which have some, are compared by agreement and perplexity.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from reference import ReferenceModel

CLEAR_MARGIN = 2e-3  # relative; ten times and more what implementations differ by
BLOCK = 32  # tokens tried at once


def random_tokens(vocab: int, random: np.random.Generator) -> Iterator[int]:
    while True:
        yield int(random.integers(vocab))


def decided_ids(model: ReferenceModel, candidates: Iterable[int], length: int) -> NDArray[np.int64]:
    """The first `length` of the candidates, without those at which the routing of any layer is almost tied."""
    source = iter(candidates)
    ids: list[int] = []
    pending: list[int] = []
    state = model.new_state()
    while len(ids) < length:
        pending.extend(islice(source, min(BLOCK, length - len(ids)) - len(pending)))
        if not pending:
            raise ValueError(f"only {len(ids)} of {length} tokens are free of ties")
        following = state.copy()
        model.hidden_states(pending, following)
        tied = np.flatnonzero(following.margins < CLEAR_MARGIN)
        clear = int(tied[0]) if len(tied) else len(pending)
        if clear < len(pending):  # go back to before the tied token, and leave it out
            following = state.copy()
            if clear:
                model.hidden_states(pending[:clear], following)
        ids.extend(pending[:clear])
        pending, state = pending[clear + 1 :], following
    return np.array(ids)
