"""A model's facts: dimensions, limits, memory, and its display in notebooks and consoles."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from lily import _core
from lily.checkpoint import Checkpoint, ModelConfig, Plan, plan

if TYPE_CHECKING:
    from lily.model import Model

if TYPE_CHECKING:
    pass

__all__ = ["ModelFacts"]


class ModelFacts:
    """The read-only properties of `lily.Model`; those of its engine raise ClosedError once it is closed."""

    checkpoint: Checkpoint
    if TYPE_CHECKING:

        @property
        def closed(self) -> bool: ...
        @property
        def core(self) -> _core.Model: ...

    @property
    def config(self) -> ModelConfig:
        """Dimensions of the model."""
        return self.checkpoint.config

    @property
    def max_context(self) -> int:
        """Maximum number of tokens in a session."""
        return self.core.options.max_context

    @property
    def backend(self) -> str:
        """The backend: one of `available_backends`."""
        return self.core.options.backend

    @property
    def threads(self) -> int:
        """CPU threads in use."""
        return self.core.options.threads

    @property
    def cpu_isa(self) -> str:
        """Instruction set of the kernels in use."""
        return self.core.options.cpu_isa

    def plan(self, context: int | None = None) -> Plan:
        """Bytes that a session of `context` tokens needs, weights included; see `lily.plan`."""
        options = self.core.options
        return plan(
            self.checkpoint,
            options.max_context if context is None else context,
            threads=options.threads,
            prefill_chunk=options.prefill_chunk,
        )

    @property
    def scratch_bytes(self) -> int:
        """Bytes of working memory held now, without the weights and the sessions' states."""
        return self.core.scratch_bytes

    def __repr__(self) -> str:
        name = self.checkpoint.directory.name
        if self.closed:
            return f"<lily.Model {name!r} closed>"
        layers = len(self.config.layer_types)
        cpu = f" isa={self.cpu_isa!r} threads={self.threads}" if self.backend == "cpu" else ""
        return f"<lily.Model {name!r} layers={layers} backend={self.backend!r}{cpu}>"

    def _repr_html_(self) -> str:
        from lily.display import model_html

        return model_html(cast("Model", self))
