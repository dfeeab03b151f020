"""A real schema registry: provisioning registers everything, and messages carry its ids."""

import json
import os
from collections.abc import Iterator

import httpx
import pytest

from connectors.log.embedded import EmbeddedLog
from schemas.codec import PACKAGED
from schemas.messages import TopicPartition
from schemas.records import ROW_TYPES, JobSubmitted
from tests.commands.conftest import Lockstep
from tests.support.registry import NoRegistry, Registry


@pytest.fixture
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    try:
        made = Registry.start(tmp_path_factory.mktemp("registry"))
    except NoRegistry as e:
        if os.environ.get("LOCKSTEP_REQUIRE_ALL") == "1":
            pytest.fail(str(e))
        pytest.skip(str(e))
    # Ids of the packaged catalogue begin with 1: taken by another team's, they cannot be told from the registry's by chance.
    for name in range(40):
        schema = json.dumps({"type": "fixed", "name": f"Other{name}", "size": name + 1})
        httpx.post(f"{made.url}/subjects/other-{name}/versions", json={"schema": schema}).raise_for_status()
    yield made
    made.stop()


def test_schemas_are_registered_and_used(lockstep: Lockstep, registry: Registry) -> None:
    lockstep.env["LOCKSTEP_REGISTRY"] = registry.url

    # Another team has one of our subjects, with a schema that ours does not fit.
    subject = f"{registry.url}/subjects/lockstep.JobSubmitted"
    field = {"name": "x", "type": "int"}
    other = json.dumps({"type": "record", "name": "JobSubmitted", "namespace": "lockstep", "fields": [field]})
    httpx.post(f"{subject}/versions", json={"schema": other}).raise_for_status()
    rule = subject.replace("/subjects/", "/config/")
    httpx.put(rule, json={"compatibility": "FULL"}).raise_for_status()
    refused = lockstep("provision")
    assert refused.code == 1
    assert "lockstep.JobSubmitted" in refused.err
    assert len(refused.err.strip().splitlines()) == 1
    httpx.delete(rule).raise_for_status()
    httpx.delete(subject).raise_for_status()

    def schemas(*words: str) -> dict[str, tuple[str, int]]:
        told = lockstep("provision", "--json", *words)
        assert told.code == 0, told.err
        return {s["subject"]: (s["action"], s["id"]) for s in told.json if "subject" in s}

    names = {f"lockstep.{r.__name__}" for r in ROW_TYPES}
    planned = schemas("--dry-run")
    assert set(planned) == names
    missing = {name for name, (action, _) in planned.items() if action == "create"}
    assert "lockstep.JobSubmitted" in missing
    made = schemas()
    assert {name for name, (action, _) in made.items() if action == "create"} == missing
    assert schemas() == {name: ("keep", number) for name, (_, number) in made.items()}
    subjects = set(httpx.get(f"{registry.url}/subjects").json())
    assert names <= subjects

    lockstep.start("up", "--simulate")
    lockstep.until("nodes", lambda: len(lockstep("nodes", "--json").json) == 48)
    job = lockstep("submit", "--json", "--", "true").json["job"]
    landed = f"SELECT _schema_id FROM job_accepted WHERE job = '{job}'"
    lockstep.until("landed", lambda: lockstep("sql", "--json", landed).json)
    (row,) = lockstep("sql", "--json", landed).json
    assert row["_schema_id"] == made["lockstep.JobAccepted"][1]
    assert lockstep.stop() == 0
    log = EmbeddedLog(lockstep.data)
    reader = log.reader({TopicPartition("jobs", p): 0 for p in range(4)})
    ((value,),) = [block.values for block in reader.poll(10, 1_000) if len(block)]
    reader.close()
    log.close()
    assert value is not None
    number = int.from_bytes(value[1:5], "big")
    assert number == made["lockstep.JobSubmitted"][1] != PACKAGED.newest(JobSubmitted)
