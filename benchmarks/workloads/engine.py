"""Times importing, loading, a prompt and steps of the bundled model, in one process; prints JSON."""

import json
import time

began = time.perf_counter()
import lily  # noqa: E402

imported = time.perf_counter()

LOADS = 20
PROMPT = 512  # tokens
STEPS = 256
REPEATS = 5

lily.Model.load("lily-tiny", threads=1).close()
loads = []
for _ in range(LOADS):
    start = time.perf_counter()
    model = lily.Model.load("lily-tiny", threads=1)
    loads.append(time.perf_counter() - start)
    model.close()

prompts, steps, generated = [], [], []
with lily.Model.load("lily-tiny", threads=1) as model:
    ids = [5 + index % 300 for index in range(PROMPT)]
    for _ in range(REPEATS):
        start = time.perf_counter()
        session = model.prefill(ids)
        prompts.append(time.perf_counter() - start)
        start = time.perf_counter()
        for index in range(STEPS):
            session.decode(ids[index])
        steps.append((time.perf_counter() - start) / STEPS)
        session.close()
    for _ in range(REPEATS):
        with model.prefill(ids[:32]) as session:
            start = time.perf_counter()
            count = sum(1 for _ in session.generate(STEPS, sampling=lily.Sampling.greedy(), stop_tokens=()))
            generated.append((time.perf_counter() - start) / count)

print(
    json.dumps(
        {
            "import lily, ms": 1e3 * (imported - began),
            "load, ms": 1e3 * sorted(loads)[LOADS // 2],
            "prompt of 512 tokens, ms": 1e3 * min(prompts),
            "decode() with logits, us": 1e6 * min(steps),
            "generate() a token, us": 1e6 * min(generated),
        }
    )
)
