"""Serve the demo's page on this machine: its files, its state as JSON, and the pipeline's metrics."""

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

PAGE: Final = Path(__file__).parent / "page"
FILES: Final = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
    "/charts.js": ("charts.js", "text/javascript; charset=utf-8"),
    "/vendor/chart.umd.min.js": ("vendor/chart.umd.min.js", "text/javascript; charset=utf-8"),
}
POLICY: Final = "default-src 'self'; img-src 'self' data:; frame-ancestors 'none'; base-uri 'none'"


class PageServer:
    """An HTTP server on 127.0.0.1. It uses `port`, or a free one. It supports only GET, and serves only the page's
    files, the demo's state and the file `metrics`.
    """

    def __init__(self, state: Callable[[], dict[str, Any]], metrics: Path, port: int = 0) -> None:
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            timeout = 60

            def do_GET(self) -> None:
                # Another host name means that a page of someone else resolves its name to this machine.
                if self.headers.get("Host", "") not in server.hosts:
                    self._answer(421, "text/plain", b"Open this page as " + server.url.encode())
                elif self.path == "/state.json":
                    self._answer(200, "application/json", json.dumps(state()).encode())
                elif self.path == "/metrics" and metrics.exists():
                    self._answer(200, "text/plain; version=0.0.4", metrics.read_bytes())
                elif self.path in FILES:
                    name, kind = FILES[self.path]
                    self._answer(200, kind, (PAGE / name).read_bytes())
                else:
                    self._answer(404, "text/plain", b"There is no such page.")

            def _answer(self, status: int, kind: str, body: bytes) -> None:
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.send_header("Cache-Control", "no-store")
                self.send_header("Content-Security-Policy", POLICY)
                self.send_header("X-Content-Type-Options", "nosniff")
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                """Log nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]
        self.hosts = {f"127.0.0.1:{self.port}", f"localhost:{self.port}"}
        self.url = f"http://127.0.0.1:{self.port}/"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
