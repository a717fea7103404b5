"""Answers that have begun: a conversation that ends with an assistant message to be continued."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lily.chat.call_tags import OPEN_CALL
from lily.chat.constraints import GrammarConstraint
from lily.chat.think_tags import CLOSE_THINK, OPEN_THINK
from lily.errors import InvalidArgumentError
from lily.text import Tokenizer

__all__ = ["AnswerBeginning"]


@dataclass(frozen=True)
class AnswerBeginning:
    """What the answer begins with.

    Attributes
    ----------
    content, reasoning : str
        Its texts so far.
    is_thinking : bool
        Whether the thinking is still open.
    """

    content: str
    reasoning: str
    is_thinking: bool

    @classmethod
    def of(cls, message: Mapping[str, Any]) -> AnswerBeginning:
        """From a normalized assistant message, whose content may contain the thinking in its tags."""
        content, reasoning = str(message.get("content") or ""), str(message.get("reasoning_content") or "")
        if message.get("tool_calls"):
            raise InvalidArgumentError("the conversation ends with tool calls; add their results to continue")
        if reasoning or not content.lstrip().startswith(OPEN_THINK):
            return cls(content, reasoning, bool(reasoning) and not content)
        thought, closed, rest = content.lstrip().removeprefix(OPEN_THINK).partition(CLOSE_THINK)
        return cls(rest.lstrip("\n"), thought.strip("\n") if closed else thought.lstrip("\n"), not closed)

    @property
    def text(self) -> str:
        """The text that the output continues."""
        return self.reasoning if self.is_thinking else self.content

    @property
    def message(self) -> dict[str, Any]:
        """As a message."""
        return {"role": "assistant", "content": self.content, "reasoning_content": self.reasoning}

    def prompt(
        self,
        normal: Sequence[Mapping[str, Any]],
        render: Callable[[list[Mapping[str, Any]]], str],
        turn_ends: Sequence[str],
    ) -> str:
        """The prompt, which ends where the answer continues.

        Parameters
        ----------
        normal
            The messages before.
        render
            Writes a conversation whose last turn is complete.
        turn_ends
            The texts that end a turn.
        """
        text = self._begun_turn(render([*normal, self.message]), turn_ends)
        given = self.text
        before, after = given[: len(given) - len(given.lstrip())], given[len(given.rstrip()) :]
        if before and not self.is_thinking:  # templates trim the ends of messages
            nothing = AnswerBeginning("", self.reasoning, False)
            head = nothing._begun_turn(render([*normal, nothing.message]), turn_ends)
            if text.startswith(head):
                text = head + before + text[len(head) :]
        return text + (after if given.strip() else "")

    def _begun_turn(self, text: str, turn_ends: Sequence[str]) -> str:
        """A rendered conversation up to the point where its last turn continues."""
        text = text[: max(text.rfind(end) for end in turn_ends)]
        if not self.is_thinking:
            return text
        before, _, _ = text.rpartition(CLOSE_THINK)
        text = before.rstrip("\n") if before else f"{text}{OPEN_THINK}\n{self.reasoning.rstrip()}"
        return f"{text}\n" if text.endswith(OPEN_THINK) else text

    def joined(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """The whole answer: the message of a parser that was given `text`, with the thinking that came before."""
        if self.is_thinking or not self.reasoning:
            return dict(message)
        return {**message, "reasoning_content": self.reasoning}

    def enter(self, constraint: GrammarConstraint, tokenizer: Tokenizer) -> bool:
        """Advance a constraint past the beginning, if the answer may begin like that; returns whether it may.

        Otherwise the constrained part, a call or a formatted answer, follows the beginning.
        """
        if self.is_thinking:
            return True
        tags = (0, self.content.find(OPEN_CALL), self.content.rfind(OPEN_CALL))  # text may come before the call
        for at in dict.fromkeys(at for at in tags if at >= 0):
            if constraint.take_beginning(tokenizer.encode(self.content[at:])):
                return True
        return False
