"""A server inside a sandbox: events that are sent one by one as files appear, and an upgrade whose bytes come back."""

import base64
import hashlib
import os
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        if self.path == "/events":
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Connection", "close")
            self.end_headers()
            for n in range(3):
                while not os.path.exists(f"/tmp/event-{n}"):
                    time.sleep(0.01)
                self.wfile.write(f"data: {n}\n\n".encode())
                self.wfile.flush()
        elif self.path == "/socket":
            key = self.headers["Sec-WebSocket-Key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
            self.send_response(101)
            self.send_header("Upgrade", "websocket")
            self.send_header("Connection", "Upgrade")
            self.send_header("Sec-WebSocket-Accept", base64.b64encode(hashlib.sha1(key.encode()).digest()).decode())
            self.end_headers()
            self.wfile.flush()
            while data := self.connection.recv(65536):
                self.connection.sendall(data)
        self.close_connection = True

    def log_message(self, *_: object) -> None:
        pass


ThreadingHTTPServer(("127.0.0.1", 8000), Handler).serve_forever()
