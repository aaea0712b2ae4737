"""Reads errors as the service writes them: {"code", "message", "details"}, over plain HTTP with "reason" and
"failure"."""

from __future__ import annotations

from collections.abc import Iterator

from . import codec
from .codec import Json
from .errors import DSecError, error
from .failure import Blame, Failure

_STATUS = {
    400: "internal",
    401: "unauthenticated",
    403: "permission_denied",
    404: "unimplemented",
    408: "deadline_exceeded",
    429: "unavailable",
    502: "unavailable",
    503: "unavailable",
    504: "unavailable",
}
"""What Connect makes of a status without a body of its own: the answer of something in between."""

_BLAMES = {1: Blame.TASK, 2: Blame.USER, 3: Blame.POLICY, 4: Blame.INFRA}


def from_json(o: Json, *, file: bool = False) -> DSecError:
    """The error in a decoded error object."""
    failure, reason = Failure.optional(o, "failure"), codec.text(o, "reason")
    for d in codec.messages(o, "details"):
        try:
            kind, value = codec.text(d, "type"), codec.octets(d, "value")
            if kind == "dsec.v1.Failure":
                failure = _failure(value)
            elif kind == "dsec.v1.Error":
                reason = _string(dict(_fields(value)).get(1, b""))
        except ValueError:  # the code and the message still count
            continue
    return error(
        codec.text(o, "code") or "unknown", codec.text(o, "message"), failure=failure, reason=reason, file=file
    )


def from_response(status: int, body: bytes, *, file: bool = False) -> DSecError:
    """The error of an HTTP answer other than 2xx."""
    try:
        o = codec.loads(body)
        if codec.text(o, "code"):
            return from_json(o, file=file)
    except ValueError:
        pass
    words = body[:200].decode("utf-8", "replace").strip()
    return error(_STATUS.get(status, "unknown"), f"HTTP status {status}" + (f": {words}" if words else ""))


def item(o: Json) -> DSecError:
    """The error of one item in an answer: {"code", "message", "failure"}."""
    failure = Failure.optional(o, "failure")
    return error(codec.text(o, "code") or "unknown", codec.text(o, "message"), failure=failure)


def _failure(b: bytes) -> Failure:
    f = dict(_fields(b))
    blame = f.get(2, 0)
    return Failure(
        kind=_string(f.get(1, b"")),
        blame=_BLAMES.get(blame, Blame.UNKNOWN) if isinstance(blame, int) else Blame.UNKNOWN,
        message=_string(f.get(3, b"")),
        evidence=_string(f.get(4, b"")),
    )


def _string(v: int | bytes) -> str:
    return v.decode("utf-8", "replace") if isinstance(v, bytes) else ""


def _fields(b: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The fields of a Protocol Buffers message: details come in binary. Raises ValueError."""
    at = 0
    while at < len(b):
        tag, at = _varint(b, at)
        match tag & 7:
            case 0:
                value, at = _varint(b, at)
                yield tag >> 3, value
            case 2:
                size, at = _varint(b, at)
                if at + size > len(b):
                    raise ValueError("error detail: cut off")
                yield tag >> 3, b[at : at + size]
                at += size
            case 1:
                at += 8
            case 5:
                at += 4
            case _:
                raise ValueError("error detail: unknown wire type")


def _varint(b: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(b):
            raise ValueError("error detail: cut off")
        value |= (b[at] & 0x7F) << shift
        at += 1
        if not b[at - 1] & 0x80:
            return value, at
    raise ValueError("error detail: a number too long")
