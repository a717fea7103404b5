"""Scripts what the bundled model says in lily chat: the engine computes every token, but a mask leaves it no choice."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from fake_model import Interrupt

from lily import Model, Session


class ScriptedTalk:
    """`script`: for each turn a text, or a list of texts, `Interrupt` marks and exceptions.

    Records the prompts' ids, the samplings, and the chat's options and messages.
    """

    def __init__(self, model: Model, script: Iterable) -> None:
        self.model = model
        self.answers = [self._ids(answer) for answer in script]
        self.prompts: list[list[int]] = []
        self.samplings: list = []
        self.options: dict = {}
        self.loaded_with: dict = {}
        self._chats: list = []

    @property
    def messages(self) -> list[dict]:
        return self._chats[-1].messages

    def _ids(self, answer) -> list:
        parts = [answer] if isinstance(answer, str) else answer
        ids: list = []
        for part in parts:
            ids += self.model.tokenizer.encode(part) if isinstance(part, str) else [part]
        return [*ids, self.model.tokenizer.token_id("<|im_end|>")]

    def install(self, monkeypatch) -> None:
        generation, make_chat = Session.generation, Model.chat

        def scripted(session, *arguments, **options):
            self.prompts.append(session.tokens)
            self.samplings.append(options["sampling"])
            answer = self.answers.pop(0)
            made = generation(session, *arguments, **options)

            def only_the_next() -> np.ndarray:
                token = answer[len(made.tokens)]
                if isinstance(token, Interrupt):
                    raise KeyboardInterrupt
                if isinstance(token, Exception):
                    raise token
                mask = np.zeros((self.model.sampled_vocab_size + 31) // 32, dtype=np.uint32)
                mask[token // 32] = 1 << (token % 32)
                return mask

            made.mask = only_the_next
            return made

        def recorded(model, *arguments, **options):
            self.options = options
            self._chats.append(make_chat(model, *arguments, **options))
            return self._chats[-1]

        monkeypatch.setattr(Session, "generation", scripted)
        monkeypatch.setattr(Model, "chat", recorded)
