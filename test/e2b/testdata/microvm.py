"""What the package e2b does on a microVM."""

import os

import e2b
from e2b import Sandbox

s = Sandbox.create("base+microvm", timeout=600, lifecycle={"on_timeout": "pause", "auto_resume": True}, request_timeout=240)
try:
    assert s.get_info().template_id == "base+microvm"
    kernel = s.commands.run("uname -r", timeout=120).stdout.strip()
    assert kernel != os.uname().release, kernel
    s.files.write("dir/a", "text", metadata={"k": "v"}, request_timeout=120)
    assert s.files.read("dir/a") == "text" and s.files.get_info("dir/a").metadata == {"k": "v"}
    assert [e.name for e in s.files.list("dir")] == ["a"]
    h = s.commands.run("cat", background=True, stdin=True, timeout=0)
    s.pause()
    assert s.get_info().state == e2b.SandboxState.PAUSED
    s.connect(timeout=600)
    s.commands.send_stdin(h.pid, "still here\n")
    s.commands.close_stdin(h.pid)
    assert h.wait().stdout == "still here\n"  # the same process
    assert s.get_metrics()[0].mem_total > 0
    for what in (s.create_snapshot, s.fork):
        try:
            got = what()
        except Exception as e:
            assert "400" in str(e) or "unsupported" in str(e), e
        else:  # kept or made, and said so: forks are told one by one
            if isinstance(got, list):
                for f in got:
                    f.kill() if isinstance(f, Sandbox) else None
            else:
                Sandbox.delete_snapshot(got.snapshot_id)
finally:
    s.kill()
print("ok")
