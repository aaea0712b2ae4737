"""Calls every method of the package e2b-code-interpreter; says what went wrong, if anything did, by an error."""

import asyncio
import base64

from e2b_code_interpreter import AsyncSandbox, Sandbox

PNG = base64.b64encode(
    bytes.fromhex(
        "89504e470d0a1a0a0000000d49484452000000010000000108060000001f15c4890000000d49444154789c6360f8cfc0000003010100c9fe92ef0000000049454e44ae426082"
    )
).decode()


def values(s: Sandbox) -> None:
    out: list[str] = []
    r = s.run_code("import sys\nprint('out')\nprint('err', file=sys.stderr)\nx = 6\nx * 7", on_stdout=lambda m: out.append(m.line))
    assert (r.text, r.error, "".join(out), "".join(r.logs.stdout), "".join(r.logs.stderr)) == ("42", None, "out\n", "out\n", "err\n"), r
    assert r.execution_count == 1 and r.results[0].is_main_result
    assert s.run_code("x + 1").text == "7"
    r = s.run_code("from IPython.display import display, Image, HTML, JSON\nimport base64\n" f"display(Image(data=base64.b64decode('{PNG}')))\ndisplay(JSON({{'a': [1]}}))\nHTML('<b>ä</b>')")
    png, data, main = r.results
    assert png.png.strip() == PNG and not png.is_main_result, png
    assert data.json == {"a": [1]} and main.html == "<b>ä</b>" and main.is_main_result, r.results
    r = s.run_code("def f():\n    raise ValueError('bad \\U0001f600')\nf()")
    assert (r.error.name, r.error.value) == ("ValueError", "bad \U0001f600") and "in f" in r.error.traceback, r.error
    assert s.run_code("1 +").error.name == "SyntaxError"
    r = s.run_code("import os; os.environ['A'], os.environ.get('B')", envs={"A": "it's \U0001f600 \\ {}"})
    assert r.text == repr(("it's \U0001f600 \\ {}", None)), r
    assert s.run_code("os.environ.get('A')").results == []
    assert s.run_code("os.getcwd(), os.getuid()").text == "('/home/user', 1000)"
    assert len("".join(s.run_code("print('x' * 3_000_000)").logs.stdout)) == 3_000_001
    s.files.write("/home/user/data", "shared")
    assert s.run_code("open('data').read()").text == "'shared'"


def contexts(s: Sandbox) -> None:
    c = s.create_code_context(cwd="/tmp")
    assert (c.language, c.cwd) == ("python", "/tmp")
    assert s.run_code("import os; y = 1; os.getcwd()", context=c).text == "'/tmp'"
    assert s.run_code("y").error.name == "NameError"
    assert {x.id for x in s.list_code_contexts()} == {"default", c.id}
    s.restart_code_context(c)
    assert s.run_code("y", context=c).error.name == "NameError"
    s.remove_code_context(c)
    assert c.id not in {x.id for x in s.list_code_contexts()}
    for what in (lambda: s.run_code("1", context=c), lambda: s.remove_code_context(c), lambda: s.restart_code_context("none")):
        refused(what, "NotFoundException")
    refused(lambda: s.create_code_context(cwd="/none"), "SandboxException", "no directory")
    refused(lambda: s.create_code_context(language="cobol"), "SandboxException", "only python")
    refused(lambda: s.run_code("1", language="r"), "SandboxException", "only python")


def trouble(s: Sandbox) -> None:
    refused(lambda: s.run_code("import time\nfor n in range(600): time.sleep(0.1)", timeout=2), "TimeoutException")
    assert s.run_code("'after'").text == "'after'"  # what was given up was interrupted
    r = s.run_code("import os; os._exit(3)")
    assert r.error.name == "KernelDied", r
    assert s.run_code("1 + 1").text == "2"


def refused(what, kind: str, words: str = "") -> None:
    try:
        what()
    except Exception as e:
        assert kind in [k.__name__ for k in type(e).__mro__] and words in str(e), f"{type(e)} {e}"
        return
    raise AssertionError(f"{kind} was expected")


async def concurrent() -> None:
    s = await AsyncSandbox.create(timeout=120)
    try:
        done = await asyncio.gather(*(s.run_code(f"{n} * {n}") for n in range(20)))
        assert [r.text for r in done] == [str(n * n) for n in range(20)]
    finally:
        await s.kill()


with Sandbox.create(timeout=300) as s:
    for part in (values, contexts, trouble):
        part(s)
        print(part.__name__, "ok", flush=True)
asyncio.run(concurrent())
print("ok")
