"""A small dataset hub on loopback: metadata, tree, paths-info, resolve with ranges, gates and cut connections."""

from __future__ import annotations

import hashlib
import json
import threading
from collections import Counter
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

SHA = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class Repository:
    """Files of one revision.

    `gate`: 401 or 403 for who has not this `token`, with the Hub's `code` or without; `cuts`: connections
    to cut in the middle of a file; `refusals`: requests for a file to answer with 503.
    """

    files: dict[str, bytes]
    gate: int = 0
    token: str = ""
    code: str = "GatedRepo"
    cuts: dict[str, int] = field(default_factory=dict)
    refusals: dict[str, int] = field(default_factory=dict)


class Hub:
    """The server; `ranges` counts the requests for a part of a file."""

    def __init__(self, repositories: dict[str, Repository]) -> None:
        self.repositories, self.ranges = repositories, Counter[str]()
        hub = self

        class Handler(_Handler):
            server_hub = hub

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.endpoint = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def __enter__(self) -> Hub:
        return self

    def __exit__(self, *_: object) -> None:
        self.server.shutdown()
        self.server.server_close()


class _Handler(BaseHTTPRequestHandler):
    server_hub: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def do_HEAD(self) -> None:
        self.answer(body=False)

    def do_GET(self) -> None:
        self.answer(body=True)

    def do_POST(self) -> None:
        self.answer(body=True)

    def answer(self, body: bool) -> None:
        sent = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        path = unquote(urlsplit(self.path).path)
        name = next((n for n in self.server_hub.repositories if f"/datasets/{n}" in path), None)
        if name is None:
            return self.refuse(404, "RepoNotFound")
        repository = self.server_hub.repositories[name]
        barred = repository.gate and self.headers.get("Authorization") != f"Bearer {repository.token}"
        if barred and not path.startswith("/api/"):
            return self.refuse(repository.gate, repository.code)
        rest = path.split(f"/datasets/{name}", 1)[1]
        if path.startswith("/api/"):
            return self.api(name, repository, rest, sent)
        return self.resolve(name, repository, rest.split("/", 3)[2:], body)

    def api(self, name: str, repository: Repository, rest: str, sent: bytes) -> None:
        parts = rest.strip("/").split("/", 2)
        if len(parts) > 1 and parts[1] not in ("main", SHA):
            return self.refuse(404, "RevisionNotFound")
        if parts[0] == "tree":
            return self.json(
                self.tree(repository, parts[2] + "/" if len(parts) > 2 else "", "recursive=true" in self.path.lower())
            )
        if parts[0] == "paths-info":
            wanted = json.loads(sent)["paths"]
            return self.json([self.entry(repository)(path) for path in wanted if path in repository.files])
        siblings = [{"rfilename": file} for file in repository.files]
        return self.json(
            {
                "id": name,
                "sha": SHA,
                "siblings": siblings,
                "private": False,
                "gated": False,
                "tags": [],
                "downloads": 0,
                "likes": 0,
            }
        )

    def tree(self, repository: Repository, below: str, recursive: bool) -> list[dict[str, Any]]:
        inside = [path for path in repository.files if path.startswith(below)]
        folders = {below + path[len(below) :].split("/")[0] for path in inside if "/" in path[len(below) :]}
        files = [path for path in inside if recursive or "/" not in path[len(below) :]]
        listed = [{"type": "directory", "path": folder, "size": 0, "oid": "0" * 40} for folder in sorted(folders)]
        return listed + list(map(self.entry(repository), files))

    @staticmethod
    def entry(repository: Repository) -> Any:
        return lambda path: {
            "type": "file",
            "path": path,
            "size": len(repository.files[path]),
            "oid": hashlib.sha1(repository.files[path]).hexdigest(),
        }

    def resolve(self, name: str, repository: Repository, parts: list[str], body: bool) -> None:
        revision, file = parts
        if revision not in ("main", SHA):
            return self.refuse(404, "RevisionNotFound")
        if file not in repository.files:
            return self.refuse(404, "EntryNotFound")
        if repository.refusals.get(file, 0) > 0:
            repository.refusals[file] -= 1
            return self.refuse(503, "Busy")
        data, start = repository.files[file], 0
        if wanted := self.headers.get("Range"):
            self.server_hub.ranges[f"{name}/{file}"] += 1
            start = int(wanted.removeprefix("bytes=").split("-")[0])
        self.send_response(206 if wanted else 200)
        if wanted:
            self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
        self.send_header("X-Repo-Commit", SHA)
        self.send_header("ETag", f'"{hashlib.sha1(data).hexdigest()}"')
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("Content-Length", str(len(data) - start))
        self.end_headers()
        if not body:
            return None
        if repository.cuts.get(file, 0) > 0:
            repository.cuts[file] -= 1
            self.wfile.write(data[start : start + (len(data) - start) // 2])
            self.wfile.flush()
            self.close_connection = True
            self.connection.close()
            return None
        self.wfile.write(data[start:])
        return None

    def json(self, value: Any) -> None:
        data = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def refuse(self, code: int, reason: str) -> None:
        self.send_response(code)
        if reason:
            self.send_header("X-Error-Code", reason)
            self.send_header("X-Error-Message", reason)
        self.send_header("Content-Length", "0")
        self.end_headers()
