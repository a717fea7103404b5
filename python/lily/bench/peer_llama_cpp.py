"""llama.cpp as a peer, through llama-cpp-python; run by peer_driver.py.

Fields of the job: file, longest (tokens of a context), threads, repack, gpu (all layers on it, flash attention),
ubatch.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

llama_cpp: Any = importlib.import_module("llama_cpp")
BATCH = 2048  # tokens of one call, llama.cpp's own default
UNTIMED_STEPS = 8  # steps in which a GPU graph is recorded


class LlamaCpp:
    """A model and a context of llama.cpp."""

    keeps_prompt = True

    def __init__(self, job: dict[str, Any]) -> None:
        self.version = f"llama-cpp-python {llama_cpp.__version__}"
        self.log: list[str] = []
        self.callback = llama_cpp.llama_log_callback(lambda level, text, data: self.log.append(text.decode()))
        llama_cpp.llama_log_set(self.callback, None)
        llama_cpp.llama_backend_init()
        model_options = llama_cpp.llama_model_default_params()
        model_options.n_gpu_layers = -1 if job["gpu"] else 0
        model_options.use_extra_bufts = job["repack"]
        if job["gpu"] and not llama_cpp.llama_supports_gpu_offload():
            raise SystemExit("this llama-cpp-python was built without support for the GPU")
        self.model = llama_cpp.llama_model_load_from_file(job["file"].encode(), model_options)
        if not self.model:
            raise SystemExit("llama.cpp could not load the file\n" + "".join(self.log[-20:]))
        options = llama_cpp.llama_context_default_params()
        options.n_ctx = job["longest"] + UNTIMED_STEPS + 64
        options.n_batch = BATCH
        options.n_ubatch = job["ubatch"]
        options.n_threads = options.n_threads_batch = job["threads"]
        if job["gpu"]:
            options.flash_attn_type = 1  # always
        self.context = llama_cpp.llama_init_from_model(self.model, options)
        if not self.context:
            raise SystemExit("llama.cpp could not make a context\n" + "".join(self.log[-20:]))
        self.vocab_size = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self.model))

    def feed(self, ids: Sequence[int]) -> None:
        """Compute the tokens."""
        for begin in range(0, len(ids), BATCH):
            part = ids[begin : begin + BATCH]
            array = (llama_cpp.llama_token * len(part))(*part)
            if llama_cpp.llama_decode(self.context, llama_cpp.llama_batch_get_one(array, len(part))) != 0:
                raise SystemExit("llama_decode failed\n" + "".join(self.log[-20:]))
        llama_cpp.llama_synchronize(self.context)

    def prefill(self, ids: Sequence[int]) -> float:
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self.context), True)
        start = time.perf_counter()
        self.feed(ids)
        return time.perf_counter() - start

    def best(self) -> int:
        pointer = llama_cpp.llama_get_logits_ith(self.context, -1)
        return int(np.ctypeslib.as_array(pointer, (self.vocab_size,)).argmax())

    def decode(self, context: int, tokens: int) -> float:
        """Seconds for `tokens` steps after the `context` tokens computed so far."""
        token = self.best()
        for step in range(-UNTIMED_STEPS, tokens):
            if step == 0:
                start = time.perf_counter()
            self.feed([token])
            token = self.best()
        return time.perf_counter() - start


def open_engine(job: dict[str, Any]) -> LlamaCpp:
    return LlamaCpp(job)
