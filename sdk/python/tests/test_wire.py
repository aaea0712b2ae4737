"""Frames, JSON and errors, against bytes as the service writes them."""

from __future__ import annotations

import base64
import random
from datetime import UTC, datetime

import pytest

from dsec import (
    Blame,
    DeadlineExceeded,
    DSecError,
    FailedPrecondition,
    FileNotFound,
    IsADirectory,
    NotFound,
    ResourceExhausted,
    SandboxEnded,
    SandboxFailure,
    SandboxInfo,
    State,
    Unavailable,
    codec,
    envelope,
    wire_errors,
)
from dsec.results import CommandEnd, CommandInfo, Output, Stream
from dsec.values import FileInfo, Layer, LayerKind

# {"event":{"keepAlive":{}}}, then the end, as connect-go frames them.
RECORDED = b"\x00\x00\x00\x00\x1a" + b'{"event":{"keepAlive":{}}}' + b"\x02\x00\x00\x00\x02" + b"{}"


def test_decoder_gives_the_same_frames_whatever_the_pieces() -> None:
    want = [(0, b'{"event":{"keepAlive":{}}}'), (envelope.END, b"{}")]
    rng = random.Random(1)
    for _ in range(200):
        d, got, at = envelope.Decoder(), [], 0
        while at < len(RECORDED):
            n = rng.randint(1, 12)
            got += list(d.feed(RECORDED[at : at + n]))
            at += n
        assert got == want
        assert d.complete
    assert envelope.encode(b'{"event":{"keepAlive":{}}}') + envelope.encode(b"{}", envelope.END) == RECORDED


@pytest.mark.parametrize(
    ("data", "says"), [(b"\x01\x00\x00\x00\x01x", "compressed"), (b"\x00\xff\xff\xff\xff", "at most")]
)
def test_decoder_refuses(data: bytes, says: str) -> None:
    with pytest.raises(envelope.FramingError, match=says):
        list(envelope.Decoder().feed(data))


def test_codec_reads_what_protojson_writes() -> None:
    o = codec.loads(b'{"big":"9007199254740993","n":7,"b":"/+8","t":"2026-11-29T13:40:00.123456789Z","e":"X_Y"}')
    assert codec.integer(o, "big") == 9007199254740993
    assert codec.integer(o, "n") == 7
    assert codec.integer(o, "absent") == 0
    assert codec.octets(o, "b") == b"\xff\xef"
    assert codec.time(o, "t") == datetime(2026, 11, 29, 13, 40, 0, 123456, UTC)
    assert codec.time(o, "absent") is None
    assert codec.enum(o, "e", "X_") == "y"
    assert codec.optional_number(o, "absent") is None
    assert codec.without_defaults(a=0, b="", c=None, d=False, e=[], f=1) == {"a": 0, "f": 1}


@pytest.mark.parametrize("bad", ['{"k":1}', '{"k":["a",1]}', '{"k":true}'])
def test_codec_refuses_other_types(bad: str) -> None:
    o = codec.loads(bad.encode())
    with pytest.raises(ValueError, match="k: "):
        codec.texts(o, "k")
    with pytest.raises(ValueError, match="k: "):
        codec.mapping(o, "k")


def test_codec_does_not_mangle_requests() -> None:
    assert codec.dumps({"sandboxId": "x", "a": "é"}) == '{"sandboxId":"x","a":"é"}'.encode()
    with pytest.raises(ValueError, match="Out of range"):
        codec.dumps({"a": float("nan")})


def test_values() -> None:
    info = SandboxInfo.from_json(
        {
            "id": "abcd1",
            "state": "SANDBOX_STATE_STOPPED",
            "spec": {
                "backend": "BACKEND_CONTAINER",
                "environment": {"image": "debian"},
                "limits": {"memoryBytes": "4294967296", "cpuMillis": "1500"},
                "idleTimeoutSeconds": 300,
            },
            "end": {"kind": "store_fault", "blame": "BLAME_INFRA", "message": "m"},
        }
    )
    assert (info.state, info.cpu_cores, info.idle_timeout, info.ttl) == (State.STOPPED, 1.5, 300.0, None)
    assert info.end is not None
    assert info.end.blame is Blame.INFRA
    end = CommandEnd.from_json({"end": {"kind": "exited", "blame": "BLAME_TASK"}, "durationSeconds": 0.5})
    assert end.ok
    assert not CommandEnd.from_json({"end": {"kind": "exited"}, "exitCode": 3}).ok
    assert CommandInfo.from_json({"id": "1", "spec": {"shell": "x"}}).running
    assert Output.from_json({"stream": "STREAM_STDERR", "data": "aGk=", "offset": "5"}) == Output(
        5, Stream.STDERR, b"hi"
    )
    odd = FileInfo.from_json({"path": "/a/\ufffd", "pathBytes": base64.b64encode(b"/a/\xff").decode(), "type": "file"})
    assert odd.path.encode(errors="surrogateescape") == b"/a/\xff"
    layer = Layer.from_json({"name": "n", "version": "v2", "kind": "LAYER_KIND_TOOLKIT"})
    assert (layer.kind, layer.ref) == (LayerKind.TOOLKIT, "n@v2")
    assert State("from the future") is State.UNKNOWN


def _failure(kind: str, blame: int, message: str) -> dict[str, str]:
    """An error detail as connect-go encodes dsec.v1.Failure."""
    raw = b"\x0a" + bytes([len(kind)]) + kind.encode() + b"\x10" + bytes([blame])
    raw += b"\x1a" + bytes([len(message)]) + message.encode()
    return {"type": "dsec.v1.Failure", "value": base64.b64encode(raw).decode().rstrip("=")}


def test_errors_have_a_class_per_code() -> None:
    e = wire_errors.from_response(404, b'{"code":"not_found","message":"no image"}')
    assert type(e) is NotFound
    assert (e.code, e.message, e.blame) == ("not_found", "no image", Blame.USER)
    late = wire_errors.from_response(504, b'{"code":"deadline_exceeded","message":"m"}')
    assert isinstance(late, DeadlineExceeded)
    assert isinstance(late, TimeoutError)
    assert wire_errors.from_response(404, b'{"code":"from_the_future","message":"m"}').code == "from_the_future"


def test_an_ended_sandbox_says_why() -> None:
    body = codec.dumps({"code": "failed_precondition", "message": "m", "details": [_failure("oom_killed", 1, "why")]})
    e = wire_errors.from_response(400, body)
    assert isinstance(e, SandboxEnded)
    assert isinstance(e, FailedPrecondition)
    assert e.failure is not None
    assert (e.failure.kind, e.failure.message, e.blame) == ("oom_killed", "why", Blame.TASK)


@pytest.mark.parametrize("code", ["unavailable", "internal", "not_found", "resource_exhausted", "unknown"])
def test_infra_failures_never_look_like_a_task(code: str) -> None:
    body = codec.dumps({"code": code, "message": "m", "details": [_failure("store_fault", 4, "x")]})
    e = wire_errors.from_response(500, body)
    assert e.blame is Blame.INFRA
    item = wire_errors.item({"code": code, "message": "m", "failure": {"kind": "boot_failed", "blame": "BLAME_INFRA"}})
    assert item.blame is Blame.INFRA
    if code in ("internal", "unknown"):
        assert isinstance(item, SandboxFailure)
    assert wire_errors.from_response(503, b"").blame is Blame.INFRA


def test_file_errors_are_those_of_python() -> None:
    reason = {"type": "dsec.v1.Error", "value": base64.b64encode(b"\x0a\x09not_found").decode().rstrip("=")}
    body = codec.dumps({"code": "not_found", "message": "m", "details": [reason]})
    e = wire_errors.from_response(404, body, file=True)
    assert isinstance(e, FileNotFound)
    assert isinstance(e, FileNotFoundError)
    assert str(e) == "not_found: m"
    assert not isinstance(wire_errors.from_response(404, body), FileNotFoundError)
    plain = b'{"code":"failed_precondition","message":"m","reason":"is_a_directory"}'
    assert isinstance(wire_errors.from_response(412, plain, file=True), IsADirectory)
    full = b'{"code":"resource_exhausted","message":"m","reason":"no_space"}'
    e = wire_errors.from_response(429, full, file=True)
    assert isinstance(e, ResourceExhausted)
    assert e.blame is Blame.TASK


@pytest.mark.parametrize("value", ["CgM", "Cg", "fw", "////////////", "!"])
def test_broken_details_are_no_details(value: str) -> None:
    body = codec.dumps({"code": "internal", "message": "m", "details": [{"type": "dsec.v1.Failure", "value": value}]})
    assert isinstance(wire_errors.from_response(500, body), DSecError)


def test_answers_of_something_in_between() -> None:
    e = wire_errors.from_response(502, b"<html>bad gateway</html>")
    assert isinstance(e, Unavailable)
    assert "bad gateway" in e.message
    assert isinstance(wire_errors.from_response(499, b'{"code":"canceled","message":"reset"}'), Unavailable)
    assert wire_errors.from_response(418, b"\xff").code == "unknown"
