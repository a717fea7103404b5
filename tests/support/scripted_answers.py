"""Makes a model say what a test wants: the engine computes every token, a mask leaves it no choice."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from lily import Model, Session


def saying(model: Model, reply: Callable[[Session], str | None]) -> Callable[..., object]:
    """A `Session.generation` whose answers are what `reply` returns for a session that holds the prompt.

    None leaves the model its own words. A text that ends in "<cut>" is not followed by the end of the turn.
    """
    generation = Session.generation

    def say(self, *arguments, **options):
        text = reply(self)
        made = generation(self, *arguments, **options)
        if text is None:
            return made
        ids = model.tokenizer.encode(text.removesuffix("<cut>"))
        if not text.endswith("<cut>"):
            ids.append(model.tokenizer.token_id("<|im_end|>"))

        def only_the_next() -> np.ndarray:
            mask = np.zeros((model.sampled_vocab_size + 31) // 32, dtype=np.uint32)
            token = ids[len(made.tokens)]
            mask[token // 32] = 1 << (token % 32)
            return mask

        made.mask = only_the_next
        return made

    return say


def scripted(monkeypatch, model: Model) -> Callable[..., None]:
    """A function that makes the model say the given texts, one for each turn; see `saying`."""
    answers: list[str] = []
    say_next = saying(model, lambda session: answers.pop(0))

    def install(*texts: str) -> None:
        monkeypatch.setattr(Session, "generation", say_next)
        answers[:] = texts

    return install
