"""Calls every method of the package e2b-code-interpreter; says what went wrong, if anything did, by an error."""

import asyncio
import base64
import os
import re

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
    assert (r.error.name, r.error.value) == ("ValueError", "bad \U0001f600") and "in f" in re.sub("\x1b\\[[0-9;]*m", "", r.error.traceback), r.error
    assert s.run_code("1 +").error.name == "SyntaxError"
    r = s.run_code("import os; os.environ['A'], os.environ.get('B')", envs={"A": "it's \U0001f600 \\ {}"})
    assert r.text == repr(("it's \U0001f600 \\ {}", None)), r
    assert s.run_code("os.environ.get('A')").results == []
    assert s.run_code("os.getcwd(), os.getuid()").text == "('/home/user', 1000)"
    assert len("".join(s.run_code("print('x' * 3_000_000)").logs.stdout)) == 3_000_001
    s.files.write("/home/user/data", "shared")
    assert s.run_code("open('data').read()").text == "'shared'"


SHOWN = """
class Shown:
    def _repr_mimebundle_(self, **kw):
        return {'text/plain': 'shown', 'text/html': '<i>', 'text/markdown': '*m*', 'image/svg+xml': '<svg/>', 'image/jpeg': 'anBn',
                'application/pdf': 'cGRm', 'text/latex': '$x$', 'application/json': {'a': None}, 'application/javascript': '1', 'x/own': 'y'}
Shown()
"""


def rich(s: Sandbox) -> None:
    r = s.run_code(SHOWN).results[0]
    assert (r.text, r.html, r.markdown, r.svg, r.jpeg, r.pdf) == ("shown", "<i>", "*m*", "<svg/>", "anBn", "cGRm"), r.__dict__
    assert (r.latex, r.json, r.javascript, r.extra) == ("$x$", {"a": None}, "1", {"x/own": "y"}), r.__dict__
    r = s.run_code("import pandas as pd\npd.DataFrame({'n': [1, 2.5, None], 't': pd.to_datetime(['2026-01-02', None, '2026-01-03']), 's': ['a', 'b', None], 3: [True, False, True]})")
    data = r.results[0].data
    assert data == {"n": [1, 2.5, None], "t": ["2026-01-02T00:00:00", None, "2026-01-03T00:00:00"], "s": ["a", "b", None], "3": [True, False, True]}, data
    assert "<table" in r.results[0].html and "data" in list(r.results[0].formats())
    assert s.run_code("pd.DataFrame({'a': range(300_000)})").results[0].data is None  # too much to send beside the text


def chart(s: Sandbox, code: str):
    r = s.run_code("import matplotlib.pyplot as plt\n" + code + "\nplt.show()")
    assert r.error is None, r.error.traceback
    assert len(r.results) == 1 and r.results[0].png and r.results[0].chart is not None, r.results
    return r.results[0].chart


def charts(s: Sandbox) -> None:
    c = chart(s, "plt.plot([1, 2, 3], [4, float('nan'), 6], label='up'); plt.plot([1, 2], [1, 1]); plt.title('T'); plt.xlabel('Time (s)'); plt.ylabel('Level'); plt.yscale('log')")
    assert (c.type.value, c.title, c.x_label, c.x_unit, c.y_label, c.y_unit) == ("line", "T", "Time (s)", "s", "Level", None), c.to_dict()
    assert (c.x_scale.value, c.y_scale.value) == ("linear", "log") and len(c.x_ticks) == len(c.x_tick_labels) > 0
    assert [(e.label, e.points) for e in c.elements] == [("up", [(1, 4), (2, None), (3, 6)]), ("Line 2", [(1, 1), (2, 1)])], c.to_dict()
    c = chart(s, "import datetime\nplt.plot([datetime.date(2026, 1, 2), datetime.date(2026, 1, 3)], [1, 2])")
    assert c.x_scale.value == "datetime" and c.elements[0].points[0][0].startswith("2026-01-02T00:00"), c.to_dict()
    c = chart(s, "plt.scatter([1, 2], [3, 4], label='dots')")
    assert c.type.value == "scatter" and c.elements[0].label == "dots" and c.elements[0].points == [(1, 3), (2, 4)], c.to_dict()
    c = chart(s, "plt.bar(['a', 'b'], [3, 4], label='x'); plt.bar(['a', 'b'], [1, 1], bottom=[3, 4])")
    assert c.type.value == "bar" and [(e.label, e.group, e.value) for e in c.elements] == [("a", "x", 3), ("b", "x", 4), ("a", "Bar 2", 1), ("b", "Bar 2", 1)], c.to_dict()
    c = chart(s, "plt.barh(['a', 'b'], [3, 4])")
    assert [(e.label, e.value) for e in c.elements] == [("a", 3), ("b", 4)], c.to_dict()
    c = chart(s, "plt.pie([1, 3], labels=['a', 'b'])")
    assert c.type.value == "pie" and [(e.label, round(e.angle), e.radius) for e in c.elements] == [("a", 90, 1), ("b", 270, 1)], c.to_dict()
    for more in ("", ", vert=False", ", patch_artist=True"):
        c = chart(s, "plt.boxplot([[1, 2, 3, 4, 5, 50], [2, 2, 3, 3]], labels=['a', 'b']%s)" % more)
        a, b = c.elements
        assert c.type.value == "box_and_whisker" and (a.label, a.min, a.median, a.max, a.outliers) == ("a", 1, 3.5, 5, [50]), (more, c.to_dict())
        assert (a.first_quartile, a.third_quartile, b.label, b.median, b.outliers) == (2.25, 4.75, "b", 2.5, []), (more, c.to_dict())
    c = chart(s, "f, (x, y) = plt.subplots(1, 2); x.plot([1], [2]); y.bar(['q'], [1]); f.suptitle('both')")
    assert (c.type.value, c.title, [e.type.value for e in c.elements]) == ("superchart", "both", ["line", "bar"]), c.to_dict()
    c = chart(s, "plt.imshow([[1, 2], [3, 4]])")
    assert c.type.value == "unknown", c.to_dict()
    r = s.run_code("plt.plot(range(200_000)); plt.show()").results[0]
    assert r.png and r.chart is None  # too much


def contexts(s: Sandbox) -> None:
    c = s.create_code_context(cwd="/tmp")
    assert (c.language, c.cwd) == ("python", "/tmp")
    assert s.run_code("import os; own = 1; os.getcwd()", context=c).text == "'/tmp'"
    assert s.run_code("own").error.name == "NameError"
    assert {x.id for x in s.list_code_contexts()} == {"default", c.id}
    s.restart_code_context(c)
    assert s.run_code("own", context=c).error.name == "NameError"
    s.remove_code_context(c)
    assert c.id not in {x.id for x in s.list_code_contexts()}
    for what in (lambda: s.run_code("1", context=c), lambda: s.remove_code_context(c), lambda: s.restart_code_context("none")):
        refused(what, "NotFoundException")
    refused(lambda: s.create_code_context(cwd="/none"), "SandboxException", "no directory")
    refused(lambda: s.create_code_context(language="cobol"), "SandboxException", "only python")
    refused(lambda: s.run_code("1", language="r"), "SandboxException", "only python")


def trouble(s: Sandbox) -> None:
    refused(lambda: s.run_code("import time\nfor n in range(600): time.sleep(0.1)", timeout=2), "TimeoutException")
    r = s.run_code("'after'")
    assert r.text == "'after'", r  # what was given up was interrupted
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
    for part in (values, rich, charts, contexts, trouble):
        part(s)
        print(part.__name__, "ok", flush=True)
asyncio.run(concurrent())
print("ok", flush=True)
# The package's native transport may abort the process while Python ends; all was said by then.
os._exit(0)
