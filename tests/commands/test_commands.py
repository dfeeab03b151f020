"""Commands without a running process, and `submit --wait` with one: exit codes, one sentence on standard error, JSON shapes."""

import http.server
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from connectors.log.embedded import EmbeddedLog
from connectors.sdk import NodeRegistered, NodeTelemetry, Producer, ProducerSettings
from schemas.messages import Record
from tests.commands.conftest import Answer, Lockstep


def _one_sentence(answer: Answer, code: int, told: str) -> None:
    assert answer.code == code, answer.err
    assert answer.out == ""
    assert told in answer.err
    assert len(answer.err.strip().splitlines()) == 1


@pytest.fixture
def provisioned(lockstep: Lockstep) -> Lockstep:
    """A data folder with one node's events in its log, that no engine has seen yet."""
    with Producer(ProducerSettings(data_dir=lockstep.data)) as p:
        p.send(
            NodeRegistered(node="gpu-17", site="s1", cards=2, card_model="T4", cpu_milli=16_000, memory_bytes=1 << 36)
        )
        p.send(NodeTelemetry(node="gpu-17", counter=1, cards_healthy=2))
    return lockstep


def test_what_is_wrong_is_one_sentence_and_a_code(provisioned: Lockstep) -> None:
    lockstep = provisioned
    file = lockstep.data.parent / "job.yaml"
    file.write_text("crads: 8\n")
    _one_sentence(lockstep("submit", "job.yaml"), 2, "a job has no field 'crads'; did you mean cards?")
    _one_sentence(lockstep("submit", "absent.yaml"), 2, "absent.yaml cannot be read: No such file or directory")
    _one_sentence(lockstep("submit", "--memory", "80gb", "--", "true"), 2, "of which the case is unclear")
    _one_sentence(lockstep("submit", "--wait", "--timeout", "90", "--", "true"), 2, "--timeout: '90' has no unit")
    _one_sentence(lockstep("submit", "--time-limit", "0s", "--", "true"), 2, "time_limit: 0s is no time to run in")
    _one_sentence(lockstep("submit", "--cards", "1"), 2, "what is to run is missing")
    _one_sentence(lockstep("submit", "--cards", "100", "--", "true"), 2, "100 cards for each member; 0, a share")
    _one_sentence(lockstep("jobs", "--state", "finish"), 2, "there is no state 'finish'; did you mean finished?")
    unread = lockstep("why", "nothing")
    assert (unread.code, unread.out) == (3, "")
    assert unread.err.splitlines()[0] == "2 events wait in the log; `lockstep up` takes them up."
    assert "there is no job 'nothing'" in unread.err
    _one_sentence(lockstep("cancel", "nothing"), 3, "`lockstep jobs` shows those that are known")
    _one_sentence(lockstep("dead-letter", "show", "0"), 3, "there is no dead letter 0")
    _one_sentence(lockstep("dead-letter", "replay"), 2, "say which dead letters")
    assert lockstep("jobs", "--json").json == []  # nothing of it was submitted


def test_a_running_process_on_another_log_is_not_asked(provisioned: Lockstep) -> None:
    """With Kafka set, the folder's own `up` is somebody else: its jobs are not the ones that were asked for."""
    provisioned.start()
    assert provisioned("nodes", "--json").json[0]["node"] == "gpu-17"
    elsewhere = Lockstep(provisioned.data, {"LOCKSTEP_KAFKA": "127.0.0.1:1"})
    for words in (("nodes",), ("submit", "--", "true")):
        _one_sentence(elsewhere(*words), 1, "Kafka at 127.0.0.1:1 does not answer")
    assert provisioned("jobs", "--json").json == []
    provisioned.stop()


def test_the_version_by_flag_and_by_command(lockstep: Lockstep) -> None:
    assert lockstep("--version").out == lockstep("version").out


def test_a_job_file_is_inferred_shown_and_only_then_sent(provisioned: Lockstep) -> None:
    lockstep = provisioned
    (lockstep.data.parent / "job.yaml").write_text(
        "job: train-1\ncards: 2\nmodel: T4\nqueue: night\ncommand: [python, train.py]\n"
    )
    told = lockstep("submit", "job.yaml", "--dry-run", "--json", "--queue", "day").json
    assert told["sent"] is False
    assert told["asked"]["queue"] == "day"  # a flag goes before the file
    assert told["asked"]["cards_milli"] == 2_000
    assert {i["field"] for i in told["inferred"]} == {"priority", "members", "cpu", "memory", "estimate"}
    assert {t["topic"]: t["messages"] for t in lockstep("topics", "--json").json}["jobs"] == 0
    sent = lockstep("submit", "job.yaml")
    assert sent.code == 0
    assert "train-1 is submitted." in sent.out
    assert "`lockstep up` will take it up" in sent.err
    assert {t["topic"]: t["messages"] for t in lockstep("topics", "--json").json}["jobs"] == 1


def test_waiting_ends_with_the_placement_or_with_code_3(provisioned: Lockstep) -> None:
    lockstep = provisioned
    lockstep.start()
    lockstep.until("the node", lambda: lockstep("nodes", "--json").json)
    placed = lockstep("submit", "--wait", "--json", "--job", "one", "--cards", "2", "--memory", "1Gi", "--", "true")
    assert placed.code == 0
    assert (placed.json["state"], placed.json["nodes"]) == ("placed", ["gpu-17"])
    late = lockstep(
        "submit", "--wait", "--timeout", "2s", "--job", "two", "--cards", "2", "--memory", "1Gi", "--", "true"
    )
    assert late.code == 3
    assert "two waits: " in late.out
    assert late.err.startswith("two waits: ")  # said at once, not only when the time is over
    assert "two was not placed within 2s; it goes on waiting in its queue" in late.err
    asked = lockstep("why", "two", "--json").json
    assert asked["state"] == "pending"
    assert asked["now"]["reason"]
    _one_sentence(lockstep("why", "tow"), 3, "did you mean two")
    _one_sentence(lockstep("submit", "--job", "two", "--", "true"), 2, "there is a job 'two' already")
    _one_sentence(lockstep("sql", "DROP TABLE job_placed"), 2, "")
    page = lockstep.data.parent / "report.html"
    assert lockstep("report", "--html", str(page)).code == 0
    assert page.read_text().lower().startswith("<!doctype html>")
    assert lockstep.stop() == 0


def test_another_domain_on_the_same_log_is_refused(provisioned: Lockstep) -> None:
    """A second domain needs a log of its own: every command says so before it changes anything."""
    provisioned.start()
    provisioned.until("decided", lambda: provisioned("nodes", "--json").json)
    assert provisioned.stop() == 0
    other = Lockstep(provisioned.data, {"LOCKSTEP_DOMAIN": "other"})
    before = {t["topic"]: t["messages"] for t in provisioned("topics", "--json").json}
    told = "this ledger belongs to domain 'default', and a log has one domain; set LOCKSTEP_DOMAIN=default, or give domain 'other' a log"
    for words in (("up", "--simulate"), ("run", "decide"), ("run", "observe"), ("jobs",), ("submit", "--", "true")):
        _one_sentence(other(*words), 2, told)
    assert {t["topic"]: t["messages"] for t in provisioned("topics", "--json").json} == before


def test_a_dead_letter_and_its_way_back(provisioned: Lockstep) -> None:
    """Listed, shown, tried, sent back and refused again: the same with and without a running process."""
    lockstep = provisioned
    log = EmbeddedLog(lockstep.data)
    appender = log.appender("test")
    appender.send(Record("jobs", b"key", b"text instead of Avro"))
    appender.close(10_000)
    log.close()
    lockstep.start()
    lockstep.until("refused", lambda: lockstep("dead-letter", "list", "--json").json)
    (letter,) = lockstep("dead-letter", "list", "--json").json
    assert (letter["topic"], letter["stage"], letter["code"], letter["replays"]) == ("jobs", "decide", "wrong_magic", 0)
    tried = lockstep("dead-letter", "replay", "--topic", "jobs", "--dry-run", "--json")
    assert tried.code == 0
    assert [t["action"] for t in tried.json] == ["would be replayed"]
    assert lockstep("dead-letter", "replay", "--topic", "jobs", "--limit", "1").code == 0
    lockstep.until("refused again", lambda: len(lockstep("dead-letter", "list", "--json").json) == 2)
    left = lockstep("dead-letter", "replay", "--topic", "jobs", "--limit", "1")
    assert left.code == 3
    assert "1 of 1 were left alone" in left.err
    assert lockstep.stop() == 0
    letters = lockstep("dead-letter", "list", "--json").json
    assert [d["replays"] for d in letters] == [1, 0]  # newest first; the one left alone did not come back
    whole = lockstep("dead-letter", "show", str(letter["id"]), "--json").json
    assert bytes.fromhex(whole["value_hex"]) == b"text instead of Avro"
    assert "text instead of Avro" in lockstep("dead-letter", "show", str(letter["id"])).out


class _Stranger(http.server.BaseHTTPRequestHandler):
    """Another program that has the port of a Lockstep that was killed."""

    def do_POST(self) -> None:
        self.send_response(404)
        self.end_headers()
        self.wfile.write(b"not here")

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name it has in the library
        pass


@pytest.fixture
def stranger() -> Iterator[str]:
    server = http.server.HTTPServer(("127.0.0.1", 0), _Stranger)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize("content", ["", "{", "[]", '{"url": "http://127.0.0.1:1", "token": "t", "pid": 1}'])
def test_a_stale_address_is_seen_through(provisioned: Lockstep, content: str) -> None:
    (provisioned.data / "api.json").write_text(content)
    assert provisioned("jobs", "--json").json == []


def test_a_stranger_on_the_port_is_not_taken_for_lockstep(provisioned: Lockstep, stranger: str) -> None:
    Path(provisioned.data / "api.json").write_text(json.dumps({"url": stranger, "token": "t", "pid": 1}))
    assert provisioned("jobs", "--json").json == []
