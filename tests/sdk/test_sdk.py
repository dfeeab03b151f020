"""The SDK from the outside: what is refused where it is made, what arrives, on every log."""

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from connectors import sdk
from connectors.log.embedded import EmbeddedLog
from connectors.log.kafka import KafkaLog
from connectors.log.memory import MemoryLog
from connectors.sdk.events import EVENTS
from schemas import records
from schemas.errors import Refused
from schemas.log import Log
from schemas.topics import TOPIC, TOPICS
from tests.streams.facts import read
from tests.support.broker import Broker


@pytest.fixture
def log() -> Iterator[MemoryLog]:
    made = MemoryLog()
    made.provision(TOPICS, dry_run=False)
    yield made
    made.close()


def test_every_input_has_a_model_with_its_fields() -> None:
    inputs = {r for t in TOPICS if set(t.writers) & {"infrastructure", "users"} for r in t.records}
    assert {e.row_type for e in EVENTS} == inputs
    for event in EVENTS:
        assert event.row_type in TOPIC[event.topic].records
        aliases = [f.alias or name for name, f in event.model_fields.items()]
        assert tuple(aliases) == event.row_type._fields


def test_text_with_units_becomes_numbers() -> None:
    node = sdk.NodeRegistered(
        node="n1", site="s1", cards=8, card_model="NVIDIA A100-SXM4-80GB", cpu_milli="128", memory_bytes="1TiB", disk_bytes="3.84TB",
        row="r7", labels={"pool": "a"}, at=5,
    ).row()  # type: ignore[arg-type]  # fmt: skip
    assert node == records.NodeRegistered(
        "n1", 5, "default", "s1", "", "", "", "r7", "", 8, "A100-SXM4-80GB", 85_899_345_920, 128_000, 1_099_511_627_776,
        3_840_000_000_000, "", ("pool=a",), "", "active",
    )  # fmt: skip
    link = sdk.LinkRegistered(link="l", src_site="a", dst_site="b", capacity_gbps="50GB/s", at=5)  # type: ignore[arg-type]
    assert link.capacity_gbps == 400.0
    job = sdk.JobSubmitted(job="j", user="u", cards_milli="0.5", run_limit_ms="1h30m", at=5)  # type: ignore[arg-type]
    assert (job.cards_milli, job.run_limit_ms) == (500, 5_400_000)


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: sdk.NodeTelemetry(node="", counter=1, cards_healthy=8), "node"),
        (lambda: sdk.NodeTelemetry(node="n", counter=-1, cards_healthy=8), "counter"),
        (lambda: sdk.NodeTelemetry(node="n", counter=1, cards_healthy=64), "cards_healthy"),
        (
            lambda: sdk.NodeTelemetry(node="n", counter=1, cards_healthy=8, card_utilization_pct=101),
            "card_utilization_pct",
        ),
        (lambda: sdk.NodeTelemetry(node="n", counter=1, cards_healthy=8, power_watts=float("nan")), "power_watts"),
        (lambda: sdk.NodeTelemetry(node="n", counter=1, cards_healthy=8, temperature=40), "temperature"),  # type: ignore[call-arg]
        (
            lambda: sdk.NodeRegistered(node="n", site="s", cpu_milli=1, memory_bytes="80gb"),
            "of which the case is unclear",
        ),  # type: ignore[arg-type]
        (
            lambda: sdk.NodeRegistered(node="n", site="s", cards=8, cpu_milli=1, memory_bytes=1),
            "needs their card_model",
        ),
        (lambda: sdk.NodeRegistered(node="n", site="s", cpu_milli=1, memory_bytes=1, admin_state="off"), "admin_state"),  # type: ignore[arg-type]
        (lambda: sdk.LinkRegistered(link="l", src_site="a", dst_site="a", capacity_gbps=1), "to itself"),
        (lambda: sdk.JobSubmitted(job="j", user="u", cards_milli=1500), "neither whole cards nor a share"),
        (lambda: sdk.JobSubmitted(job="j", user="u", members=0), "members"),
        (lambda: sdk.JobProgress(job="j", attempt=1, progress_fraction=1.1), "progress_fraction"),
        (lambda: sdk.Receipt(job="j", attempt=0, node="n", kind="started"), "attempt"),
        (lambda: sdk.Receipt(job="j", attempt=1, node="n", kind="done"), "kind"),  # type: ignore[arg-type]
    ],
)
def test_wrong_values_never_leave(make: object, told: str) -> None:
    with pytest.raises(Refused, match=told) as caught:
        make()  # type: ignore[operator]
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"node": "n", "counter": 1}, "NodeTelemetry.cards_healthy is missing"),
        (
            {"node": "n", "counter": 1, "cards_healthy": 64},
            "NodeTelemetry.cards_healthy: input should be less than or equal to 63, not 64",
        ),
        (
            {"node": "n", "counter": 1, "cards_healthy": 8, "cards_helthy": 8},
            "NodeTelemetry.cards_helthy is no field; did you mean cards_healthy?",
        ),
        (
            {"node": "n", "cards_healthy": "x" * 1_000},
            "NodeTelemetry.counter is missing (and 1 more)",
        ),
        (
            {"node": "n", "counter": 1, "cards_healthy": 8, "memory_used_bytes": "80gb"},
            "NodeTelemetry.memory_used_bytes: '80gb' ends in 'gb', of which the case is unclear (bits? bytes?); "
            "GB (powers of 1000) or GiB (powers of 1024) would be right",
        ),
    ],
)
def test_an_error_is_one_sentence_with_the_field_and_the_remedy(values: dict[str, object], told: str) -> None:
    with pytest.raises(Refused) as made:
        sdk.NodeTelemetry(**values)  # type: ignore[arg-type]
    with pytest.raises(Refused) as read_from_json:
        sdk.NodeTelemetry.model_validate_json(json.dumps(values))
    assert str(made.value) == str(read_from_json.value) == told


def _send_some(where: "sdk.ProducerSettings | Log") -> None:
    with sdk.Producer(where) as p:
        p.send(sdk.NodeRegistered(node="n1", site="s1", cpu_milli=1000, memory_bytes=1 << 30, at=1))
        for i in range(5_000):
            p.send(sdk.NodeTelemetry(node="n1", counter=i, cards_healthy=0, at=i))


def _arrived(log: Log) -> None:
    (node,) = read(log, "resources")
    assert isinstance(node, records.NodeRegistered)
    assert (node.node, node.at) == ("n1", 1)
    samples = read(log, "resource-telemetry")
    assert [s.counter for s in samples if isinstance(s, records.NodeTelemetry)] == list(range(5_000))


def test_events_arrive_in_memory(log: MemoryLog) -> None:
    _send_some(log)
    _arrived(log)


def test_events_arrive_in_the_embedded_log(tmp_path: Path) -> None:
    _send_some(sdk.ProducerSettings(data_dir=tmp_path / "data"))
    log = EmbeddedLog(tmp_path / "data")
    _arrived(log)
    log.close()


@pytest.mark.kafka
def test_events_arrive_in_kafka(broker: Broker) -> None:
    prefix = f"sdk-{time.time_ns()}."
    log = KafkaLog(broker.bootstrap, prefix=prefix)
    log.provision(TOPICS, dry_run=False)
    _send_some(sdk.ProducerSettings(kafka=broker.bootstrap, topic_prefix=prefix))
    _arrived(log)
    log.close()


def test_settings_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCKSTEP_KAFKA", "broker:9092")
    monkeypatch.setenv("LOCKSTEP_KAFKA_OPTIONS", '{"sasl.password": "s3cret"}')
    settings = sdk.ProducerSettings()
    assert settings.kafka == "broker:9092"
    assert settings.kafka_options == {"sasl.password": "s3cret"}
    assert "s3cret" not in repr(settings)


def test_wrong_things_are_not_sent(log: MemoryLog) -> None:
    producer = sdk.Producer(log)
    with pytest.raises(Refused, match="is no event"):
        producer.send({"node": "n1"})  # type: ignore[arg-type]
    producer.close()
    producer.close()
    with pytest.raises(Refused, match="closed"):
        producer.send(sdk.JobCancelled(job="j", user="u"))
