"""A database file, servers on localhost, and what libraries use to share memory and work between processes."""

import concurrent.futures
import http.server
import multiprocessing
import multiprocessing.shared_memory
import os
import socket
import sqlite3
import subprocess
import sys
import tempfile
import threading
import urllib.request


def square(x):
    return x * x


def database(dir):
    path = os.path.join(dir, "db")
    with sqlite3.connect(path) as db:
        assert db.execute("pragma journal_mode=wal").fetchone() == ("wal",)
        db.execute("create table t (x integer primary key, y text)")

    def write(part):
        with sqlite3.connect(path, timeout=60) as db:
            for i in range(50):
                with db:
                    db.execute("insert into t (y) values (?)", (f"{part}.{i}",))

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        list(pool.map(write, range(4)))
    with sqlite3.connect(path) as db:
        assert db.execute("select count(*) from t").fetchone() == (200,)
        assert db.execute("pragma integrity_check").fetchone() == ("ok",)


def servers(dir):
    os.chdir(dir)
    with open("page", "w") as f:
        f.write("served")
    for family, host, url in ((socket.AF_INET, "127.0.0.1", "localhost"), (socket.AF_INET6, "::1", "[::1]")):
        class Server(http.server.ThreadingHTTPServer):
            address_family = family

        with Server((host, 0), http.server.SimpleHTTPRequestHandler) as s:
            threading.Thread(target=s.serve_forever, daemon=True).start()
            assert urllib.request.urlopen(f"http://{url}:{s.server_address[1]}/page", timeout=60).read() == b"served"
            s.shutdown()
    with socket.socket(socket.AF_UNIX) as s:
        s.bind(os.path.join(dir, "socket"))
        s.listen()
        with socket.socket(socket.AF_UNIX) as c:
            c.connect(os.path.join(dir, "socket"))


def processes(dir):
    with multiprocessing.Pool(4) as pool:
        assert pool.map(square, range(100)) == [x * x for x in range(100)]
    q = multiprocessing.Queue()
    q.put("through")
    assert q.get(timeout=60) == "through"
    m = multiprocessing.shared_memory.SharedMemory(create=True, size=8 << 20)
    m.buf[:4] = b"here"
    m.close()
    m.unlink()
    code = "import os, signal; os.kill(os.getpid(), signal.SIGTERM)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == -15
    # An orphan is reaped by process 1.
    out = subprocess.run(["sh", "-c", "sleep 0.1 & echo $!"], capture_output=True, text=True).stdout
    while os.path.exists(f"/proc/{out.strip()}"):
        threading.Event().wait(0.05)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as dir:
        database(dir)
        processes(dir)
        servers(dir)
        os.chdir("/")
