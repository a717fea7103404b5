"""mlx-lm as a peer, on MLX's default device; run by peer_driver.py.

Fields of the job: file (the checkpoint's directory). Prompts and steps go through mlx_lm's generate_step, as its
command line does.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

mx: Any = importlib.import_module("mlx.core")
generate_step: Any = importlib.import_module("mlx_lm.generate").generate_step
UNTIMED_STEPS = 8  # steps in which MLX records its graphs


class MlxLm:
    """A model of mlx-lm."""

    # A context consists of one token's states and random keys and values: a step's time does not depend on their
    # values, and a long prompt takes minutes where mlx-lm has no delta rule kernel.
    keeps_prompt = False

    def __init__(self, job: dict[str, Any]) -> None:
        load_model = importlib.import_module("mlx_lm.utils").load_model
        version = importlib.import_module("importlib.metadata").version("mlx-lm")
        self.version = f"mlx-lm {version} on MLX {mx.__version__}, {mx.default_device()}"
        self.model, config = load_model(Path(job["file"]))
        self.vocab_size = config.get("text_config", config)["vocab_size"]
        self.make_cache = importlib.import_module("mlx_lm.models.cache").make_prompt_cache

    def prefill(self, ids: Sequence[int]) -> float:
        prompt = mx.array(ids)
        mx.eval(prompt)
        start = time.perf_counter()
        for _ in generate_step(prompt, self.model, max_tokens=1):
            seconds = time.perf_counter() - start
        mx.synchronize()
        return seconds

    def context(self, length: int) -> Any:
        """A cache of `length` tokens."""
        caches = self.make_cache(self.model)
        mx.eval(self.model(mx.array([[1]]), cache=caches))
        for cache in caches:
            if not hasattr(cache, "keys"):
                continue
            for name in ("keys", "values"):
                like = getattr(cache, name)
                shape = (like.shape[0], like.shape[1], length, like.shape[3])
                setattr(cache, name, mx.random.normal(shape).astype(like.dtype))
            cache.offset = length
            mx.eval(cache.keys, cache.values)
        return caches

    def decode(self, context: int, tokens: int) -> float:
        """Seconds for `tokens` steps of greedy decoding after `context` tokens."""
        steps = generate_step(
            mx.array([1]), self.model, max_tokens=UNTIMED_STEPS + 1 + tokens, prompt_cache=self.context(context)
        )
        for step, _ in enumerate(steps):
            if step == UNTIMED_STEPS:
                start = time.perf_counter()
        return time.perf_counter() - start


def open_engine(job: dict[str, Any]) -> MlxLm:
    return MlxLm(job)
