"""Makes a model say what a test wants: the engine computes every token, a mask leaves it no choice."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from lily import Model, Session


def scripted(monkeypatch, model: Model) -> Callable[..., None]:
    """A function that makes the model say the given texts, one for each turn.

    A text that ends in "<cut>" is not followed by the end of the turn.
    """
    generation = Session.generation
    answers: list[str] = []

    def say_next(self, *arguments, **options):
        text = answers.pop(0)
        ids = model.tokenizer.encode(text.removesuffix("<cut>"))
        if not text.endswith("<cut>"):
            ids.append(model.tokenizer.token_id("<|im_end|>"))
        made = generation(self, *arguments, **options)

        def only_the_next() -> np.ndarray:
            mask = np.zeros((model.sampled_vocab_size + 31) // 32, dtype=np.uint32)
            token = ids[len(made.tokens)]
            mask[token // 32] = 1 << (token % 32)
            return mask

        made.mask = only_the_next
        return made

    def install(*texts: str) -> None:
        monkeypatch.setattr(Session, "generation", say_next)
        answers[:] = texts

    return install
