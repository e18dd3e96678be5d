"""A web server on loopback that behaves as well, or as badly, as a test wants."""

import contextlib
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Server(ThreadingHTTPServer):
    """Serves bytes by name.

    Attributes:
        files: what there is, by name.
        ranges: whether it understands Range; if not, it sends everything.
        breaks_after: sends so many bytes of each answer and closes the connection.
        shifted: answers a Range with a part that begins elsewhere.
        longer: sends that much more than there is, without saying how much it sends.
        asked: every request, as (name, Range or None).
    """

    daemon_threads = True

    def __init__(self, files: dict[str, bytes]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files = files
        self.ranges = True
        self.breaks_after: int | None = None
        self.shifted = 0
        self.longer = 0
        self.asked: list[tuple[str, str | None]] = []

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/mirror"


class _Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        name, wanted = self.path.removeprefix("/mirror/"), self.headers["Range"]
        self.server.asked.append((name, wanted))
        data = self.server.files.get(name)
        if data is None:
            self.send_error(404)
            return
        start = 0
        if wanted is not None and self.server.ranges:
            start = int(wanted.removeprefix("bytes=").removesuffix("-"))
            if start >= len(data):
                self.send_response(416)
                self.send_header("Content-Range", f"bytes */{len(data)}")
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            start += self.server.shifted
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
        else:
            self.send_response(200)
        body = data[start:] + bytes(self.server.longer)
        if not self.server.longer:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: self.server.breaks_after])
        self.close_connection = True

    def log_message(self, format: str, *args: object) -> None:
        """Stays silent."""


@contextlib.contextmanager
def serving(files: dict[str, bytes]):
    """Runs a server for the length of a test."""
    with Server(files) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


@contextlib.contextmanager
def silent():
    """Yields the address of somebody who takes the call and says nothing."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"


def nobody() -> str:
    """Returns an address where nobody is."""
    with socket.socket() as own:
        own.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{own.getsockname()[1]}"
