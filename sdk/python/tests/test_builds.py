"""What a build sends, and what it makes of the answers, without a node."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

from dsec import InvalidArgument
from dsec.archive import pack
from dsec.builds import dockerfile_in, left_out
from dsec.pump import SupportsRead


class _Joined(SupportsRead):
    def __init__(self, root: Path) -> None:
        self.rest = b"".join(pack(root, left_out(root, "Dockerfile")))

    def read(self, size: int = -1, /) -> bytes:
        data, self.rest = (self.rest[:size], self.rest[size:]) if size >= 0 else (self.rest, b"")
        return data


def sent(root: Path) -> set[str]:
    with tarfile.open(fileobj=_Joined(root), mode="r|") as t:  # type: ignore[call-overload]
        return {m.name for m in t if not m.isdir()}


def context(root: Path, ignore: str | None) -> None:
    for name in ("Dockerfile", "a.txt", "a.log", "sub/b.log", "sub/c.txt", ".git/config", "node_modules/x/y.js"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(name)
    if ignore is not None:
        (root / ".dockerignore").write_text(ignore)


ALL = {"Dockerfile", "a.txt", "a.log", "sub/b.log", "sub/c.txt", ".git/config", "node_modules/x/y.js"}


@pytest.mark.parametrize(
    ("ignore", "gone"),
    [
        (None, set()),
        ("# nothing\n\n", set()),
        ("*.log\n", {"a.log"}),
        ("**/*.log\n/.git/\nnode_modules", {"a.log", "sub/b.log", ".git/config", "node_modules/x/y.js"}),
        ("Dockerfile\n.dockerignore\nsub/../a.txt", {"a.txt"}),  # the first two travel all the same
        ("**/*.log\n!a.log", set()),  # the service decides
        ("[ab].log", set()),
        ("**", ALL - {"Dockerfile"}),
    ],
)
def test_left_out(tmp_path: Path, ignore: str | None, gone: set[str]) -> None:
    context(tmp_path, ignore)
    extra = set() if ignore is None else {".dockerignore"}
    assert sent(tmp_path) == (ALL - gone) | extra


def test_dockerfile(tmp_path: Path) -> None:
    inner = tmp_path / "in"
    (inner / "docker").mkdir(parents=True)
    (inner / "docker" / "File").write_text("FROM scratch")
    (tmp_path / "out").write_text("FROM scratch")
    assert dockerfile_in(inner, "docker/File") == "docker/File"
    assert dockerfile_in(inner, inner / "docker" / "File") == "docker/File"
    with pytest.raises(InvalidArgument, match="must lie in the build context"):
        dockerfile_in(inner, "../out")
    with pytest.raises(InvalidArgument, match="there is no such file"):
        dockerfile_in(inner, None)
    with pytest.raises(InvalidArgument, match="it is no directory"):
        dockerfile_in(tmp_path / "none", None)
