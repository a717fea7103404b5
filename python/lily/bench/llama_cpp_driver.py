"""One round of llama.cpp's measurements, run by path in an interpreter that has llama-cpp-python.

Reads a JSON object from standard input (file, threads, prompt, context, decode, warm_up, repack) and writes one to
standard output: seconds by measurement, "prefill N" and "decode N". Imports nothing of Lily.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

llama_cpp: Any = importlib.import_module("llama_cpp")


class Peer:
    """A model and a context of llama.cpp."""

    def __init__(self, job: dict[str, Any]) -> None:
        self.log: list[str] = []
        self.callback = llama_cpp.llama_log_callback(lambda level, text, data: self.log.append(text.decode()))
        llama_cpp.llama_log_set(self.callback, None)
        llama_cpp.llama_backend_init()
        model_options = llama_cpp.llama_model_default_params()
        model_options.n_gpu_layers = 0
        model_options.use_extra_bufts = job["repack"]
        self.model = llama_cpp.llama_model_load_from_file(job["file"].encode(), model_options)
        if not self.model:
            raise SystemExit("llama.cpp could not load the file\n" + "".join(self.log[-20:]))
        longest = max([*job["prompt"], *job["context"], 64])
        options = llama_cpp.llama_context_default_params()
        options.n_ctx = longest + job["decode"] + 64
        options.n_batch = longest
        options.n_ubatch = min(512, longest)
        options.n_threads = options.n_threads_batch = job["threads"]
        self.context = llama_cpp.llama_init_from_model(self.model, options)
        if not self.context:
            raise SystemExit("llama.cpp could not make a context\n" + "".join(self.log[-20:]))
        self.vocab_size = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self.model))

    def feed(self, ids: Sequence[int]) -> float:
        """Seconds to compute the tokens."""
        array = (llama_cpp.llama_token * len(ids))(*map(int, ids))
        start = time.perf_counter()
        if llama_cpp.llama_decode(self.context, llama_cpp.llama_batch_get_one(array, len(ids))) != 0:
            raise SystemExit("llama_decode failed\n" + "".join(self.log[-20:]))
        llama_cpp.llama_synchronize(self.context)
        return time.perf_counter() - start

    def prefill(self, length: int) -> float:
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self.context), True)
        return self.feed(np.random.default_rng(length).integers(0, self.vocab_size, length, dtype=np.int32).tolist())

    def best(self) -> int:
        pointer = llama_cpp.llama_get_logits_ith(self.context, -1)
        return int(np.ctypeslib.as_array(pointer, (self.vocab_size,)).argmax())

    def decode(self, tokens: int) -> float:
        """Seconds for `tokens` steps after what was fed so far."""
        token = self.best()
        start = time.perf_counter()
        for _ in range(tokens):
            self.feed([token])
            token = self.best()
        return time.perf_counter() - start


def main() -> None:
    job = json.load(sys.stdin)
    peer = Peer(job)
    peer.prefill(job["warm_up"])
    peer.decode(4)
    seconds = {}
    for length in sorted({*job["prompt"], *job["context"]}):
        prefill = peer.prefill(length)
        if length in job["prompt"]:
            seconds[f"prefill {length}"] = prefill
        if length in job["context"]:
            seconds[f"decode {length}"] = peer.decode(job["decode"])
    json.dump({"version": llama_cpp.__version__, "seconds": seconds}, sys.stdout)


if __name__ == "__main__":
    main()
