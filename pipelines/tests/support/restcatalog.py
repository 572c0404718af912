"""An Iceberg REST catalog backed by a SQLite catalog. It can simulate conflicts and lost responses."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from pyiceberg.catalog.rest import CreateTableRequest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import (
    CommitFailedException,
    NamespaceAlreadyExistsError,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.table import CommitTableRequest
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER

ERRORS = {
    NoSuchTableError: 404,
    NamespaceAlreadyExistsError: 409,
    TableAlreadyExistsError: 409,
    CommitFailedException: 409,
}


@dataclass
class Catalog:
    """The catalog's address, and how to respond to the next commits: with a status, or with the real response if None."""

    uri: str = ""
    answers: list[int | None] = field(default_factory=list)
    commits: int = 0


@contextmanager
def serving(folder: Path) -> Iterator[Catalog]:
    """Serve the catalog stored in a folder."""
    told = Catalog()
    lock = threading.Lock()
    catalog = SqlCatalog(
        "rest",
        uri=f"sqlite:///{folder}/catalog.db?check_same_thread=false",
        warehouse=f"file://{folder}",
    )

    def answer(method: str, path: list[str], body: bytes) -> Any:
        if path == ["v1", "config"]:
            return {"defaults": {}, "overrides": {}}
        if path == ["v1", "namespaces"]:
            catalog.create_namespace(tuple(json.loads(body)["namespace"]))
            return {"namespace": json.loads(body)["namespace"], "properties": {}}
        if path[-1] == "tables":
            asked = CreateTableRequest.model_validate({"location": None, **json.loads(body)})
            made = catalog._create_staged_table(
                (path[2], asked.name),
                asked.table_schema,
                asked.location,
                asked.partition_spec or UNPARTITIONED_PARTITION_SPEC,
                asked.write_order or UNSORTED_SORT_ORDER,
                asked.properties,
            )
            return {"metadata": json.loads(made.metadata.model_dump_json())}
        name = (path[2], path[4])
        if method == "POST":
            commit = CommitTableRequest.model_validate_json(body)
            table: Any = SimpleNamespace(name=lambda: name)
            done = catalog.commit_table(table, commit.requirements, commit.updates)
            told.commits += 1
            return json.loads(done.model_dump_json(by_alias=True))
        found = catalog.load_table(name)
        return {
            "metadata-location": found.metadata_location,
            "metadata": json.loads(found.metadata.model_dump_json()),
        }

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self.reply("GET", b"")

        def do_POST(self) -> None:
            self.reply("POST", self.rfile.read(int(self.headers["Content-Length"])))

        def reply(self, method: str, body: bytes) -> None:
            path = self.path.partition("?")[0].strip("/").split("/")
            commit = method == "POST" and len(path) == 5
            try:
                with lock:
                    status, said = 200, answer(method, path, body)
            except tuple(ERRORS) as error:
                status = ERRORS[type(error)]
                kind = type(error).__name__
                said = {"error": {"message": str(error), "type": kind, "code": status}}
            instead = told.answers.pop(0) if commit and told.answers else None
            if instead is not None:
                status = instead
                said = {"error": {"message": "lost", "type": "Lost", "code": status}}
            data = json.dumps(said).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    told.uri = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield told
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
        catalog.close()
