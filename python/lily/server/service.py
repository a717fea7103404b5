"""What all endpoints share: the model, its engine thread, options and metrics."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar

from starlette.requests import Request

from lily.errors import CheckpointError
from lily.server.byte_budget import ByteBudget
from lily.server.call import call_of
from lily.server.engine import Engine
from lily.server.errors import ApiError, one_line
from lily.server.fields import Fields
from lily.server.freed_memory import FreedMemory
from lily.server.metrics import Metrics
from lily.server.options import ServerOptions
from lily.server.preparation import Preparation
from lily.server.response_store import ResponseStore
from lily.server.steps import Steps

if TYPE_CHECKING:
    from lily.model import Model

__all__ = ["Service"]

logger = logging.getLogger("lily.server")

_PREPARATION_SECONDS = 0.5  # seconds to wait for threads that may outlive the model

P = ParamSpec("P")
T = TypeVar("T")


class Service:
    """One model being served."""

    def __init__(self, model: Model, options: ServerOptions) -> None:
        self.model = model
        self.options = options
        self.names = options.names or (model.checkpoint.directory.name,)
        self.started = int(time.time())
        self.engine = Engine(options.max_queue)
        self.preparation = Preparation(options.max_connections)
        self.budget = ByteBudget(options.max_pending_bytes)
        self.freed_memory = FreedMemory()
        self.metrics = Metrics(model, self.engine)
        self.responses = ResponseStore()
        self.broken = False  #: whether the model's files have changed; only a restart helps

    async def prepare(
        self, request: Request, function: Callable[Concatenate[Steps, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Run a slow function in a thread and return its result; it is dropped if the client disconnects."""
        call = call_of(request)

        def prepared(check: Callable[[], None]) -> T:
            check()
            return function(Steps(check, call.charge), *args, **kwargs)

        return await self.preparation.run(call, prepared)

    def note(self, error: BaseException) -> None:
        """Remember, and log once, that the model's files have changed since loading."""
        if isinstance(error, CheckpointError) and not self.broken:
            self.broken = True
            logger.error("the model cannot be used any more; restart the server: %s", one_line(error))

    def close(self, seconds: float) -> None:
        """End all work, and wait that long for the engine's current step."""
        self.engine.close(seconds)
        self.preparation.close(min(seconds, _PREPARATION_SECONDS))

    def model_name(self, fields: Fields) -> str:
        """The request's model; ApiError if it names another one. Without a name it is the served model."""
        name = fields.text("model")
        if not name:
            return self.names[0]
        if name not in self.names and not self.options.any_model:
            raise ApiError(
                404,
                f"The model '{name[:200]}' does not exist; this server has {', '.join(self.names)} "
                "(with --any-model it accepts any name).",
                param="model",
                code="model_not_found",
            )
        return name

    def finish_fields(self, fields: Fields) -> None:
        """Warn about the request's remaining fields, or answer 400 if the options say so."""
        fields.finish(strict=self.options.strict)
