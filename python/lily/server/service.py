"""What all endpoints share: the model, its engine thread, options and metrics."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from lily.server.engine import Engine
from lily.server.errors import ApiError
from lily.server.fields import Fields
from lily.server.metrics import Metrics
from lily.server.options import ServerOptions
from lily.server.response_store import ResponseStore

if TYPE_CHECKING:
    from lily.model import Model

__all__ = ["Service"]


class Service:
    """One model being served."""

    def __init__(self, model: Model, options: ServerOptions) -> None:
        self.model = model
        self.options = options
        self.names = options.names or (model.checkpoint.directory.name,)
        self.started = int(time.time())
        self.engine = Engine(options.max_queue)
        self.metrics = Metrics(model, self.engine)
        self.responses = ResponseStore()

    def model_name(self, fields: Fields) -> str:
        """The request's model; ApiError if it is another one. Without one it is the served model."""
        name = fields.text("model")
        if name is None:
            return self.names[0]
        if name not in self.names and not self.options.any_model:
            raise ApiError(
                404,
                f"The model '{name[:200]}' does not exist; this server has {', '.join(self.names)} "
                "(option --any-model: answer to any name).",
                param="model",
                code="model_not_found",
            )
        return name

    def finish_fields(self, fields: Fields) -> None:
        """What the request has besides gets a warning; a 400 if the options say so."""
        fields.finish(strict=self.options.strict)
