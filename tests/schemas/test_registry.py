"""Ids from a registry: a real one where its answers matter, a small false one for answers that a real one gives only on bad days."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Protocol

import pytest
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient

from connectors.registry import RETRY_AFTER_MS, UNKNOWN_FOR_S, RegistryIds, subject_of
from schemas.codec import PACKAGED, decode, decode_columns, decode_rows, encode
from schemas.errors import Fatal, Poison, Transient
from schemas.messages import Block
from schemas.records import ROW_TYPES, JobCancelled, NodeTelemetry
from tests.schemas.values import newest, plain_values
from tests.support.registry import Registry

ROW = NodeTelemetry("n1", 1_764_576_000_000, 7, 8, 93.5, 75 << 30, 64_000, 1 << 38, 5200.0)
CANCEL = JobCancelled("j", 1, "d", "u", "r")


class Opened(Protocol):
    def __call__(self, url: str, *, register: bool = True, clock: Callable[[], float] = ...) -> RegistryIds: ...


@pytest.fixture
def closing() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def opened(closing: ExitStack) -> Opened:
    """Ids of the registry at an address, closed after the test."""

    def open_(url: str, *, register: bool = True, clock: Callable[[], float] = time.monotonic) -> RegistryIds:
        return closing.enter_context(RegistryIds(url, register=register, clock=clock))

    return open_


@pytest.mark.kafka
def test_every_record_registers_and_reads_with_the_registrys_ids(opened: Opened, registry: Registry) -> None:
    ids = opened(registry.url)
    ids.check()
    rows = [record._make(plain_values(newest(record).avsc).values()) for record in ROW_TYPES]
    values: list[bytes | None] = [encode(row, ids) for row in rows] * 3
    fresh = opened(registry.url)  # another process: knows nothing but what the registry says
    assert decode_rows(Block("t", 0, values, 99), fresh).rows == list(enumerate(rows * 3))
    assert len({ids.newest(r) for r in ROW_TYPES}) == len(ROW_TYPES)
    assert all(opened(registry.url, register=False).newest(r) == ids.newest(r) for r in ROW_TYPES)


@pytest.mark.kafka
def test_an_id_nobody_knows_is_poison_and_neighbours_pass(opened: Opened, registry: Registry) -> None:
    ids = opened(registry.url)
    values: list[bytes | None] = [encode(ROW, ids)] * 40
    values[7] = b"\x00\x00\x0f\x42\x40" + encode(ROW)[5:]
    done = decode_rows(Block("resource-telemetry", 0, values, 40, offsets=range(40)), ids)
    assert [(i, p.code) for i, p in done.poison] == [(7, "unknown_schema")]
    assert len(done.rows) == 39


@pytest.mark.kafka
def test_messages_from_before_the_registry_are_still_read(opened: Opened, registry: Registry) -> None:
    assert decode(encode(ROW), ids=opened(registry.url)) == ROW


@pytest.mark.kafka
def test_a_later_release_is_read_and_another_teams_record_is_not(
    opened: Opened, closing: ExitStack, registry: Registry
) -> None:
    client = SchemaRegistryClient({"url": registry.url})
    closing.callback(client.close)
    later = json.loads(newest(JobCancelled).avsc)
    later["fields"].insert(0, {"name": "ticket", "type": "string", "default": ""})
    later_id = client.register_schema(subject_of(JobCancelled), Schema(json.dumps(later), "AVRO"))
    other = {"type": "record", "name": "Order", "namespace": "shop", "fields": [{"name": "id", "type": "long"}]}
    other_id = client.register_schema("shop.Order", Schema(json.dumps(other), "AVRO"))
    wrong = {**later, "fields": [{**f, "type": "long"} if f["name"] == "user" else f for f in later["fields"]]}
    wrong_id = client.register_schema("lockstep.wrong", Schema(json.dumps(wrong), "AVRO"))
    ids = opened(registry.url)
    ticket = b"\x00" + later_id.to_bytes(4, "big") + b"\x08T-17" + encode(CANCEL)[5:]
    assert decode(ticket, ids=ids) == CANCEL
    (columns,), _ = decode_columns(Block("jobs", 0, [ticket] * 40, 40), ids)
    assert columns.frame.columns == list(JobCancelled._fields)
    with pytest.raises(Poison, match=r"is shop\.Order, which is no record of Lockstep") as caught:
        ids.writer(other_id)
    assert caught.value.code == "foreign_schema"
    with pytest.raises(Poison, match="user changed its type") as caught:
        ids.writer(wrong_id)
    assert caught.value.code == "incompatible_schema"


@pytest.mark.kafka
def test_a_registry_that_goes_away_is_waited_for(opened: Opened, registry: Registry) -> None:
    ids = opened(registry.url)
    value = encode(ROW, ids)
    registry.stop()
    try:
        assert decode(value, ids=ids) == ROW  # known ids need no registry
        with pytest.raises(Transient, match="out of reach"):
            opened(registry.url).check()
        with pytest.raises(Transient):
            decode_rows(Block("t", 0, [value] * 40, 40), opened(registry.url))
    finally:
        registry.restart()


class Scripted(BaseHTTPRequestHandler):
    """Answers every request with what the test put into `answer`, and counts."""

    answer: tuple[int, bytes] = (200, b"{}")
    asked = 0

    def do_GET(self) -> None:
        type(self).asked += 1
        status, body = self.answer
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.do_GET()

    def log_message(self, *_: object) -> None:
        """Silent."""


@pytest.fixture
def scripted() -> Iterator[tuple[str, type[Scripted]]]:
    handler = type("Handler", (Scripted,), {})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", handler
        server.shutdown()
        thread.join()


NOT_FOUND = (404, b'{"error_code": 40403, "message": "Schema not found"}')


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503])
def test_a_registry_in_trouble_is_transient(opened: Opened, scripted: tuple[str, type[Scripted]], status: int) -> None:
    url, handler = scripted
    handler.answer = (status, b'{"error_code": 1, "message": "busy"}')
    ids = opened(url)
    for call in (lambda: ids.writer(5), lambda: ids.newest(NodeTelemetry), ids.check):
        with pytest.raises(Transient, match=f"answers {status}") as caught:
            call()
        assert caught.value.retry_after_ms == RETRY_AFTER_MS
    assert handler.asked == 3, "the runner retries, not the client"


@pytest.mark.parametrize("body", [b"<html>proxy</html>", b'{"schema": '])
def test_an_answer_that_is_none_is_transient(opened: Opened, scripted: tuple[str, type[Scripted]], body: bytes) -> None:
    url, handler = scripted
    handler.answer = (200, body)
    with pytest.raises(Transient):
        opened(url).writer(5)


@pytest.mark.parametrize(
    ("status", "says"), [(401, "credentials"), (403, "credentials"), (409, "incompatible"), (422, "incompatible")]
)
def test_a_refusal_stops_the_process(
    opened: Opened, scripted: tuple[str, type[Scripted]], status: int, says: str
) -> None:
    url, handler = scripted
    handler.answer = (status, b'{"error_code": 1, "message": "incompatible with an earlier schema"}')
    with pytest.raises(Fatal, match=says):
        opened(url).newest(NodeTelemetry)


def test_an_address_that_is_no_registry_is_found_before_it_poisons_everything(
    opened: Opened,
    scripted: tuple[str, type[Scripted]],
) -> None:
    url, handler = scripted
    handler.answer = (404, b"nothing here")
    with pytest.raises(Fatal, match="not a schema registry"):
        opened(url).check()


def test_noise_is_not_asked_for_again_and_again(opened: Opened, scripted: tuple[str, type[Scripted]]) -> None:
    url, handler = scripted
    handler.answer = NOT_FOUND
    now = [0.0]
    ids = opened(url, clock=lambda: now[0])
    for _ in range(50):
        with pytest.raises(Poison, match="neither in the registry"):
            ids.writer(77)
    assert handler.asked == 1
    now[0] = UNKNOWN_FOR_S + 1
    handler.answer = (200, json.dumps({"schema": newest(NodeTelemetry).avsc}).encode())
    assert ids.writer(77).record is NodeTelemetry, "registered late, found all the same"


def test_what_the_registry_calls_a_schema_may_be_anything(opened: Opened, scripted: tuple[str, type[Scripted]]) -> None:
    url, handler = scripted
    for text in ('"string"', "[]", "{}", "no json", '{"type": "record", "name": "X", "fields": []}', ""):
        handler.answer = (200, json.dumps({"schema": text}).encode())
        with pytest.raises(Poison) as caught:
            opened(url).writer(5)
        assert caught.value.code == "foreign_schema"


def test_passwords_never_show(opened: Opened) -> None:
    ids = opened("http://user:hunter2@127.0.0.1:9/x")
    for call in (ids.check, lambda: ids.writer(5), lambda: ids.newest(NodeTelemetry)):
        with pytest.raises(Transient) as caught:
            call()
        assert "hunter2" not in str(caught.value)
        assert "user" not in str(caught.value)
        assert caught.value.__cause__ is None


def test_packaged_ids_are_kept_out_of_the_registrys_way() -> None:
    """Messages from before a registry keep their packaged ids, which begin where a young registry has not counted to."""
    assert min(PACKAGED.all()) > 1000
