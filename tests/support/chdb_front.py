"""ClickHouse's engine (chDB) behind HTTP, as a process that tests can kill: enough of the interface for `clickhouse-connect`.

`python chdb_front.py --data FOLDER [--host H] [--port P]` serves; it needs only chDB and the standard library, because a
container image holds nothing else. `ChdbFront` starts, kills and restarts it. It is not a ClickHouse server: one query at a
time, no users, no compression.
"""

import argparse
import contextlib
import http.client
import os
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

# What the interface says in the address that is no setting.
_NO_SETTING = {
    "query", "user", "password", "database", "query_id", "session_id", "session_timeout", "default_format", "compress",
    "decompress", "wait_end_of_query", "send_progress_in_http_headers", "http_headers_progress_interval_ms",
    "client_protocol_version", "role", "quota_key", "buffer_size", "enable_http_compression",
}  # fmt: skip


class _Engine:
    """One chDB connection; calls wait for each other."""

    def __init__(self, folder: Path) -> None:
        import chdb

        # Told once to be read-only a connection stays so: reading has one of its own.
        self._connections: dict[bool, Any] = {r: chdb.connect(str(folder)) for r in (False, True)}
        self._connections[True].query("SET readonly = 2")
        self._databases = {False: "default", True: "default"}
        self._folder = folder
        self._lock = threading.Lock()
        self._reading = False

    def run(self, sql: str, body: bytes, fields: dict[str, str]) -> bytes:
        """The answer's bytes. Raises `RuntimeError` with ClickHouse's message."""
        settings = {k: v for k, v in fields.items() if k not in _NO_SETTING and not k.startswith("param_")}
        params = {k.removeprefix("param_"): v for k, v in fields.items() if k.startswith("param_")}
        insert = re.match(r"\s*INSERT\s+INTO\s+(.*?)\s+FORMAT\s+(\w+)\s*$", sql, re.IGNORECASE | re.DOTALL)
        with self._lock:
            self._reading = settings.pop("readonly", "0") != "0"
            database = fields.get("database") or "default"
            if database != self._databases[self._reading]:
                self._ask(f"USE {database}")
                self._databases[self._reading] = database
            for name, value in settings.items():
                self._ask(f"SET {name} = '{value}'")
            try:
                if insert is None:
                    return self._ask(sql + body.decode(), fields.get("default_format") or "TabSeparated", params)
                with tempfile.NamedTemporaryFile(dir=self._folder.parent) as file:
                    file.write(body)
                    file.flush()
                    return self._ask(f"INSERT INTO {insert[1]} FROM INFILE '{file.name}' FORMAT {insert[2]}")
            finally:
                for name in settings:
                    self._ask(f"SET {name} = DEFAULT")

    def _ask(self, sql: str, fmt: str = "TabSeparated", params: dict[str, str] | None = None) -> bytes:
        found = re.search(r"\s+FORMAT\s+(\w+)\s*;?\s*$", sql, re.IGNORECASE)
        if found and not sql.startswith("INSERT"):
            sql, fmt = sql[: found.start()], found[1]
        answer: bytes = self._connections[self._reading].query(sql, fmt, params=params or {}).bytes()
        return answer


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    engine: _Engine

    def do_GET(self) -> None:
        if urlsplit(self.path).path == "/ping":
            self._answer(200, b"Ok.\n")
        else:
            self._query(b"")

    def do_POST(self) -> None:
        if self.headers.get("Transfer-Encoding") == "chunked":
            body = b""
            while size := int(self.rfile.readline(), 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
        else:
            body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        self._query(body)

    def _query(self, body: bytes) -> None:
        fields = dict(parse_qsl(urlsplit(self.path).query, keep_blank_values=True))
        sql = fields.get("query", "")
        if not sql and (insert := re.match(rb"\s*INSERT\s+INTO\s[^\n]*?\sFORMAT\s+\w+[ \t]*\n", body, re.IGNORECASE)):
            sql, body = insert[0].decode(), body[insert.end() :]
        elif not sql:
            sql, body = body.decode(), b""
        if asked := self.headers.get("X-ClickHouse-Format"):
            fields["default_format"] = asked
        try:
            answer = self.engine.run(sql, body, fields)
        except Exception as e:  # noqa: BLE001 - whatever the engine says goes to the client, as a server would do
            text = str(e)
            found = re.search(r"Code: (\d+)", text)
            self._answer(500, text.encode(), {"X-ClickHouse-Exception-Code": found[1] if found else "1002"})
            return
        self._answer(200, answer, {"X-ClickHouse-Query-Id": fields.get("query_id", ""), "X-ClickHouse-Summary": "{}"})

    def _answer(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None: ...


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *args: object) -> None: ...  # a client that went away


class HttpClickHouse(ABC):
    """ClickHouse over HTTP on a port of this machine, which tests may kill and start again; what it stored stays."""

    def __init__(self, port: int) -> None:
        self.port = port

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/lockstep"

    @abstractmethod
    def up(self) -> None:
        """Start it, and wait until it answers."""

    @abstractmethod
    def kill(self) -> None:
        """kill -9."""

    @abstractmethod
    def stop(self) -> None:
        """End it for good."""

    def column(self, sql: str) -> list[str]:
        """First column of an answer, as text."""
        answer = self._request("POST", "/?database=lockstep&default_format=TabSeparated", sql.encode())
        return [line.split("\t")[0] for line in answer.decode().splitlines()]

    def _until_it_answers(self, alive: Callable[[], bool], patience_s: float) -> None:
        deadline = time.monotonic() + patience_s
        while time.monotonic() < deadline:
            if not alive():
                raise RuntimeError(f"{type(self).__name__} ended before it answered")
            with contextlib.suppress(OSError, http.client.HTTPException):
                if self._request("GET", "/ping", b"") == b"Ok.\n":
                    return
            time.sleep(0.02)
        raise RuntimeError(f"{type(self).__name__} does not answer")

    def _request(self, method: str, path: str, body: bytes) -> bytes:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request(method, path, body, self._headers())
            answer = connection.getresponse()
            data = answer.read()
        finally:
            connection.close()
        if answer.status != 200:
            raise RuntimeError(data.decode())
        return data

    def _headers(self) -> dict[str, str]:
        return {}


class ChdbFront(HttpClickHouse):
    """The front as a process of its own."""

    def __init__(self, folder: Path, port: int) -> None:
        super().__init__(port)
        self.folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    @classmethod
    def start(cls, folder: Path) -> "ChdbFront":
        with contextlib.closing(socket.socket()) as s:
            s.bind(("127.0.0.1", 0))
            port = s.getsockname()[1]
        front = cls(folder, port)
        front.up()
        return front

    def up(self) -> None:
        command = [sys.executable, __file__, "--data", str(self.folder), "--port", str(self.port)]
        process = self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        self._until_it_answers(lambda: process.poll() is None, 30)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(10)
            self._process = None

    stop = kill


def main() -> None:
    """Serve until killed."""
    parser = argparse.ArgumentParser(description="chDB behind HTTP, for tests")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8123)
    parser.add_argument("--data", type=Path, required=True)
    args = parser.parse_args()
    _Handler.engine = _Engine(args.data)
    with contextlib.suppress(KeyboardInterrupt):
        _Server((args.host, args.port), _Handler).serve_forever()
    os._exit(0)


if __name__ == "__main__":
    main()
