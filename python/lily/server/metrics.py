"""Counters of the server, for Prometheus."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from lily.chat import Done

if TYPE_CHECKING:
    from lily.model import Model
    from lily.server.engine import Engine

__all__ = ["Metrics"]

_SECONDS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)


class Metrics:
    """The metrics of one server; several servers in a process do not share them."""

    def __init__(self, model: Model, engine: Engine) -> None:
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "lily_requests", "Requests by endpoint and status.", ["endpoint", "status"], registry=self._registry
        )
        self._tokens = Counter("lily_tokens", "Tokens by kind.", ["kind"], registry=self._registry)
        self._queue = Histogram("lily_queue_seconds", "Wait.", registry=self._registry, buckets=_SECONDS)
        self._prefill = Histogram("lily_prefill_seconds", "Prefill.", registry=self._registry, buckets=_SECONDS)
        self._decode = Histogram("lily_decode_seconds", "Decode.", registry=self._registry, buckets=_SECONDS)
        gauges = {
            "lily_requests_waiting": ("Requests in the queue.", lambda: engine.waiting),
            "lily_requests_running": ("Requests in work.", lambda: engine.running),
            "lily_prefix_cache_bytes": ("Bytes of the prefix cache.", lambda: model.cache.stats().bytes),
            "lily_prefix_cache_snapshots": ("Snapshots in it.", lambda: model.cache.stats().snapshots),
        }
        for name, (text, value) in gauges.items():
            Gauge(name, text, registry=self._registry).set_function(value)

    def count_request(self, endpoint: str, status: int) -> None:
        """A request was answered."""
        self._requests.labels(endpoint, str(status)).inc()

    def count_turn(self, done: Done, queue_seconds: float) -> None:
        """A turn has ended."""
        usage, timings = done.usage, done.timings
        self._tokens.labels("prompt").inc(usage.prompt_tokens)
        self._tokens.labels("cached").inc(usage.cached_tokens)
        self._tokens.labels("completion").inc(usage.completion_tokens)
        self._queue.observe(queue_seconds)
        self._prefill.observe(timings.prefill_seconds)
        self._decode.observe(timings.decode_seconds)

    def text(self) -> bytes:
        """All of them in Prometheus's format."""
        return generate_latest(self._registry)
