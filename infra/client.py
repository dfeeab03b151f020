"""Whom a command asks: the running process of the data folder through its API, else the log and ClickHouse themselves."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, Protocol

import httpx

from infra.settings import Settings
from infra.wire import FILE, METHODS, error_of
from schemas.errors import LockstepError, Refused, Transient

if TYPE_CHECKING:
    from infra.questions import Questions

CONNECT_S: Final = 2.0
ANSWER_S: Final = 300.0


class Asked(Protocol):
    """Something that answers the methods of `infra.questions`."""

    running: bool

    def __call__(self, method: str, **arguments: object) -> object: ...


class Remote:
    """A running process, asked through its API."""

    running = True

    def __init__(self, url: str, token: str, client: httpx.Client) -> None:
        self._url = url
        self._headers = {"Authorization": f"Bearer {token}"}
        self._client = client

    def __call__(self, method: str, **arguments: object) -> object:
        try:
            answer = self._client.post(f"{self._url}/v1/{method}", json=arguments, headers=self._headers)
            body = answer.json()
        except (httpx.HTTPError, ValueError) as e:
            raise Transient(f"the running process at {self._url} does not answer: {str(e) or type(e).__name__}") from e
        if not isinstance(body, dict) or not ({"answer", "error"} & set(body)):
            raise Transient(f"what answers at {self._url} is not Lockstep")
        if answer.status_code != 200:
            raise error_of(body)
        return body["answer"]


class Direct:
    """No process runs here: this one opens the log and ClickHouse itself."""

    running = False

    def __init__(self, questions: "Questions") -> None:
        self._questions = questions

    def __call__(self, method: str, **arguments: object) -> object:
        if method not in METHODS:
            raise LockstepError(f"there is no method {method!r}")
        answer: object = getattr(self._questions, method)(**arguments)
        return answer


def _running(settings: Settings, client: httpx.Client) -> Remote | None:
    """The process that `api.json` names, if it lives (the file outlives a process that was killed) and works on the log that is asked
    for: with Kafka set, a process on the folder's own log is somebody else."""
    try:
        told = json.loads((settings.data_dir / FILE).read_text())
        url, token, pid = str(told["url"]), str(told["token"]), int(told["pid"])
        os.kill(pid, 0)
    except (FileNotFoundError, ProcessLookupError):
        return None
    except PermissionError as e:
        raise Refused(
            f"{settings.data_dir / FILE} belongs to another user, who runs Lockstep here; ask as that user"
        ) from e
    except (ValueError, KeyError, TypeError):
        return None
    remote = Remote(url, token, client)
    try:
        status = remote("status")
    except LockstepError:
        return None  # nobody answers, or another process has the port by now
    same = not settings.kafka or (isinstance(status, dict) and status.get("log") == settings.log_name)
    return remote if same else None


@contextmanager
def ask(settings: Settings) -> Iterator[Asked]:
    """Whoever can answer for these settings."""
    with httpx.Client(timeout=httpx.Timeout(ANSWER_S, connect=CONNECT_S), trust_env=False) as client:
        remote = _running(settings, client)
        if remote is not None:
            yield remote
            return
    # Half a second of imports that a command answered by a running process does without.
    from infra.questions import Questions  # noqa: PLC0415
    from infra.wiring import SharedDatabase, open_log, use_registry  # noqa: PLC0415

    registry = use_registry(settings)
    log = open_log(settings, create=False)
    database = SharedDatabase(settings)
    try:
        yield Direct(Questions(settings, log, database, running=False))
    finally:
        database.close()
        log.close()
        if registry is not None:
            registry.close()
