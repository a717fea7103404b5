"""lily chat: a conversation on the terminal, one question, or one turn for each line of standard input."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from lily.chat import ContentDelta, Done, ReasoningDelta
from lily.cli import loading, options
from lily.cli.command import command
from lily.cli.generation import events_with_bar
from lily.cli.statistics import Statistics
from lily.cli.terminal import AnswerWriter, remark
from lily.errors import LilyError

if TYPE_CHECKING:
    from lily.chat import Chat

__all__ = ["chat"]

_HELP = """/reset    clear the conversation
/quit     leave (or Ctrl-D)
/help     this text
Ctrl-C    stop the answer"""


@command("""\
  lily chat
  lily chat -p "What is a monad?" --no-thinking
  lily chat ./Qwen3.6-35B-A3B-4bit --system "Answer in Czech." --temperature 0.7
  printf 'Hi\\nAnd now?\\n' | lily chat
""")
def chat(
    model: options.Model = options.DEFAULT_MODEL,
    prompt: Annotated[str | None, typer.Option("-p", "--prompt", help="Ask this one question.")] = None,
    system: Annotated[str | None, typer.Option(help="System message.")] = None,
    thinking: Annotated[
        bool | None,
        typer.Option("--thinking/--no-thinking", help="Think first (default: as the model does)."),
    ] = None,
    show_thinking: Annotated[
        bool | None,
        typer.Option("--show-thinking/--hide-thinking", help="Print the thinking (default: on a terminal)."),
    ] = None,
    max_tokens: Annotated[int, typer.Option(min=1, help="Maximum tokens of an answer, including thinking.")] = 32768,
    temperature: options.Temperature = None,
    top_k: options.TopK = None,
    top_p: options.TopP = None,
    min_p: options.MinP = None,
    greedy: options.Greedy = False,
    seed: options.Seed = None,
    threads: options.Threads = None,
    context: options.Context = None,
    backend: options.Backend = "auto",
    debug: options.Debug = False,
) -> None:
    """Chat with a model.

    On a terminal this is a conversation: /reset starts over, /quit leaves, Ctrl-C stops an answer. With piped
    input, each line is one turn of a conversation.
    """
    wanted = options.SamplingOptions(temperature, top_k, top_p, min_p, greedy)
    with (
        loading.load_model(model, backend=backend, max_context=context, threads=threads) as loaded,
        loaded.chat(
            system,
            thinking=thinking,
            sampling=wanted.resolve(loaded.default_sampling),
            max_tokens=max_tokens,
            seed=seed,
        ) as conversation,
    ):
        talk = _Talk(conversation, show_thinking)
        if prompt is not None:
            talk.answer(prompt)
        elif sys.stdin.isatty():
            talk.interactive(model)
        else:
            talk.piped()


class _Talk:
    """Feeds a conversation from the terminal or a pipe."""

    def __init__(self, conversation: Chat, show_thinking: bool | None) -> None:
        self._conversation = conversation
        self._show_thinking = show_thinking

    def answer(self, question: str) -> None:
        """Ask, write the answer as it arrives, then its speed."""
        writer = AnswerWriter(show_reasoning=self._show_thinking)
        answered = False
        try:
            for event in events_with_bar(self._conversation, question):
                if isinstance(event, ContentDelta):
                    answered = True
                    writer.write(event.text)
                elif isinstance(event, ReasoningDelta):
                    writer.write(event.text, reasoning=True)
                elif isinstance(event, Done):
                    done = event
        finally:
            writer.finish()
        if not answered and done.finish_reason == "length":
            remark("lily: --max-tokens ended the thinking before any answer", piped=True)
        remark(str(Statistics.of(done)))
        if done.finish_reason == "cancelled":  # an interrupt that ended the turn and came no further
            remark("stopped")

    def interactive(self, name: str) -> None:
        """Ask for questions until /quit or the end of input."""
        with contextlib.suppress(ImportError):
            import readline  # noqa: F401  (gives input() line editing and history)
        remark(f"{name}; /help lists the commands")
        while True:
            try:
                line = input("> ").strip()
            except KeyboardInterrupt:
                remark("\n/quit or Ctrl-D leaves")
                continue
            except EOFError:
                sys.stdout.write("\n")
                return
            if line == "/quit":
                return
            if line and not self._command(line):
                self._answer_or_explain(line)

    def piped(self) -> None:
        """One turn for each line of standard input that is not blank."""
        for line in sys.stdin:
            text = line.strip()
            if text == "/quit":
                return
            if text and not self._command(text):
                self.answer(text)

    def _answer_or_explain(self, question: str) -> None:
        try:
            self.answer(question)
        except KeyboardInterrupt:
            remark("stopped")
        except LilyError as error:  # the conversation goes on
            remark(f"lily: {error}")

    def _command(self, line: str) -> bool:
        if line == "/reset":
            self._conversation.reset()
            remark("the conversation has been cleared")
        elif line == "/help":
            remark(_HELP)
        elif line.startswith("/") and line[1:].isalpha():
            remark(f"there is no command {line}; /help lists them")
        else:
            return False
        return True
