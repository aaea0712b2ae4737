"""Where the service is, and the key to it."""

from __future__ import annotations

import json
import os
import stat
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from .errors import InvalidArgument

SYSTEM_FILE = Path("/var/lib/dsec/client.json")
"""What `dsec up` writes in its default state directory."""


@dataclass(frozen=True, slots=True)
class Config:
    """An address (http://HOST:PORT or https://...) and an API key."""

    url: str
    key: str = field(repr=False)


def user_file() -> Path:
    """The current user's file: ~/.config/dsec/client.json."""
    home = os.environ.get("XDG_CONFIG_HOME") or os.path.join(os.path.expanduser("~"), ".config")
    return Path(home) / "dsec" / "client.json"


def load(url: str | None = None, key: str | None = None) -> Config:
    """Take the arguments, else DSEC_URL and DSEC_API_KEY, else the user's file, else SYSTEM_FILE.

    A key from a file is used only with the address in that file: it is of no use to another service.
    White space around either is taken away. Raises InvalidArgument when nothing tells where the service is, a file is
    no configuration, or the key has characters that no key has.
    """
    url = (url or os.environ.get("DSEC_URL") or "").strip()
    key = (key or os.environ.get("DSEC_API_KEY") or "").strip()
    if not (url and key):
        for path in (user_file(), SYSTEM_FILE):
            found = _read(path)
            if found is None or (url and url.rstrip("/") != found.url.rstrip("/")):
                continue
            url, key = found.url, key or found.key
            break
    if not url:
        raise InvalidArgument(
            "no DSec service is known: start one on this machine with `dsec up --detach`, "
            "or set DSEC_URL and DSEC_API_KEY"
        )
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InvalidArgument(f"address of the service {url!r}: want http://HOST:PORT or https://HOST:PORT")
    if not url.isprintable():
        raise InvalidArgument(f"address of the service {url!r}: it has control characters")
    key = key.strip()
    for i, c in enumerate(key):
        if not "!" <= c <= "~":  # no header can carry it; the message does not show the key
            raise InvalidArgument(
                f"API key: character {i + 1} of {len(key)} is a space, a control character or not ASCII, "
                "which no key has: give it as `dsec key create` printed it (DSEC_API_KEY)"
            )
    return Config(url.rstrip("/"), key)


def _read(path: Path) -> Config | None:
    """One file; None when it is missing or not ours to read."""
    try:
        with path.open("rb") as f:
            mode = os.fstat(f.fileno()).st_mode
            data = f.read(1 << 20)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return None
    if stat.S_IMODE(mode) & 0o077:
        warnings.warn(f"{path} holds an API key and others may read it: chmod 600 {path}", stacklevel=4)
    try:
        o = json.loads(data)
        url, key = o["url"], o.get("key", "")
        if not isinstance(url, str) or not isinstance(key, str):
            raise TypeError("url and key are not strings")
    except (ValueError, KeyError, TypeError, AttributeError) as e:
        raise InvalidArgument(f'{path}: not {{"url": ..., "key": ...}}: {e!r}') from None
    return Config(url, key)
