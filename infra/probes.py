"""Health and metrics over HTTP: `/livez`, `/readyz`, `/metrics`. Served by every role's process; `infra.api` has them, too.

`streams.metrics` counts in plain dictionaries; here they become Prometheus' text format. It decides nothing: what is live and
ready the workers say themselves.
"""

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Final

import uvicorn
from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from infra.about import VERSION
from infra.metrics import DECLARED
from schemas.errors import Refused
from schemas.health import Health
from streams.metrics import Labels, Metrics

STARTED_S: Final = 10.0
PROMETHEUS: Final = "text/plain; version=0.0.4; charset=utf-8"
Healths = Callable[[], Mapping[str, Health]]


class LockstepCollector(Collector):
    """All declared metrics of a process, those without a value left out."""

    def __init__(self, metrics: Metrics, healths: Healths) -> None:
        self._metrics = metrics
        self._healths = healths

    def _edge(self) -> dict[tuple[str, Labels], float]:
        found: dict[tuple[str, Labels], float] = {("lockstep_info", (VERSION,)): 1.0}
        for role, health in self._healths().items():
            found["lockstep_ready", (role,)] = float(health.live and health.ready)
        return found

    def collect(self) -> Iterable[Metric]:
        """As prometheus_client asks for them."""
        values, histograms = self._metrics.copy()
        values |= self._edge()
        for metric in DECLARED:
            family: Metric
            if metric.kind == "histogram":
                family = HistogramMetricFamily(metric.name, metric.help, labels=metric.labels)
                for (name, labels), found in histograms.items():
                    if name == metric.name:
                        bounds = [str(b) for b in metric.buckets] + ["+Inf"]
                        counts = [float(n) for n in (*found.buckets, found.count)]
                        family.add_metric(labels, list(zip(bounds, counts, strict=True)), found.total)
            elif metric.kind == "counter":
                family = CounterMetricFamily(metric.name.removesuffix("_total"), metric.help, labels=metric.labels)
                if not metric.labels:
                    # From 0 on: `increase` cannot see the first event of a series that begins with it.
                    values.setdefault((metric.name, ()), 0.0)
                for (name, labels), value in values.items():
                    if name == metric.name:
                        family.add_metric(labels, value)
            else:
                family = GaugeMetricFamily(metric.name, metric.help, labels=metric.labels)
                for (name, labels), value in values.items():
                    if name == metric.name:
                        family.add_metric(labels, value)
            if family.samples:
                yield family


def routes(metrics: Metrics, healths: Healths) -> list[Route]:
    """The three, for any application."""
    registry = CollectorRegistry()
    registry.register(LockstepCollector(metrics, healths))
    ProcessCollector(registry=registry)

    def told(found: Mapping[str, Health], ok: bool) -> Response:
        body = {name: {"live": h.live, "ready": h.ready, "detail": h.detail} for name, h in found.items()}
        return JSONResponse(body, 200 if ok else 503)

    def livez(_: Request) -> Response:
        found = healths()
        return told(found, all(h.live for h in found.values()))

    def readyz(_: Request) -> Response:
        found = healths()
        return told(found, bool(found) and all(h.live and h.ready for h in found.values()))

    def show(_: Request) -> Response:
        return Response(generate_latest(registry), media_type=PROMETHEUS)

    return [Route("/livez", livez), Route("/readyz", readyz), Route("/metrics", show)]


class Served:
    """An application served by a thread of its own until `stop`."""

    def __init__(self, app: ASGIApp, host: str, port: int) -> None:
        config = uvicorn.Config(app, host=host, port=port, log_level="warning", access_log=False, lifespan="off")
        self._server = uvicorn.Server(config)
        self._server.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
        self._thread = threading.Thread(target=self._run, name="http", daemon=True)
        self._failed = ""
        self._thread.start()
        end = time.monotonic() + STARTED_S
        while not self._server.started:
            if self._failed or not self._thread.is_alive() or time.monotonic() > end:
                raise Refused(
                    f"cannot listen on {host}:{port}{self._failed}; name another port with LOCKSTEP_HTTP_PORT (0: any free one)"
                )
            time.sleep(0.01)
        port = self._server.servers[0].sockets[0].getsockname()[1]
        shown = f"[{host}]" if ":" in host else host
        self.url = f"http://{shown}:{port}"

    def _run(self) -> None:
        try:
            self._server.run()
        except SystemExit:  # uvicorn's way to say that it cannot bind
            self._failed = ": the port is taken, or the address is not of this machine"

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join(5)


def serve(metrics: Metrics, healths: Healths, host: str, port: int) -> Served:
    """Probes and metrics on an address of their own. Raises `Refused` when the port cannot be had."""
    return Served(Starlette(routes=routes(metrics, healths)), host, port)
