"""The local API of a running `lockstep up`: JSON over HTTP on loopback, and probes. `infra.client` is its other side.

Every method of `infra.questions` is `POST /v1/<method>` with a JSON object of its arguments. Whoever may read the data folder
finds address and token in `api.json` there (mode 0600); nobody else gets an answer but probes and metrics.
"""

import inspect as python
import json
import logging
import os
import secrets
from pathlib import Path
from typing import Final

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from infra.probes import Healths, Served, routes
from infra.questions import Questions
from infra.settings import Settings
from infra.wire import FILE, KINDS, METHODS
from infra.wiring import SharedDatabase
from schemas.errors import LockstepError, NotFound, Refused
from schemas.log import Log
from streams.metrics import Metrics

_log = logging.getLogger("lockstep.api")
MAX_BODY_BYTES: Final = 1 << 20


class Api:
    """A served API and its file; `stop` takes both away."""

    def __init__(self, served: Served, file: Path) -> None:
        self._served = served
        self._file = file
        self.url = served.url

    def stop(self) -> None:
        self._file.unlink(missing_ok=True)
        self._served.stop()


def serve(settings: Settings, log: Log, database: SharedDatabase, metrics: Metrics, healths: Healths) -> Api:
    """Serve on the settings' address. Raises `Refused` when the port cannot be had."""
    token = secrets.token_urlsafe(32)
    questions = Questions(settings, log, database, running=True)
    app = Starlette(
        routes=[*routes(metrics, healths), Route("/v1/{method}", _Endpoint(questions, token).handle, methods=["POST"])]
    )
    served = Served(app, settings.http_host, settings.http_port)
    return Api(served, _write(settings.data_dir, served.url, token))


def _write(folder: Path, url: str, token: str) -> Path:
    file = folder / FILE
    temporary = folder / f".{FILE}.{os.getpid()}"
    # Made with its mode, not changed after: nobody may read it in between.
    with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as out:
        json.dump({"url": url, "token": token, "pid": os.getpid()}, out)
    temporary.replace(file)
    return file


class _Endpoint:
    """Calls a method for whoever has the token. Runs in Starlette's thread pool."""

    def __init__(self, questions: Questions, token: str) -> None:
        self._questions = questions
        self._expected = f"Bearer {token}".encode()

    async def handle(self, request: Request) -> Response:
        given = request.headers.get("authorization", "").encode()
        if not secrets.compare_digest(given, self._expected):
            return JSONResponse({"error": "the token of api.json in the data folder is needed", "kind": "refused"}, 401)
        method = request.path_params["method"]
        if method not in METHODS:
            return _failed(NotFound(f"there is no method {method!r}"))
        body = await request.body()
        if len(body) > MAX_BODY_BYTES:
            return _failed(Refused(f"the request has {len(body):,} bytes, {MAX_BODY_BYTES:,} at most are taken"))
        try:
            arguments = json.loads(body or b"{}")
        except ValueError:
            return _failed(Refused("the request's body is not JSON"))
        return await run_in_threadpool(self._call, method, arguments)

    def _call(self, method: str, arguments: object) -> Response:
        if not isinstance(arguments, dict):
            return _failed(Refused("the request's body must be a JSON object of arguments"))
        work = getattr(self._questions, method)
        try:
            python.signature(work).bind(**arguments)
        except TypeError as e:
            return _failed(Refused(f"{method}: {e}"))
        try:
            return JSONResponse({"answer": work(**arguments)})
        except LockstepError as e:
            return _failed(e)
        except (TypeError, ValueError, AttributeError, KeyError) as e:
            _log.exception("%s failed", method)
            return _failed(LockstepError(f"{method}: {type(e).__name__}: {e}"))


def _failed(error: LockstepError) -> Response:
    kind, status = next((k, s) for t, k, s in KINDS if isinstance(error, t))
    return JSONResponse({"error": str(error), "kind": kind}, status)
