"""What happened, as Prometheus reads it: vLLM's names under our prefix, and its own if asked."""

from __future__ import annotations

import re
from collections.abc import Iterator

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Histogram,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from .replies import Reply
from .service import Service

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
_TOKENS = (1, 4, 16, 64, 256, 1024, 4096, 16384)

_HISTOGRAMS = {
    "time_to_first_token_seconds": _SECONDS,
    "inter_token_latency_seconds": _SECONDS,
    "request_time_per_output_token_seconds": _SECONDS,
    "e2e_request_latency_seconds": _SECONDS,
    "request_queue_time_seconds": _SECONDS,
    "request_prefill_time_seconds": _SECONDS,
    "request_decode_time_seconds": _SECONDS,
    "request_prompt_tokens": _TOKENS,
    "request_generation_tokens": _TOKENS,
}

_COUNTERS = {
    "prompt_tokens": (),
    "generation_tokens": (),
    "request_success": ("finished_reason",),
    "request_refused": ("status",),
}
"""Beside its model, what each is labelled by."""

_PREFIX = "outrider:"
_OWN_NAME = re.compile(rb"^(# \w+ )?outrider:", re.MULTILINE)


class Metrics(Collector):
    """Counts what requests did, and reads the decoder's own figures when asked.

    Args:
        service: whose requests are counted.
        model: the name of its model, a label of every figure.
        vllm_names: whether everything is also shown under the prefix `vllm:`.
    """

    media_type = CONTENT_TYPE_LATEST

    def __init__(self, service: Service, model: str, *, vllm_names: bool = False) -> None:
        self._registry = CollectorRegistry()
        self._model = model
        self._vllm_names = vllm_names
        self._histograms = {
            name: Histogram(
                _PREFIX + name, name, ["model_name"], buckets=buckets, registry=self._registry
            )
            for name, buckets in _HISTOGRAMS.items()
        }
        self._counters = {
            name: Counter(_PREFIX + name, name, ["model_name", *labels], registry=self._registry)
            for name, labels in _COUNTERS.items()
        }
        self._service = service
        self._registry.register(self)

    def ended(self, reply: Reply, outcome: str | None = None) -> None:
        """Count a request that has ended.

        `outcome` is "cancelled" or an error's code, where it did not end by itself.
        """
        usage = reply.usage()
        emitted = usage["completion_tokens"]
        self._count("prompt_tokens", usage["prompt_tokens"])
        self._count("generation_tokens", emitted)
        reasons = [event.finish_reason for event in reply.events if event.finish_reason]
        for reason in [outcome] if outcome else reasons:
            self._count("request_success", 1, str(reason))
        times = reply.job.times()
        if not times:
            return
        for name, value in {
            "time_to_first_token_seconds": times["first_token"],
            "e2e_request_latency_seconds": times["all"],
            "request_queue_time_seconds": times["queue"],
            "request_prefill_time_seconds": times["prefill"],
            "request_decode_time_seconds": times["decode"],
            "request_time_per_output_token_seconds": times["decode"] / max(1, emitted - 1),
            "request_prompt_tokens": usage["prompt_tokens"],
            "request_generation_tokens": emitted,
        }.items():
            self._histograms[name].labels(self._model).observe(value)
        between = self._histograms["inter_token_latency_seconds"].labels(self._model)
        begun: set[int] = set()
        for each in reply.rounds:
            if each.choice in begun:
                for _ in range(each.emitted):
                    between.observe(each.seconds / each.emitted)
            begun.add(each.choice)

    def refused(self, status: str) -> None:
        """Count a request that was refused with a status."""
        self._count("request_refused", 1, status)

    def text(self) -> bytes:
        """Write all figures in Prometheus's format."""
        text = generate_latest(self._registry)
        return text + _OWN_NAME.sub(rb"\1vllm:", text) if self._vllm_names else text

    def _count(self, name: str, value: float, *labels: str) -> None:
        self._counters[name].labels(self._model, *labels).inc(value)

    def collect(self) -> Iterator[Metric]:
        """Yield the decoder's own figures as they are now: counters and gauges."""
        service = self._service
        found = service.decoder.metrics
        for name, value in (
            ("spec_decode_num_drafts", found.draft_rounds),
            ("spec_decode_num_draft_tokens", found.drafted),
            ("spec_decode_num_accepted_tokens", found.accepted),
        ):
            counter = CounterMetricFamily(_PREFIX + name, name, labels=["model_name"])
            counter.add_metric([self._model], value)
            yield counter
        name = "spec_decode_num_accepted_tokens_per_pos"
        counter = CounterMetricFamily(_PREFIX + name, name, labels=["model_name", "position"])
        for position, value in enumerate(found.accepted_at):
            counter.add_metric([self._model, str(position)], value)
        yield counter
        slots = service.decoder.max_sequences
        used = service.running / slots if slots else 0.0
        for name, gauged in (
            ("num_requests_running", service.running),
            ("num_requests_waiting", service.waiting),
            ("kv_cache_usage_perc", used),
        ):
            gauge = GaugeMetricFamily(_PREFIX + name, name, labels=["model_name"])
            gauge.add_metric([self._model], gauged)
            yield gauge
