"""An HTTP server that judges answers to sums: the command of `ppo-with-command.yaml`.

GET /health is answered with 200. POST /score takes {"answers": [...], "expected": [...]} and is answered with
{"scores": [...]}: 1.0 for each answer that is the expected one, blanks around it aside, else 0.0.
"""

from __future__ import annotations

import argparse
import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

MAX_BYTES = 1 << 20


class Judge(BaseHTTPRequestHandler):
    """Answers one connection, which may carry many requests."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        """Say that the server works."""
        self._reply(200 if self.path == "/health" else 404, {})

    def do_POST(self) -> None:
        """Score answers."""
        size = int(self.headers.get("Content-Length", "0"))
        if self.path != "/score" or size > MAX_BYTES:
            self.close_connection = True  # what was sent with the request is not read
            self._reply(404, {})
            return
        try:
            request = json.loads(self.rfile.read(size))
            pairs = list(zip(request["answers"], request["expected"], strict=True))
        except (ValueError, KeyError, TypeError):
            self._reply(400, {})
            return
        scores = [1.0 if str(answer).strip() == str(right).strip() else 0.0 for answer, right in pairs]
        self._reply(200, {"scores": scores})

    def log_message(self, format: str, *args: object) -> None:
        """Keep quiet: a line per request would fill the log."""

    def _reply(self, status: int, body: dict[str, object]) -> None:
        content = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


def main() -> None:
    """Serve until the process is ended."""
    parser = argparse.ArgumentParser(description="Judge answers to sums over HTTP.")
    parser.add_argument("--address", required=True)
    parser.add_argument("--port", type=int, required=True)
    arguments = parser.parse_args()
    with ThreadingHTTPServer((arguments.address, arguments.port), Judge) as server:
        server.serve_forever()


if __name__ == "__main__":
    main()
