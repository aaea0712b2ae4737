"""Trees as tar streams; above all that nothing is written outside the target."""

from __future__ import annotations

import io
import os
import random
import stat
import tarfile
from pathlib import Path

import pytest

from dsec import archive


def tar(*members: tuple[str, dict[str, object]]) -> io.BytesIO:
    """A tar of (name, fields of TarInfo, with data=...)."""
    f = io.BytesIO()
    with tarfile.open(fileobj=f, mode="w", format=tarfile.PAX_FORMAT) as t:
        for name, fields in members:
            info = tarfile.TarInfo(name)
            data = fields.pop("data", b"")
            assert isinstance(data, bytes)
            info.size = len(data)
            for k, v in fields.items():
                setattr(info, k, v)
            t.addfile(info, io.BytesIO(data))
    f.seek(0)
    return f


def link(name: str, to: str) -> tuple[str, dict[str, object]]:
    return name, {"type": tarfile.SYMTYPE, "linkname": to}


def file(name: str, data: bytes = b"x") -> tuple[str, dict[str, object]]:
    return name, {"data": data}


def snapshot(root: Path) -> dict[str, object]:
    """What lies beneath a directory: names, modes, contents."""
    out: dict[str, object] = {}
    for p in sorted(root.rglob("*")):
        st = p.lstat()
        content: object = os.readlink(p) if p.is_symlink() else p.read_bytes() if p.is_file() else None
        out[str(p.relative_to(root))] = (
            stat.S_IFMT(st.st_mode),
            content,
            None if p.is_symlink() else st.st_mode & 0o777,
        )
    return out


def test_a_tree_comes_back_as_it_was(tmp_path: Path) -> None:
    src, dst = tmp_path / "src", tmp_path / "dst"
    (src / "a/b").mkdir(parents=True)
    (src / "a/f").write_bytes(random.Random(1).randbytes(700_001))
    (src / "a/b/run.sh").write_text("#!/bin/sh\n")
    (src / "a/b/run.sh").chmod(0o750)
    (src / ("long" * 60)).write_text("name of 240 bytes")
    (src / "ünï\udcff").write_bytes(b"not UTF-8 in its name")
    (src / "empty").mkdir(mode=0o700)
    (src / "a/up").symlink_to("../ünï\udcff")
    (src / "readonly").mkdir()
    (src / "readonly/f").write_text("x")
    (src / "readonly").chmod(0o555)
    os.mkfifo(src / "pipe")
    stream = io.BytesIO(b"".join(archive.pack(src)))
    done = archive.unpack(stream, dst)
    (src / "pipe").unlink()
    assert snapshot(dst) == snapshot(src)
    assert (done.files, done.symlinks, done.skipped) == (5, 1, [])


def test_what_leads_outside_is_left_out_and_told(tmp_path: Path) -> None:
    outside, target = tmp_path / "outside", tmp_path / "target"
    outside.mkdir()
    (outside / "secret").write_text("untouched")
    done = archive.unpack(
        tar(
            file("/abs"),
            file("../up"),
            file("a/../../up2"),
            link("l", str(outside)),
            file("l/through"),
            link("rel", "../outside"),
            file("rel/through"),
            ("here", {"type": tarfile.DIRTYPE}),
            link("here/back", ".."),  # stays inside
            file("here/back/through"),
            link("sneaky", "here/back/../../outside"),
            ("hard", {"type": tarfile.LNKTYPE, "linkname": "../outside/secret"}),
            ("hard2", {"type": tarfile.LNKTYPE, "linkname": "here/back"}),
            ("dev", {"type": tarfile.CHRTYPE, "devmajor": 1, "devminor": 3}),
            ("fifo", {"type": tarfile.FIFOTYPE}),
            ("here", {"data": b"over a directory"}),
            ("suid", {"data": b"x", "mode": 0o4755}),
            file("good"),
        ),
        target,
    )
    assert set(snapshot(target)) == {"here", "here/back", "l", "rel", "suid", "good", "l/through", "rel/through"}
    assert [n for n, _ in done.skipped] == [
        "/abs",
        "../up",
        "a/../../up2",
        "l",
        "rel",
        "here/back/through",
        "sneaky",
        "hard",
        "hard2",
        "dev",
        "fifo",
        "here",
    ]
    assert (target / "l").is_dir()  # the link was refused, so that "l/through" made a directory of its own
    assert not (target / "l").is_symlink()
    assert (target / "suid").stat().st_mode & 0o7777 == 0o755
    assert snapshot(outside) == {"secret": (stat.S_IFREG, b"untouched", (outside / "secret").stat().st_mode & 0o777)}
    assert sorted(p.name for p in tmp_path.iterdir()) == ["outside", "target"]


def test_a_link_that_is_there_is_replaced_and_never_followed(tmp_path: Path) -> None:
    victim, target = tmp_path / "victim", tmp_path / "target"
    victim.write_text("untouched")
    target.mkdir()
    (target / "f").symlink_to(victim)
    (target / "d").symlink_to(tmp_path)
    done = archive.unpack(tar(file("f"), file("d/victim")), target)
    assert (target / "f").read_bytes() == b"x"
    assert not (target / "f").is_symlink()
    assert victim.read_text() == "untouched"
    assert [n for n, _ in done.skipped] == ["d/victim"]


def resolved(p: Path) -> Path:
    """Where the kernel ends up at a path; the path itself when it leads nowhere."""
    try:
        fd = os.open(p, os.O_PATH)
    except OSError:  # a link to nothing, or to itself
        return p.parent.resolve()
    try:
        return Path(os.readlink(f"/proc/self/fd/{fd}"))
    finally:
        os.close(fd)


def test_random_hostile_archives_stay_inside(tmp_path: Path) -> None:
    """Whatever names and links, in whatever order: outside nothing changes, and no link inside resolves outside."""
    rng = random.Random(7)
    words = ["a", "b", "..", ".", "", "a/b", "../..", "/", "c"]
    for round_ in range(300):
        base = tmp_path / str(round_)
        target = base / "x/y/target"
        target.mkdir(parents=True)
        members: list[tuple[str, dict[str, object]]] = []
        for _ in range(rng.randint(1, 12)):
            name = "/".join(rng.choice(words) for _ in range(rng.randint(1, 4))) or "a"
            to = "/".join(rng.choice(words) for _ in range(rng.randint(1, 4))) or "b"
            kinds: list[tuple[str, dict[str, object]]] = [
                file(name),
                link(name, to),
                (name, {"type": tarfile.DIRTYPE}),
                (name, {"type": tarfile.LNKTYPE, "linkname": to}),
            ]
            members.append(rng.choice(kinds))
        archive.unpack(tar(*members), target)
        assert {str(p.relative_to(base)) for p in base.rglob("*") if target not in p.parents} == {
            "x",
            "x/y",
            "x/y/target",
        }
        for p in target.rglob("*"):
            assert resolved(p).is_relative_to(target.resolve()), p


@pytest.mark.parametrize("cut", [1, 400, 700, 1500])
def test_a_cut_archive_is_an_error(tmp_path: Path, cut: int) -> None:
    data = tar(file("f", b"y" * 2000)).getvalue()
    with pytest.raises(tarfile.TarError):
        archive.unpack(io.BytesIO(data[:cut]), tmp_path / "t")


def test_packing_notices_a_file_that_shrinks(tmp_path: Path) -> None:
    f = tmp_path / "f"
    f.write_bytes(b"z" * 3_000_000)
    pieces = archive.pack(tmp_path)
    next(pieces)
    os.truncate(f, 10)
    with pytest.raises(OSError, match="became shorter"):
        list(pieces)
    with pytest.raises(NotADirectoryError):
        list(archive.pack(f))
