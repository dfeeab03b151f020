"""Settings: a file, the environment and flags, in this order of strength, each value with its origin.

`lockstep.yaml` in the working folder (or the file that LOCKSTEP_CONFIG names), then `LOCKSTEP_…` variables, then flags. The
command line loads them once; nothing else in Lockstep reads the environment.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Final, Literal
from urllib.parse import urlsplit

from pydantic import Field, ValidationError, ValidationInfo, field_validator
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
    YamlConfigSettingsSource,
)
from yaml import YAMLError

from schemas.errors import Refused

PREFIX: Final = "LOCKSTEP_"
CONFIG: Final = "LOCKSTEP_CONFIG"
DEFAULT_FILE: Final = Path("lockstep.yaml")
HIDDEN: Final = "********"
_SECRET: Final = re.compile(
    r"password|secret|token|private|credential|key\.pem|jaas|user\.info|oauthbearer\.config", re.IGNORECASE
)
# Up to the last @ before the path: a password may hold one.
_IN_URL: Final = re.compile(r"(://[^/:@\s]*:)[^/\s]*@")
_IN_QUERY: Final = re.compile(r"([?&][^=&#\s]*(?:password|secret|token)[^=&#\s]*=)[^&#\s]*", re.IGNORECASE)
# As near as this a variable is a slip of the pen, not another program's.
_SLIP: Final = 0.8
Origin = Literal["default", "file", "environment", "flag"]


class Settings(BaseSettings):
    """All that can be set. Each field's description is what `lockstep settings` and the docs say."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, extra="forbid", frozen=True)

    data_dir: Path = Field(
        Path("lockstep-data"), description="Folder for what must last: the embedded log, snapshots, ClickHouse's engine"
    )
    domain: str = Field("default", min_length=1, description="Scheduling domain: one ledger, one engine")
    kafka: str = Field(
        "", description="Kafka bootstrap servers, host:port,…; empty: the embedded log in the data folder"
    )
    kafka_options: dict[str, str] = Field(
        default_factory=dict, description="More options of the Kafka client (librdkafka's names), for TLS and SASL"
    )
    topic_prefix: str = Field("lockstep.", description="What every topic's name begins with on Kafka")
    registry: str = Field("", description="Schema registry with Confluent's API; empty: ids of the packaged catalogue")
    registry_options: dict[str, str] = Field(
        default_factory=dict, description="More options of the registry client (Confluent's names)"
    )
    clickhouse: str = Field(
        "", description="http(s)://user:password@host:port/database; empty: ClickHouse's engine in the data folder"
    )
    slot: str = Field(
        "0",
        min_length=1,
        description="Name of this process among those of its role; a newer one of the same name takes over",
    )
    http_host: str = Field("127.0.0.1", description="Address of probes, metrics and the local API")
    http_port: Annotated[int, Field(ge=0, le=65_535)] = Field(0, description="Their port; 0: any free one")
    silence_ms: Annotated[int, Field(ge=100)] = Field(
        90_000, description="A node that sends nothing for so long counts as silent"
    )
    linger_ms: Annotated[int, Field(ge=0)] = Field(
        1_000, description="Rows are gathered for so long before they are inserted into ClickHouse"
    )
    shutdown_ms: Annotated[int, Field(ge=0)] = Field(20_000, description="Longest time for an orderly end")
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="What is written to the log")

    @classmethod
    def settings_customise_sources(
        cls, settings_cls: type[BaseSettings], init_settings: PydanticBaseSettingsSource, *others: PydanticBaseSettingsSource,
        **named: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:  # fmt: skip
        """`load` reads the sources itself, so that it knows each value's origin."""
        return (init_settings,)

    @field_validator("topic_prefix")
    @classmethod
    def _prefix(cls, value: str) -> str:
        if not re.fullmatch(r"[A-Za-z0-9._-]*", value):
            raise ValueError("a topic's name has only letters, digits, '.', '_' and '-'")
        return value

    @field_validator("clickhouse", "registry")
    @classmethod
    def _addresses(cls, value: str, info: ValidationInfo) -> str:
        """Nothing of the value goes into the message: it may hold a password."""
        if info.field_name == "clickhouse" and value.startswith("chdb:"):
            return value
        example = "http://host:8123/database" if info.field_name == "clickhouse" else "http://host:8081"
        for one in value.split(",") if info.field_name == "registry" else [value]:
            try:
                parts = urlsplit(one.strip())
                whole = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
            except ValueError:
                whole = False
            if value and not whole:
                raise ValueError(f"an address looks like {example}")
        return value

    @property
    def clickhouse_target(self) -> str:
        """For `connectors.clickhouse.client.connect`."""
        return self.clickhouse or f"chdb:{self.data_dir / 'clickhouse'}"

    @property
    def snapshots_dir(self) -> Path:
        return self.data_dir / "snapshots"

    @property
    def log_name(self) -> str:
        """Where the log is, for people; no secret."""
        return f"Kafka at {self.kafka} (topics {self.topic_prefix}…)" if self.kafka else f"embedded in {self.data_dir}"


@dataclass(frozen=True, slots=True)
class Effective:
    """One setting as it is: its value as text with secrets hidden, where it comes from, and what it means."""

    name: str
    value: str
    origin: Origin
    variable: str
    description: str


@dataclass(frozen=True, slots=True)
class Loaded:
    """Settings and their origins."""

    settings: Settings
    origins: Mapping[str, Origin]
    file: Path | None

    def effective(self) -> list[Effective]:
        shown = []
        for name, info in Settings.model_fields.items():
            value = getattr(self.settings, name)
            shown.append(
                Effective(
                    name, hidden(name, value), self.origins[name], f"{PREFIX}{name.upper()}", info.description or ""
                )
            )
        return shown


def hidden(name: str, value: object) -> str:
    """A value as text, without its secrets: passwords in addresses, and options whose names say that they are one."""
    if isinstance(value, Mapping):
        return ", ".join(
            f"{k}={HIDDEN if _SECRET.search(str(k)) else hidden(str(k), v)}" for k, v in sorted(value.items())
        )
    return _IN_QUERY.sub(rf"\1{HIDDEN}", _IN_URL.sub(rf"\1{HIDDEN}@", str(value)))


def load(flags: Mapping[str, object] | None = None) -> Loaded:
    """Settings from file, environment and `flags` (None values are not given). Raises `Refused` with every wrong value named."""
    named = os.environ.get(CONFIG)
    file = Path(named) if named else (DEFAULT_FILE if DEFAULT_FILE.is_file() else None)
    from_file = _from_file(file) if file is not None else {}
    _no_slips()
    try:
        from_env = EnvSettingsSource(Settings)()
    except SettingsError as e:
        raise Refused(f'{_variable(str(e))} must be JSON, for example {{"sasl.username": "lockstep"}}') from e
    given = {k: v for k, v in (flags or {}).items() if v is not None}
    origins: dict[str, Origin] = dict.fromkeys(Settings.model_fields, "default")
    sources: tuple[tuple[Mapping[str, object], Origin], ...] = (
        (from_file, "file"),
        (from_env, "environment"),
        (given, "flag"),
    )
    for found, origin in sources:
        origins |= dict.fromkeys(found, origin)
    try:
        # Validated as plain data: the sources were read above, once, so that origins are known.
        settings = Settings.model_validate({**from_file, **from_env, **given})
    except ValidationError as e:
        raise Refused(
            "; ".join(_told(str(error["loc"][0]), error["msg"], origins, file) for error in e.errors())
        ) from e
    return Loaded(settings, origins, file)


def _no_slips() -> None:
    """A variable that is nearly a setting would be passed over, and the process would run on something else."""
    for variable in sorted(os.environ):
        name = variable.removeprefix(PREFIX).lower()
        if not variable.startswith(PREFIX) or name in Settings.model_fields or variable == CONFIG:
            continue
        near = get_close_matches(name, Settings.model_fields, 1, _SLIP)
        if near:
            raise Refused(f"{variable} is no setting; did you mean {PREFIX}{near[0].upper()}?")


def _from_file(file: Path) -> dict[str, object]:
    if not file.is_file():
        raise Refused(f"the settings file {file} ({CONFIG}) is not there")
    try:
        found = YamlConfigSettingsSource(Settings, yaml_file=file)()
    except (YAMLError, ValueError, TypeError, OSError) as e:
        raise Refused(f"the settings file {file} is not readable YAML: {' '.join(str(e).split())[:200]}") from e
    for name in found:
        if name not in Settings.model_fields:
            near = get_close_matches(str(name), Settings.model_fields, 1)
            raise Refused(
                f"the settings file {file} has {name!r}, which is no setting"
                + (f"; did you mean {near[0]}?" if near else "")
            )
    return found


def _told(name: str, message: str, origins: Mapping[str, Origin], file: Path | None) -> str:
    where = {
        "file": f"{name} in {file}",
        "environment": f"{PREFIX}{name.upper()}",
        "flag": f"--{name.replace('_', '-')}",
    }
    return f"{where.get(origins.get(name, 'default'), name)}: {message.removeprefix('Value error, ')}"


def _variable(message: str) -> str:
    found = re.search(r'field "(\w+)"', message)
    return f"{PREFIX}{found[1].upper()}" if found else "a LOCKSTEP_ variable"
