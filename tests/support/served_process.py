"""The program of `served.py`: serves lily-tiny with given options, and with faults planted if a test asks for them.

It is started with one argument, a JSON object: `options` (of ServerOptions), `context`, `faults` (names below).
"""

import ctypes
import json
import sys
import threading
import time

import numpy as np

import lily_tiny
from lily import Model, Session
from lily.server import ServerOptions
from lily.server.run import end_process, run_server
from lily.text import Tokenizer


def endless_answers():
    """No answer ends before its limit, and each token takes 20 ms more."""
    generation = Session.generation

    def slowed(self, *arguments, **options):
        one = generation(self, *arguments, **options)
        mask = np.full((self.model.sampled_vocab_size + 31) // 32, 0xFFFFFFFF, dtype=np.uint32)
        for token in self.model.stop_tokens:
            mask[token // 32] &= np.uint32(0xFFFFFFFF ^ (1 << (token % 32)))

        def wait():
            time.sleep(0.02)
            return mask

        one.mask = wait
        return one

    Session.generation = slowed


def stuck_engine():
    """A prompt that holds "stick" never ends: the engine's thread is in a native call that nothing can end."""
    encode = Tokenizer.encode

    def stuck(self, text, **options):
        if "stick" in text and threading.current_thread().name == "lily-engine":
            ctypes.CDLL(None).pause()
        return encode(self, text, **options)

    Tokenizer.encode = stuck


def stuck_preparation():
    """A text that holds "stick" is never prepared."""
    encode = Tokenizer.encode

    def stuck(self, text, **options):
        while "stick" in text and threading.current_thread().name == "lily-prepare":
            pass
        return encode(self, text, **options)

    Tokenizer.encode = stuck


def stuck_loop():
    """A text that holds "stick" holds the event loop up for ever."""
    from lily.server import chat_completions

    begin = chat_completions.start_stream

    async def stuck(service, request, work, form):
        time.sleep(10_000)
        return await begin(service, request, work, form)

    chat_completions.start_stream = stuck


def main():
    given = json.loads(sys.argv[1])
    for fault in given["faults"]:
        globals()[fault]()
    tuples = {name: tuple(value) if isinstance(value, list) else value for name, value in given["options"].items()}
    options = ServerOptions(names=("lily-tiny",), **tuples)
    with Model.load(lily_tiny.CHECKPOINT, threads=1, max_context=given["context"]) as model:
        ended = run_server(model, options, host="127.0.0.1", port=0, last_resort=lambda: end_process(3))
        if not ended:
            end_process(1)


if __name__ == "__main__":
    main()
