"""The options that several commands share, and how sampling follows from them."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Annotated

import typer

from lily.errors import InvalidArgumentError

if TYPE_CHECKING:
    from lily.sampling import Sampling

__all__ = ["DEFAULT_MODEL", "SamplingOptions", "lengths"]

DEFAULT_MODEL = "lily-tiny"

Model = Annotated[str, typer.Argument(metavar="MODEL", help="Directory, .safetensors file, bundled name or Hub id.")]
Temperature = Annotated[float | None, typer.Option(min=0.0, help="Randomness; 0 is greedy.")]
TopK = Annotated[int | None, typer.Option(min=0, help="Choose among the K most likely tokens; 0: all.")]
TopP = Annotated[float | None, typer.Option(min=0.0, max=1.0, help="Choose within this share of probability.")]
MinP = Annotated[
    float | None, typer.Option(min=0.0, max=1.0, help="Minimum probability, relative to the most likely token.")
]
Greedy = Annotated[bool, typer.Option("--greedy", help="Always take the most likely token.")]
Seed = Annotated[int | None, typer.Option(min=0, help="Seed of the random choices.")]
Threads = Annotated[int | None, typer.Option(min=1, help="Threads of the CPU backend.")]
Context = Annotated[int | None, typer.Option(min=1, help="Maximum tokens of a session.")]
Backend = Annotated[str, typer.Option(help="Compute backend.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]


@dataclasses.dataclass(frozen=True)
class SamplingOptions:
    """Sampling as given on the command line; None for the checkpoint's recommendation."""

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    greedy: bool = False

    def resolve(self, recommended: Sampling) -> Sampling:
        """The model's recommended sampling, changed as the options say."""
        if self.greedy:
            return dataclasses.replace(recommended, temperature=0.0)
        given = {
            name: getattr(self, name)
            for name in ("temperature", "top_k", "top_p", "min_p")
            if getattr(self, name) is not None
        }
        return dataclasses.replace(recommended, **given)


def lengths(name: str, text: str) -> tuple[int, ...]:
    """The numbers of tokens that an option lists."""
    try:
        numbers = tuple(int(part) for part in text.replace(",", " ").split())
    except ValueError as error:
        raise InvalidArgumentError(f"{name} takes numbers separated by commas, not {text!r}") from error
    if not numbers or min(numbers) < 1:
        raise InvalidArgumentError(f"{name} takes positive numbers separated by commas, not {text!r}")
    return numbers
