"""Probes and metrics as a scraper sees them; `Served` where a port cannot be had."""

from collections.abc import Iterator, Mapping

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from infra.metrics import DECLARED
from infra.probes import Served, serve
from schemas.errors import Refused
from schemas.health import Health
from streams.metrics import Metrics

GOOD = Health(True, True, "has its partitions")
WAITS = Health(True, False, "waits for ClickHouse")
HANGS = Health(False, False, "its loop has not turned for 301 s")


class Watched:
    """Probes over healths that a test sets."""

    def __init__(self) -> None:
        self.metrics = Metrics()
        self.now: Mapping[str, Health] = {"decide": GOOD}
        self.served: Served = serve(self.metrics, lambda: self.now, "127.0.0.1", 0)

    def get(self, path: str) -> httpx.Response:
        return httpx.get(self.served.url + path, trust_env=False)

    def samples(self) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
        families = text_string_to_metric_families(self.get("/metrics").text)
        return {(s.name, tuple(sorted(s.labels.items()))): s.value for f in families for s in f.samples}


@pytest.fixture
def watched() -> Iterator[Watched]:
    made = Watched()
    yield made
    made.served.stop()


@pytest.mark.parametrize(
    ("healths", "live", "ready"),
    [
        ({"decide": GOOD}, 200, 200),
        ({"decide": GOOD, "land": WAITS}, 200, 503),
        ({"decide": GOOD, "land": HANGS}, 503, 503),
        ({}, 200, 503),
    ],
)
def test_live_and_ready(watched: Watched, healths: dict[str, Health], live: int, ready: int) -> None:
    watched.now = healths
    assert watched.get("/livez").status_code == live
    answer = watched.get("/readyz")
    assert answer.status_code == ready
    assert {role: told["detail"] for role, told in answer.json().items()} == {r: h.detail for r, h in healths.items()}
    samples = watched.samples()
    for role, health in healths.items():
        assert samples["lockstep_ready", (("role", role),)] == float(health.ready)


def test_metrics_as_a_scraper_reads_them(watched: Watched) -> None:
    m = watched.metrics
    m.add("lockstep_records_total", 3, "decide", "jobs")
    m.add("lockstep_records_total", 4, "decide", "jobs")
    m.set("lockstep_lag_records", 5, "decide", "jobs")
    m.set("lockstep_lag_records", 2, "decide", "jobs")
    for value in (1, 10, 11, 1_000_000):
        m.observe("lockstep_batch_records", value, "decide")
    assert watched.get("/metrics").headers["content-type"].startswith("text/plain; version=0.0.4")
    samples = watched.samples()
    jobs = (("role", "decide"), ("topic", "jobs"))
    assert samples["lockstep_records_total", jobs] == 7
    assert samples["lockstep_lag_records", jobs] == 2

    def bucket(le: str) -> float:
        return samples["lockstep_batch_records_bucket", (("le", le), ("role", "decide"))]

    # At most 1; at most 10; at most 100; …; all.
    assert [bucket(le) for le in ("1.0", "10.0", "100.0", "100000.0", "+Inf")] == [1, 2, 3, 3, 4]
    assert samples["lockstep_batch_records_count", (("role", "decide"),)] == 4
    assert samples["lockstep_batch_records_sum", (("role", "decide"),)] == 1_000_022
    assert samples["process_start_time_seconds", ()] > 0


def test_what_never_happened(watched: Watched) -> None:
    """Counters without labels begin at 0, so that their first increase is seen; gauges wait for a value."""
    names = {name for name, _ in watched.samples()}
    plain = {m.name for m in DECLARED if m.kind == "counter" and not m.labels}
    assert plain >= {"lockstep_gaps_filled_total", "lockstep_insert_retries_total"}
    assert plain <= names
    assert "lockstep_pending_jobs" not in names
    assert "lockstep_dead_letters_total" not in names


def test_a_port_that_cannot_be_had(watched: Watched) -> None:
    port = int(watched.served.url.rsplit(":", 1)[1])
    with pytest.raises(Refused, match=rf"cannot listen on 127\.0\.0\.1:{port}: .*LOCKSTEP_HTTP_PORT"):
        serve(Metrics(), dict, "127.0.0.1", port)
    with pytest.raises(Refused, match=r"cannot listen on 192\.0\.2\.1:0: .*not of this machine"):
        serve(Metrics(), dict, "192.0.2.1", 0)
