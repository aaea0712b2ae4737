"""The JSON of Protocol Buffers: int64 as strings, bytes as base64, enums by name, defaults left out.

Readers take what a decoder of JSON returned and give Python values; a field that is absent has its default.
They raise ValueError when a field has another type than the contract says.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

Json = Mapping[str, Any]
"""A decoded JSON object."""


def dumps(body: Json) -> bytes:
    """Encode a request. Keys keep their order: the service looks for sandboxId at the front."""
    return json.dumps(body, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()


def loads(data: bytes) -> Json:
    """Decode an answer, which is an object."""
    value = json.loads(data)
    if not isinstance(value, dict):
        raise ValueError("not a JSON object")
    return value


def text(o: Json, key: str) -> str:
    v = o.get(key, "")
    if not isinstance(v, str):
        raise ValueError(f"{key}: not a string")
    return v


def boolean(o: Json, key: str) -> bool:
    v = o.get(key, False)
    if not isinstance(v, bool):
        raise ValueError(f"{key}: not a boolean")
    return v


def integer(o: Json, key: str) -> int:
    """An int32 (a number) or int64 (a string)."""
    v = o.get(key, 0)
    if isinstance(v, bool) or not isinstance(v, int | str | float):
        raise ValueError(f"{key}: not an integer")
    return int(v)


def number(o: Json, key: str) -> float:
    """A double; "NaN" and "Infinity" come as strings."""
    v = o.get(key, 0.0)
    if isinstance(v, bool) or not isinstance(v, int | str | float):
        raise ValueError(f"{key}: not a number")
    return float(v)


def optional_number(o: Json, key: str) -> float | None:
    return number(o, key) if o.get(key) is not None else None


def octets(o: Json, key: str) -> bytes:
    """Bytes from base64, standard or URL alphabet, padded or not."""
    v = text(o, key)
    try:
        return base64.b64decode(v.replace("-", "+").replace("_", "/") + "=" * (-len(v) % 4), validate=True)
    except binascii.Error as e:
        raise ValueError(f"{key}: not base64: {e}") from None


def encode_octets(b: bytes) -> str:
    return base64.b64encode(b).decode("ascii")


def time(o: Json, key: str) -> datetime | None:
    """A Timestamp (RFC 3339, up to nanoseconds, of which Python keeps microseconds), in UTC."""
    v = text(o, key)
    return datetime.fromisoformat(v).astimezone(UTC) if v else None


def enum(o: Json, key: str, prefix: str) -> str:
    """An enum's name without its prefix, in lower case; "" when absent or unspecified."""
    v = text(o, key)
    name = v.removeprefix(prefix).lower()
    return "" if name == "unspecified" else name


def texts(o: Json, key: str) -> tuple[str, ...]:
    v = o.get(key, [])
    if not isinstance(v, list) or not all(isinstance(i, str) for i in v):
        raise ValueError(f"{key}: not a list of strings")
    return tuple(v)


def mapping(o: Json, key: str) -> dict[str, str]:
    v = o.get(key, {})
    if not isinstance(v, dict) or not all(isinstance(i, str) for i in v.values()):
        raise ValueError(f"{key}: not a map of strings")
    return dict(v)


def message(o: Json, key: str) -> Json:
    """A message, empty when absent."""
    v = o.get(key)
    if v is None:
        return {}
    if not isinstance(v, dict):
        raise ValueError(f"{key}: not an object")
    return v


def messages(o: Json, key: str) -> list[Json]:
    v = o.get(key, [])
    if not isinstance(v, list) or not all(isinstance(i, dict) for i in v):
        raise ValueError(f"{key}: not a list of objects")
    return v


def without_defaults(**fields: Any) -> dict[str, Any]:
    """Fields that are set: neither None nor an empty string, list or map, nor False. A 0 is kept."""
    return {k: v for k, v in fields.items() if v is not None and v is not False and v != "" and v != [] and v != {}}
