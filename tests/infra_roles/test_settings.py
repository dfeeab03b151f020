"""Settings: which source wins and says so, secrets that nobody sees, and refusals in one sentence."""

import os
import re
from pathlib import Path

import pytest

from infra import settings_page
from infra.settings import HIDDEN, Settings, hidden, load
from schemas.errors import Refused
from tests.commands.conftest import Lockstep

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No settings of whoever runs the tests."""
    for name in list(os.environ):
        if name.startswith("LOCKSTEP_"):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


def test_flags_beat_the_environment_and_that_the_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "lockstep.yaml").write_text(
        "domain: of-the-file\nslot: of-the-file\ndata_dir: of-the-file\nlinger_ms: 7\n"
    )
    monkeypatch.setenv("LOCKSTEP_SLOT", "of-the-environment")
    monkeypatch.setenv("LOCKSTEP_DATA_DIR", "of-the-environment")
    loaded = load({"data_dir": Path("of-the-flag"), "kafka": None})
    found = loaded.settings
    assert (found.domain, found.slot, found.data_dir) == ("of-the-file", "of-the-environment", Path("of-the-flag"))
    assert (found.linger_ms, found.kafka, found.shutdown_ms) == (7, "", 20_000)
    origins = {e.name: e.origin for e in loaded.effective()}
    assert origins["domain"] == origins["linger_ms"] == "file"
    assert origins["slot"] == "environment"
    assert origins["data_dir"] == "flag"
    assert origins["kafka"] == origins["shutdown_ms"] == "default"
    assert loaded.file == Path("lockstep.yaml")


def test_another_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "lockstep.yaml").write_text("domain: not-this\n")
    (tmp_path / "other.yaml").write_text("domain: this\nkafka_options: {sasl.username: lockstep}\n")
    monkeypatch.setenv("LOCKSTEP_CONFIG", "other.yaml")
    assert load().settings.domain == "this"
    assert load().settings.kafka_options == {"sasl.username": "lockstep"}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("clickhouse", "https://user:s3cret@host:8443/lockstep"),
        ("clickhouse", "https://user:s3cret@with-an@host:8443/lockstep"),
        ("clickhouse", "http://:s3cret@host"),
        ("clickhouse", "http://host:8123/lockstep?user=me&password=s3cret"),
        ("registry", "http://a:s3cret@one:8081,http://b:s3cret@two:8081"),
        ("kafka_options", {"sasl.password": "s3cret", "sasl.username": "seen"}),
        ("kafka_options", {"ssl.key.password": "s3cret", "ssl.keystore.password": "s3cret"}),
        ("kafka_options", {"ssl.key.pem": "s3cret", "sasl.oauthbearer.client.secret": "s3cret"}),
        ("kafka_options", {"sasl.oauthbearer.config": "s3cret", "producer.sasl.password": "s3cret"}),
        ("kafka_options", {"sasl.oauthbearer.token.endpoint.url": "https://idp/token?client_secret=s3cret"}),
        ("registry_options", {"basic.auth.user.info": "user:s3cret", "bearer.auth.token": "s3cret"}),
    ],
)
def test_secrets_are_hidden(name: str, value: object) -> None:
    shown = hidden(name, value)
    assert "s3cret" not in shown
    assert "with-an" not in shown
    assert HIDDEN in shown


@pytest.mark.parametrize("value", ["http://host:8123/lockstep", "kafka-1:9092,kafka-2:9092", "user@host", "5", "a:b"])
def test_what_is_no_secret_is_shown(value: str) -> None:
    assert hidden("anything", value) == value
    assert hidden("kafka_options", {"sasl.username": value}) == f"sasl.username={value}"


@pytest.mark.parametrize(
    ("variable", "value", "told"),
    [
        ("LOCKSTEP_HTTP_PORT", "70000", "LOCKSTEP_HTTP_PORT: Input should be less than or equal to 65535"),
        ("LOCKSTEP_HTTP_PORT", "many", "LOCKSTEP_HTTP_PORT: Input should be a valid integer"),
        ("LOCKSTEP_LOG_LEVEL", "loud", "LOCKSTEP_LOG_LEVEL: Input should be 'debug', 'info', 'warning' or 'error'"),
        ("LOCKSTEP_TOPIC_PREFIX", "a/b", "LOCKSTEP_TOPIC_PREFIX: a topic's name has only letters"),
        ("LOCKSTEP_KAFKA_OPTIONS", "sasl.password=s3cret", "LOCKSTEP_KAFKA_OPTIONS must be JSON"),
        ("LOCKSTEP_DOMAIN", "", "LOCKSTEP_DOMAIN: String should have at least 1 character"),
        ("LOCKSTEP_KAFAK", "host:9092", "LOCKSTEP_KAFAK is no setting; did you mean LOCKSTEP_KAFKA?"),
        ("LOCKSTEP_CLICKHOSUE", "http://h", "LOCKSTEP_CLICKHOSUE is no setting; did you mean LOCKSTEP_CLICKHOUSE?"),
        (
            "LOCKSTEP_CLICKHOUSE",
            "user:s3cret@host:8123",
            "LOCKSTEP_CLICKHOUSE: an address looks like http://host:8123/data",
        ),
        (
            "LOCKSTEP_CLICKHOUSE",
            "http://u:s3cret@host:99999/db",
            "LOCKSTEP_CLICKHOUSE: an address looks like http://host",
        ),
        ("LOCKSTEP_REGISTRY", "http://one:8081,two:8081", "LOCKSTEP_REGISTRY: an address looks like http://host:8081"),
        ("LOCKSTEP_CONFIG", "nowhere.yaml", "the settings file nowhere.yaml (LOCKSTEP_CONFIG) is not there"),
    ],
)
def test_wrong_variables_are_refused(monkeypatch: pytest.MonkeyPatch, variable: str, value: str, told: str) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(Refused) as refused:
        load()
    assert told in str(refused.value)
    assert "s3cret" not in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("domian: x\n", "'domian', which is no setting; did you mean domain?"),
        ("kafka_options: {sasl.password: s3cret\n", "is not readable YAML"),
        ("- a list\n", "is not readable YAML"),
        ("shutdown_ms: soon\n", "shutdown_ms in lockstep.yaml: Input should be a valid integer"),
        ("http_port: -1\nslot: ''\n", "; "),
        ("kafka_options: {ssl.key.password: [s3cret]}\n", "kafka_options in lockstep.yaml"),
    ],
)
def test_wrong_files_are_refused(tmp_path: Path, text: str, told: str) -> None:
    (tmp_path / "lockstep.yaml").write_text(text)
    with pytest.raises(Refused) as refused:
        load()
    assert told in str(refused.value)
    assert "s3cret" not in str(refused.value)
    assert "\n" not in str(refused.value)


def test_variables_of_others_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCKSTEP_REQUIRE_ALL", "1")
    monkeypatch.setenv("LOCKSTEP_KAFKA", "")
    assert load().settings == Settings.model_validate({})


def test_compose_sets_only_settings() -> None:
    """A misspelt variable in the compose file would be passed over by the process it is meant for."""
    text = (ROOT / "docker-compose.yml").read_text() + (ROOT / "Dockerfile").read_text()
    set_there = set(re.findall(r"\bLOCKSTEP_([A-Z_]+)(?=[:=])", text))
    assert set_there >= {"KAFKA", "CLICKHOUSE", "HTTP_PORT", "DATA_DIR"}
    assert {name.lower() for name in set_there} <= set(Settings.model_fields)


def test_the_command_shows_and_refuses(lockstep: Lockstep) -> None:
    lockstep.env |= {
        "LOCKSTEP_CLICKHOUSE": "https://user:s3cret@host:8443/db",
        "LOCKSTEP_KAFKA_OPTIONS": '{"sasl.password": "s3cret"}',
    }
    told = lockstep("settings", "--json", "--data", "elsewhere")
    assert told.code == 0
    assert "s3cret" not in told.out
    shown = {s["name"]: s for s in told.json}
    assert set(shown) == set(Settings.model_fields)
    assert (shown["data_dir"]["value"], shown["data_dir"]["origin"]) == ("elsewhere", "flag")
    assert shown["clickhouse"]["value"] == f"https://user:{HIDDEN}@host:8443/db"
    assert shown["clickhouse"]["origin"] == "environment"
    people = lockstep("settings")
    assert people.code == 0
    assert "s3cret" not in people.out
    assert "LOCKSTEP_CLICKHOUSE" in people.out

    lockstep.env["LOCKSTEP_HTTP_PORT"] = "70000"
    for words in (("up",), ("jobs",), ("import", "slurm", "-")):
        refused = lockstep(*words, stdin="")
        assert refused.code == 2, words
        assert len(refused.err.strip().splitlines()) == 1, refused.err
        assert "LOCKSTEP_HTTP_PORT" in refused.err
        assert not refused.out


def test_the_page_of_settings_is_current(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert settings_page.PAGE.read_text("utf-8") == settings_page.page(), "run python -m infra.settings_page"
    assert settings_page.main(["--check"]) == 0
    assert all(
        settings_page.page().count(f"| `{name}` | `LOCKSTEP_{name.upper()}` |") == 1 for name in Settings.model_fields
    )
    stale = tmp_path / "settings.md"
    stale.write_text(settings_page.page() + "more\n")
    monkeypatch.setattr(settings_page, "PAGE", stale)
    assert settings_page.main(["--check"]) == 1
    assert "run python -m infra.settings_page" in capsys.readouterr().err
    assert settings_page.main([]) == 0
    assert settings_page.main(["--check"]) == 0
