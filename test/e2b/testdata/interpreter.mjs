// Calls the methods of @e2b/code-interpreter; the directory that it is installed in is the argument.
import assert from 'node:assert/strict'
import { createRequire } from 'node:module'
import path from 'node:path'
import { pathToFileURL } from 'node:url'

const require = createRequire(path.join(process.argv[2], 'package.json'))
const { Sandbox } = await import(pathToFileURL(require.resolve('@e2b/code-interpreter')))

const s = await Sandbox.create({ timeoutMs: 300_000 })
try {
  const lines = []
  let r = await s.runCode("print('out')\nx = 6\nx * 7", { onStdout: (m) => lines.push(m.line) })
  assert.equal(r.text, '42')
  assert.equal(lines.join(''), 'out\n')
  r = await s.runCode("from IPython.display import display, JSON\ndisplay(JSON({'a': [1]}))\nraise ValueError('bad')")
  assert.deepEqual(r.results[0].json, { a: [1] })
  assert.equal(r.error.name, 'ValueError')
  r = await s.runCode('import matplotlib.pyplot as plt\nplt.plot([1, 2], [3, 4], label="l"); plt.title("T"); plt.show()')
  assert.ok(r.results[0].png)
  assert.equal(r.results[0].chart.type, 'line')
  assert.deepEqual(r.results[0].chart.elements[0].points, [[1, 3], [2, 4]])
  r = await s.runCode('import pandas as pd\npd.DataFrame({"a": [1, None]})')
  assert.deepEqual(r.results[0].data, { a: [1, null] })
  r = await s.runCode("import os; os.environ['A']", { envs: { A: 'b' } })
  assert.equal(r.text, "'b'")
  const c = await s.createCodeContext({ cwd: '/tmp' })
  assert.equal((await s.runCode('import os; os.getcwd()', { context: c })).text, "'/tmp'")
  assert.equal((await s.listCodeContexts()).length, 2)
  await s.restartCodeContext(c)
  await s.removeCodeContext(c)
  await assert.rejects(() => s.runCode('1', { context: c }))
  await assert.rejects(() => s.runCode('1', { language: 'r' }), /400/)
} finally {
  await s.kill()
}
console.log('ok')
