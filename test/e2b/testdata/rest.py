"""The cases of suite.py that are about what packages offer beside the main road, and the one that finds what no case names."""

import inspect
import re
from pathlib import Path
from typing import Any

import e2b
from e2b import Sandbox

from __main__ import OTHER, REGISTRY, TEMPLATE, Killed, Refused, case, has, raises, refuses, until

# Why a method of the packages is in no case: what it needs is refused.
UNREACHED = {
    **{
        f"Volume.{m}": "there are no volumes, and so no object that has this method"
        for m in ("exists", "make_dir", "read_file", "remove", "update_metadata", "write_file")
    },
}


@case("E2B(api_key).Sandbox")
def _(s):
    import os

    has(e2b, "E2B")
    client = e2b.E2B(api_key=os.environ["E2B_API_KEY"])
    n = client.Sandbox.create(timeout=60)
    try:
        assert client.Sandbox.get_info(n.sandbox_id).sandbox_id == n.sandbox_id
    finally:
        n.kill()


@case("sandbox.beta_pause")
def _(s):
    n = Sandbox.create(timeout=60)
    try:
        n.beta_pause()
        assert n.get_info().state == e2b.SandboxState.PAUSED
    finally:
        n.kill()


@case("sandbox.get_mcp_url, get_mcp_token")
def _(s):
    assert "50005" in s.get_mcp_url()
    try:
        s.get_mcp_token()
    except Exception as e:  # the file is not there: no gateway is
        assert "no such file" in str(e), e
        raise Refused(str(e)) from e


@case("Sandbox.create(iam)")
def _(s):
    has(e2b, "Secret")
    token = e2b.Secret.iam_token(audience="a", token_type="JWT-SVID")
    refuses(lambda: Sandbox.create(timeout=60, iam={"tokens": {"t": token}}))


@case("Sandbox.create(network rules, secrets)")
def _(s):
    has(e2b, "Secret")
    rule = {"transform": {"headers": {"X": e2b.Secret.fill("s")}}}
    refuses(lambda: Sandbox.create(timeout=60, network={"allow_out": ["example.org"], "rules": {"example.org": [rule]}}))


@case("Secret.create, update, get_info, list, exists, destroy")
def _(s):
    has(e2b, "Secret")
    S = e2b.Secret
    for what in (
        lambda: S.create("n", "v"),
        lambda: S.update("n", "v"),
        lambda: S.get_info("n"),
        lambda: S.list().next_items(),
        lambda: S.exists("n"),
        lambda: S.destroy("n"),
    ):
        said = raises(lambda: refuses(what), "Refused")
    raise said


@case("Volume.create, connect, get_info, list, destroy")
def _(s):
    has(e2b, "Volume")
    V = e2b.Volume
    for what in (lambda: V.create("n"), lambda: V.connect("v"), lambda: V.get_info("v"), V.list, lambda: V.destroy("v")):
        said = raises(lambda: refuses(what), "Refused")
    raise said


@case("commands handle: send_stdin, close_stdin, disconnect")
def _(s):
    h = s.commands.run("cat", background=True, stdin=True)
    has(h, "send_stdin", "close_stdin")
    h.send_stdin("by the handle\n")
    h.close_stdin()
    assert h.wait().stdout == "by the handle\n"


@case("pty.stream_input")
def _(s):
    has(s.pty, "stream_input")
    h = s.pty.create(e2b.PtySize(rows=24, cols=80))
    s.pty.stream_input(h.pid, iter([b"echo st", b"reamed-$((2+1)); exit\n"]))
    seen = bytearray()
    h.wait(on_pty=lambda b: seen.extend(b))
    assert b"streamed-3" in seen, seen


@case("git: remotes, clone, push, pull, reset, restore, config")
def _(s):
    has(s, "git")
    g, repo, bare = s.git, "/home/user/full", "/home/user/full.git"
    g.init(bare, bare=True)
    g.init(repo, initial_branch="main")
    g.configure_user("A", "a@example.org", scope="global")
    g.set_config("dsec.key", "value", scope="local", path=repo)
    assert g.get_config("dsec.key", scope="local", path=repo).strip() == "value"
    s.files.write(f"{repo}/f", "1")
    g.add(repo)
    g.commit(repo, "first")
    g.remote_add(repo, "origin", bare)
    assert g.remote_get(repo, "origin") == bare
    g.push(repo, "origin", "main")
    g.clone(bare, "/home/user/cloned", branch="main")
    assert s.files.read("/home/user/cloned/f") == "1"
    s.files.write(f"{repo}/f", "2")
    g.restore(repo, ["f"])
    assert s.files.read(f"{repo}/f") == "1"
    s.files.write(f"{repo}/f", "3")
    g.commit(repo, "second") if g.add(repo) else None
    g.push(repo, "origin", "main")
    g.pull("/home/user/cloned", "origin", "main")
    assert s.files.read("/home/user/cloned/f") == "3"
    g.reset(repo, mode="hard", target="HEAD~1")
    assert s.files.read(f"{repo}/f") == "1"
    g.create_branch(repo, "side")
    g.checkout_branch(repo, "main")
    g.delete_branch(repo, "side", force=True)
    assert "side" not in g.branches(repo).branches
    g.dangerously_authenticate("u", "p", host="example.org")
    assert "example.org" in s.commands.run("cat ~/.git-credentials").stdout


@case("Template: from_*_image, from_dockerfile, *_install, to_json, to_dockerfile")
def _(s):
    """What these say to the service is what from_image and run_cmd say."""
    import json

    T = e2b.Template
    has(T(), "from_image")
    for made, image in {
        "from_debian_image": "debian:", "from_ubuntu_image": "ubuntu:", "from_python_image": "python:", "from_node_image": "node:",
        "from_bun_image": "oven/bun:", "from_alpine_image": "alpine:", "from_arch_image": "archlinux:", "from_fedora_image": "fedora:",
        "from_base_image": "e2bdev/base",
    }.items():
        if hasattr(T(), made):
            assert json.loads(T.to_json(getattr(T(), made)()))["fromImage"].startswith(image), made
    t = T().from_dockerfile("FROM debian:12\nRUN true\nWORKDIR /w\nENV A=b\n")
    t = t.apt_install("git").pip_install("wheel").npm_install("left-pad")
    if hasattr(t, "bun_install"):
        t = t.bun_install("left-pad")
    kinds = [i["type"] for i in json.loads(T.to_json(t))["steps"]]
    assert set(kinds) <= {"RUN", "WORKDIR", "ENV", "USER", "COPY"}, kinds
    assert "RUN true" in T.to_dockerfile(t)
    if hasattr(t, "add_mcp_server"):  # the package itself takes it for its own base only
        raises(lambda: t.add_mcp_server("exa"), "BuildException")
    if hasattr(t, "beta_dev_container_prebuild"):
        raises(lambda: t.beta_dev_container_prebuild("/d"), "BuildException")
        raises(lambda: t.beta_set_dev_container_start("/d"), "BuildException")


@case("Template.from_aws_registry, from_gcp_registry, from_image(credentials)")
def _(s):
    has(e2b.Template(), "from_aws_registry")
    T = e2b.Template
    for t in (
        T().from_aws_registry("1.dkr.ecr.eu-west-1.amazonaws.com/i", "k", "s", "eu-west-1"),
        T().from_gcp_registry("eu.gcr.io/p/i", {"type": "service_account"}),
        T().from_image("registry.example.org/i", username="u", password="p"),
    ):
        said = raises(lambda: refuses(lambda: T.build(t.run_cmd("true"), alias=TEMPLATE + "-reg")), "Refused")
    raise said


@case("Template.build(from_image of a registry)")
def _(s):
    T = e2b.Template
    t = T().from_image(REGISTRY).run_cmd("echo made > made")
    T.build(t, alias=TEMPLATE + "-image")
    b = Sandbox.create(TEMPLATE + "-image", timeout=60)
    try:
        # The image's own variables, and a user called user, which it does not have.
        assert b.commands.run("cat made; echo $OF_THE_IMAGE; id -un; pwd").stdout == "made\nyes\nuser\n/home/user\n"
    finally:
        b.kill()
    raises(lambda: T.build(T().from_image(REGISTRY + "-none").run_cmd("true"), alias=TEMPLATE + "-image"), "BuildException")


@case("Template: copy_items, git_clone, make_dir, make_symlink, remove, rename, set_user, set_ready_cmd, skip_cache")
def _(s):
    import os
    import tempfile

    T = e2b.Template
    has(T, "build")
    with tempfile.TemporaryDirectory() as context:
        for name in ("a", "b"):
            Path(context, name).write_text(name)
        t = T(file_context_path=context).from_image(OTHER)
        has(t, "copy_items", "make_dir", "make_symlink", "skip_cache")
        t = (
            t.copy_items([{"src": "a", "dest": "/home/user/a"}, {"src": "b", "dest": "/home/user/b"}])
            .run_cmd("git init -q /home/user/origin && cd /home/user/origin && git -c user.name=A -c user.email=a commit -q --allow-empty -m first")
            .git_clone("/home/user/origin", "/home/user/clone")
            .make_dir(["/home/user/d", "/home/user/e"], mode=0o750)
            .make_symlink("/home/user/a", "/home/user/link")
            .rename("/home/user/b", "/home/user/c")
            .remove("/home/user/e", recursive=True)
            .skip_cache()
            .set_user("root")
            .run_cmd("id -un > /who")
            .set_user("user")
            .set_ready_cmd("test -d /home/user/clone/.git")
        )
        T.build(t, alias=TEMPLATE + "-steps")
    with_it = Sandbox.create(TEMPLATE + "-steps", timeout=60)
    try:
        out = with_it.commands.run("cat ~/a ~/c ~/link /who; ls ~; stat -c %a ~/d; git -C ~/clone log --format=%s").stdout
        assert out == "acaroot\na\nc\nclone\nd\nlink\norigin\n750\nfirst\n".replace("aca", "aba"), out
    finally:
        with_it.kill()
    assert os.path.sep == "/"


@case("Template.build_in_background, get_build_status, alias_exists")
def _(s):
    T = e2b.Template
    has(T, "build_in_background", "get_build_status")
    info = T.build_in_background(T().from_image(OTHER).run_cmd("echo in the background"), alias=TEMPLATE + "-back")
    logs: list[str] = []

    def over() -> bool:
        got = T.get_build_status(info, logs_offset=len(logs))
        logs.extend(e.message for e in got.log_entries)
        return getattr(got.status, "value", got.status) == "ready"

    until(over, 120)
    assert any("in the background" in line for line in logs), logs
    if hasattr(T, "alias_exists"):
        assert T.alias_exists(TEMPLATE + "-back") is True


def offered() -> dict[str, tuple[type, str]]:
    """The classes whose methods the packages offer, and how a case calls them."""
    from e2b.sandbox_sync.commands.command import Commands
    from e2b.sandbox_sync.commands.pty import Pty
    from e2b.sandbox_sync.filesystem.filesystem import Filesystem

    out = {
        "Sandbox": (Sandbox, r"\b(Sandbox|s|n|m|a|b|f|k\.sandbox)"),
        "commands": (Commands, r"\bcommands"),
        "files": (Filesystem, r"\bfiles"),
        "pty": (Pty, r"\bpty"),
        "handle": (e2b.CommandHandle, r"\b(h|c)"),
        "watch": (e2b.WatchHandle, r"\bw"),
    }
    if hasattr(Sandbox, "git"):
        out["git"] = (e2b.Git, r"\b(git|g)")
    for name, how in {"Template": r"(\b(Template|T|t)|\))\s*", "Volume": r"\b(Volume|V)", "Secret": r"\b(Secret|S)"}.items():
        if hasattr(e2b, name):
            out[name] = (getattr(e2b, name), how)
    if "Template" in out:
        from e2b.template.main import TemplateBuilder

        out["Template step"] = (TemplateBuilder, out["Template"][1])
    return out


@case("every method is named by a case")
def _(s):
    here = Path(__file__).parent
    text = (here / "suite.py").read_text() + (here / "rest.py").read_text()
    missing = []
    for name, (kind, how) in offered().items():
        asynchronous = getattr(e2b, f"Async{name}", None)
        for method in (m for m in dir(kind) if not m.startswith("_") and callable(inspect.getattr_static(kind, m)) or callable(getattr(kind, m, None))):
            if method.startswith("_") or inspect.isclass(getattr(kind, method, None)):
                continue
            reason = UNREACHED.get(f"{name.split()[0]}.{method}")
            if not reason and not re.search(rf"{how}\.{method}\b", text) and f'"{method}"' not in text:
                missing.append(f"{name}.{method}")
            if asynchronous and not hasattr(asynchronous, method):
                missing.append(f"Async{name}.{method}: the asynchronous face lacks it")
    assert not missing, missing
