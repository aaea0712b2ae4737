// Calls every method of the npm package `e2b` on a service, and prints a line of JSON for each: what came of it. See suite.py, whose
// names and outcomes these are. Arguments: the directory that the package is installed in, another template, an image in a registry, a part of a name.
import { createRequire } from 'node:module'
import assert from 'node:assert/strict'
import fs from 'node:fs'
import http from 'node:http'
import os from 'node:os'
import path from 'node:path'
import rest from './rest.mjs'

const [dir, other = 'debian', registry = '', only = ''] = process.argv.slice(2)
const e2b = createRequire(path.join(dir, 'x.js'))('e2b')
const { Sandbox } = e2b
const TEMPLATE = `suite-js-${process.pid}`
const cases = []
const add = (name, fn) => cases.push([name, fn])

class Refused extends Error {}
class Absent extends Error {}

async function refuses(fn, word = 'not supported') {
  try {
    await fn()
  } catch (e) {
    if (!String(e).includes(word)) throw e
    throw new Refused(`${e.name}: ${e.message}`)
  }
  throw new Error('it was not refused')
}

async function rejects(fn, ...names) {
  try {
    await fn()
  } catch (e) {
    const chain = []
    for (let p = e; p; p = Object.getPrototypeOf(p)) chain.push(p.constructor?.name)
    assert.ok(names.some((n) => chain.includes(n)), `${chain[0]}: ${e.message}`)
    return e
  }
  throw new Error(`want ${names}`)
}

const has = (obj, name) => {
  if (typeof obj?.[name] === 'undefined') throw new Absent(name)
}

async function until(fn, seconds = 20) {
  const end = Date.now() + seconds * 1000
  for (;;) {
    const v = await fn()
    if (v) return v
    assert.ok(Date.now() < end, 'it did not come to be in time')
    await new Promise((r) => setTimeout(r, 50))
  }
}

async function fresh(opts, fn, template = 'base') {
  const n = await Sandbox.create(template, { timeoutMs: 60_000, ...opts })
  try {
    return await fn(n)
  } finally {
    await n.kill()
  }
}

const nobody = 'sabcdabcdefghijklmno'
const gone = ['NotFoundError', 'SandboxNotFoundError', 'SandboxError']

add('Sandbox.create', () =>
  fresh({ metadata: { a: 'b c', 'k/1': '100%' }, envs: { X: '1' } }, async (n) => {
    const i = await n.getInfo()
    assert.deepEqual(i.metadata, { a: 'b c', 'k/1': '100%' })
    const life = i.endAt - i.startedAt
    assert.ok(life > 50_000 && life < 70_000, life)
    assert.equal((await n.commands.run('echo $X; id -un; pwd')).stdout, '1\nuser\n/home/user\n')
  }))
add('Sandbox.create(template)', async () => {
  await fresh({}, async (n) => assert.ok((await n.commands.run('cat /etc/debian_version')).stdout), other)
  await rejects(() => Sandbox.create('no-such-template'), ...gone)
})
add('Sandbox.create(wrong key)', () => rejects(() => Sandbox.create({ apiKey: 'e2b_' + '0'.repeat(50) }), 'AuthenticationError'))
add('Sandbox.create(secure=False)', () => fresh({ secure: false }, async (n) => assert.equal((await n.commands.run('echo hi')).stdout, 'hi\n')))
add('Sandbox.create(allow_internet_access=False)', () =>
  fresh({ allowInternetAccess: false }, async (n) => assert.equal((await n.getInfo()).allowInternetAccess, false)))
add('Sandbox.create(network)', () =>
  fresh({ network: { denyOut: ['0.0.0.0/0'], allowPublicTraffic: false } }, async (n) => {
    assert.ok(n.trafficAccessToken)
    const host = n.getHost(8124)
    assert.equal((await get('/', { Host: host })).status, 403)
    assert.equal((await get('/', { Host: host, 'e2b-traffic-access-token': n.trafficAccessToken })).status, 502)
  }))
add('Sandbox.create(lifecycle on_timeout=pause)', () =>
  fresh({ timeoutMs: 5_000, lifecycle: { onTimeout: 'pause', autoResume: true } }, async (n) => {
    assert.deepEqual((await n.getInfo()).lifecycle, { onTimeout: 'pause', autoResume: true })
    const h = await n.commands.run('sleep 1005', { background: true, timeoutMs: 0 })
    const over = h.wait().catch(() => {})
    await n.setTimeout(0)
    const paused = async () => (await n.getInfo()).state === 'paused'
    await until(paused)
    assert.equal(await n.isRunning(), false)
    await n.setTimeout(600_000)
    assert.equal((await n.commands.run(`kill -0 ${h.pid} && echo there`)).stdout, 'there\n')
    const i = await n.getInfo()
    assert.ok(i.state === 'running' && i.endAt - i.startedAt > 500_000)
    await n.setTimeout(0)
    await until(paused)
    assert.equal(await (await Sandbox.connect(n.sandboxId, { timeoutMs: 60_000 })).isRunning(), true)
    await n.kill()
    await over
  }))
add('Sandbox.create(lifecycle auto_resume=False)', () =>
  fresh({ lifecycle: { onTimeout: 'pause', autoResume: false } }, async (n) => {
    assert.deepEqual((await n.getInfo()).lifecycle, { onTimeout: 'pause', autoResume: false })
    await n.files.write('kept', '1')
    await (n.pause ?? n.betaPause).call(n)
    for (const request of [() => n.commands.run('true'), () => n.files.read('kept'), () => n.files.list('/'), () => n.files.write('x', 'y')]) {
      await rejects(request, 'TimeoutError', 'SandboxError')
    }
    assert.equal((await n.getInfo()).state, 'paused')
    assert.equal(await (await Sandbox.connect(n.sandboxId, { timeoutMs: 60_000 })).files.read('kept'), '1')
  }))
add('Sandbox.create(lifecycle on_timeout mode=filesystem)', () =>
  refuses(() => fresh({ lifecycle: { onTimeout: { action: 'pause', keepMemory: false } } }, () => {})))
add('Sandbox.create(mcp)', () => refuses(() => Sandbox.create({ timeoutMs: 60_000, mcp: { github: {} } })))
add('Sandbox.create(volume_mounts)', () => refuses(() => Sandbox.create({ timeoutMs: 60_000, volumeMounts: { '/data': 'v' } })))
add('Sandbox.connect', async (s) => {
  const n = await Sandbox.connect(s.sandboxId)
  assert.equal((await n.commands.run('echo $Y')).stdout, 'yes\n')
  await s.connect()
  await rejects(() => Sandbox.connect(nobody), ...gone)
  await rejects(() => Sandbox.connect('nonsense'), ...gone)
})
add('Sandbox.list', () =>
  fresh({ metadata: { suite: 'list 1 js' } }, (a) =>
    fresh({ metadata: { suite: 'list 1 js' } }, async (b) => {
      const p = Sandbox.list({ query: { metadata: { suite: 'list 1 js' } }, limit: 1 })
      const got = []
      while (p.hasNext) got.push(...(await p.nextItems()).map((i) => i.sandboxId))
      assert.deepEqual(got, [b.sandboxId, a.sandboxId])
      await (a.pause ?? a.betaPause).call(a)
      const q = Sandbox.list({ query: { metadata: { suite: 'list 1 js' }, state: ['paused'] } })
      assert.deepEqual((await q.nextItems()).map((i) => i.sandboxId), [a.sandboxId])
    })))
add('sandbox.get_info', async (s) => {
  const i = await s.getInfo()
  assert.ok(i.sandboxId === s.sandboxId && i.state === 'running' && i.cpuCount >= 1 && i.memoryMB > 0)
  await rejects(() => Sandbox.getInfo(nobody), ...gone)
})
add('sandbox.is_running, kill', async () => {
  const n = await Sandbox.create({ timeoutMs: 60_000 })
  assert.equal(await n.isRunning(), true)
  assert.equal(await n.kill(), true)
  assert.equal(await n.isRunning(), false)
  assert.equal(await n.kill(), false)
  await rejects(() => n.commands.run('true'), 'TimeoutError', 'SandboxError')
  await rejects(() => n.files.read('/etc/passwd'), 'TimeoutError', 'SandboxError')
})
add('sandbox.set_timeout', () =>
  fresh({}, async (n) => {
    await n.setTimeout(600_000)
    const i = await n.getInfo()
    assert.ok(i.endAt - i.startedAt > 500_000)
    await n.setTimeout(0)
    await until(async () => !(await n.isRunning()))
  }))
add('sandbox.pause, connect', () =>
  fresh({}, async (n) => {
    const h = await n.commands.run('sleep 1000', { background: true })
    const pause = (n.pause ?? n.betaPause).bind(n)
    await pause()
    assert.equal((await n.getInfo()).state, 'paused')
    assert.equal(await n.isRunning(), false)
    assert.notEqual(await pause(), true)
    const m = await Sandbox.connect(n.sandboxId, { timeoutMs: 120_000 })
    assert.equal(await m.isRunning(), true)
    assert.ok((await m.commands.list()).some((p) => p.pid === h.pid))
    await m.commands.kill(h.pid)
    await h.wait().catch(() => {})
  }))
add('sandbox.pause(keep_memory=False)', async (s) => {
  has(s, 'pause')
  await refuses(async () => {
    await s.pause({ keepMemory: false })
    await s.connect()
  })
})
add('sandbox.update_network', async (s) => {
  has(s, 'updateNetwork')
  await refuses(() => s.updateNetwork({ denyOut: ['0.0.0.0/0'] }), 'without a network')
})
add('sandbox.get_metrics', async (s) => {
  const m = await s.getMetrics()
  assert.ok(m.length === 1 && m[0].memTotal > 0 && m[0].diskTotal > 0)
})
add('sandbox.create_snapshot, list_snapshots, delete_snapshot', async (s) => {
  has(s, 'createSnapshot')
  await fresh({}, async (n) => {
    await n.files.write('kept.txt', 'kept')
    const sn = await n.createSnapshot()
    await fresh({}, async (m) => assert.equal(await m.files.read('kept.txt'), 'kept'), sn.snapshotId)
    assert.deepEqual((await n.listSnapshots().nextItems()).map((x) => x.snapshotId), [sn.snapshotId])
    assert.equal(await Sandbox.deleteSnapshot(sn.snapshotId), true)
    assert.equal(await Sandbox.deleteSnapshot(sn.snapshotId), false)
  })
})
add('sandbox.create_snapshot(name)', async (s) => {
  has(s, 'createSnapshot')
  await fresh({}, async (n) => {
    const sn = await n.createSnapshot({ name: 'suite-js' })
    if (!sn.names?.length) throw new Absent('name')
    await fresh({}, async () => {}, 'suite-js')
    assert.equal(await Sandbox.deleteSnapshot('suite-js'), true)
  })
})
add('sandbox.fork', async (s) => {
  has(s, 'fork')
  await fresh({}, async (n) => {
    await n.files.write('who', 'parent')
    for (const f of await n.fork({ count: 2 })) {
      assert.ok(!(f instanceof Error), f)
      assert.equal(await f.files.read('who'), 'parent')
      await f.kill()
    }
  })
})

add('commands.run', async (s) => {
  const out = []
  const err = []
  const r = await s.commands.run("echo a; echo b >&2; printf '\\xff'", { onStdout: (x) => void out.push(x), onStderr: (x) => void err.push(x) })
  assert.ok(r.exitCode === 0 && r.stdout.startsWith('a\n') && r.stderr === 'b\n')
  assert.ok(out.join('').startsWith('a\n') && err.join('') === 'b\n')
  const e = await rejects(() => s.commands.run('echo x; exit 7'), 'CommandExitError')
  assert.ok(e.exitCode === 7 && e.stdout === 'x\n')
  assert.equal((await s.commands.run("head -c 300000 /dev/zero | tr '\\0' x")).stdout.length, 300000)
})
add('commands.run(user, cwd, envs)', async (s) => {
  assert.equal((await s.commands.run('id -un; pwd; echo $A', { user: 'root', cwd: '/tmp', envs: { A: 'b c' } })).stdout, 'root\n/tmp\nb c\n')
  await rejects(() => s.commands.run('true', { user: 'nobody-here' }), 'AuthenticationError')
  await rejects(() => s.commands.run('true', { cwd: '/no/such' }), 'SandboxError')
})
add('commands.run(timeout)', async (s) => {
  await rejects(() => s.commands.run('sleep 1001', { timeoutMs: 1000 }), 'TimeoutError')
  await until(async () => (await s.commands.run("pgrep -fc '[s]leep 1001' || true")).stdout.trim() === '0')
})
add('commands.run(background), wait, iterate', async (s) => {
  const h = await s.commands.run('for i in 1 2 3; do echo $i; done; exit 2', { background: true })
  const e = await rejects(() => h.wait(), 'CommandExitError')
  assert.ok(e.exitCode === 2 && e.stdout === '1\n2\n3\n')
  assert.equal((await s.commands.run('sleep 1002 & echo done', { timeoutMs: 20_000 })).stdout, 'done\n')
  await s.commands.run("pkill -f '[s]leep 1002' || true")
})
add('commands.connect, disconnect', async (s) => {
  let h = await s.commands.run('read x; echo got $x', { background: true, stdin: true })
  await h.disconnect()
  const c = await s.commands.connect(h.pid)
  await s.commands.sendStdin(h.pid, 'word\n')
  assert.equal((await c.wait()).stdout, 'got word\n')
  h = await s.commands.run('echo early; exit 0', { background: true })
  await h.wait()
  assert.equal((await (await s.commands.connect(h.pid)).wait()).stdout, 'early\n')
  await rejects(() => s.commands.connect(999999), 'NotFoundError', 'SandboxError')
})
add('commands.send_stdin, close_stdin', async (s) => {
  const h = await s.commands.run('cat; echo end', { background: true, stdin: true })
  await s.commands.sendStdin(h.pid, 'hello\n')
  has(s.commands, 'closeStdin')
  await s.commands.closeStdin(h.pid)
  assert.equal((await h.wait()).stdout, 'hello\nend\n')
  await rejects(() => s.commands.sendStdin(999999, 'x'), 'NotFoundError', 'SandboxError')
})
add('commands.list, kill', async (s) => {
  const h = await s.commands.run('sleep 1003', { background: true, cwd: '/tmp', envs: { Q: '1' } })
  const p = (await s.commands.list()).find((x) => x.pid === h.pid)
  assert.ok(p.cmd === '/bin/bash' && p.args.includes('sleep 1003') && p.cwd === '/tmp' && p.envs.Q === '1')
  const waited = rejects(() => h.wait(), 'CommandExitError')
  assert.equal(await s.commands.kill(h.pid), true)
  await waited
  assert.equal(await s.commands.kill(h.pid), false)
})
add('pty.create, send_stdin, resize, kill', async (s) => {
  let seen = ''
  const say = (t) => new TextEncoder().encode(t)
  const h = await s.pty.create({ cols: 80, rows: 24, cwd: '/tmp', onData: (b) => void (seen += Buffer.from(b)) })
  const end = h.wait().catch(() => {})
  await s.pty.sendInput(h.pid, say('stty size; pwd; echo $TERM\n'))
  await until(() => seen.includes('xterm-256color\r\n'))
  assert.ok(seen.includes('24 80') && seen.includes('/tmp'), seen)
  await s.pty.resize(h.pid, { cols: 100, rows: 30 })
  await s.pty.sendInput(h.pid, say("stty size; echo en''d\n"))
  await until(() => seen.includes('end\r\n'))
  assert.ok(seen.includes('30 100'))
  await rejects(() => s.pty.resize(h.pid, { cols: 0, rows: 0 }), 'InvalidArgumentError', 'SandboxError')
  assert.equal(await s.pty.kill(h.pid), true)
  await end
  assert.equal(await s.pty.kill(h.pid), false)
})
add('pty.connect', async (s) => {
  has(s.pty, 'connect')
  const h = await s.pty.create({ cols: 80, rows: 24, onData: () => {} })
  await h.disconnect()
  let seen = ''
  const c = await s.pty.connect(h.pid, { onData: (b) => void (seen += Buffer.from(b)) })
  await s.pty.sendInput(h.pid, new TextEncoder().encode('echo hi-$((1+1)); exit\n'))
  await c.wait()
  assert.ok(seen.includes('hi-2'), seen)
})

add('files.write, read', async (s) => {
  const w = await s.files.write('dir/a.txt', 'text ä')
  assert.equal(w.path, '/home/user/dir/a.txt')
  assert.equal(await s.files.read('dir/a.txt'), 'text ä')
  const data = new Uint8Array(1_280_000).map((_, i) => i % 256)
  await s.files.write('/home/user/b.bin', data.buffer)
  assert.ok(Buffer.from(await s.files.read('b.bin', { format: 'bytes' })).equals(Buffer.from(data)))
  let n = 0
  for await (const chunk of await s.files.read('b.bin', { format: 'stream' })) n += chunk.length
  assert.equal(n, data.length)
  assert.equal((await s.commands.run('stat -c %U b.bin')).stdout, 'user\n')
  await s.files.write('empty', '')
  assert.equal(await s.files.read('empty'), '')
  await rejects(() => s.files.read('nope'), 'NotFoundError')
  await rejects(() => s.files.read('/etc'), 'InvalidArgumentError')
  await rejects(() => s.files.write('/etc/x', 'no'), 'SandboxError')
  await s.files.write('/etc/x', 'yes', { user: 'root' })
  assert.equal(await s.files.read('/etc/x', { user: 'root' }), 'yes')
})
add('files.write(stream)', async (s) => {
  await s.files.write('stream.bin', new Blob(['0123456789'.repeat(100_000)]).stream())
  assert.equal((await s.commands.run('stat -c %s stream.bin')).stdout, '1000000\n')
})
add('files.write, read (gzip)', async (s) => {
  await s.files.write('z.txt', 'z'.repeat(100_000), { gzip: true })
  assert.equal((await s.commands.run('stat -c %s z.txt')).stdout, '100000\n')
  assert.equal(await s.files.read('z.txt', { gzip: true }), 'z'.repeat(100_000))
})
add('files.write_files', async (s) => {
  const out = await s.files.write([{ path: 'many/1', data: '1' }, { path: 'many/sub/2', data: '2' }])
  assert.deepEqual(out.map((o) => o.path), ['/home/user/many/1', '/home/user/many/sub/2'])
  assert.equal(await s.files.read('many/sub/2'), '2')
  if (s.files.writeFiles) assert.equal((await s.files.writeFiles([{ path: 'many/3', data: '3' }])).length, 1)
})
add('files.write(metadata)', async (s) => {
  const w = await s.files.write('meta', 'x', { metadata: { Author: 'A b', 'k.1_2': '~!' } })
  const want = { author: 'A b', 'k.1_2': '~!' }
  assert.deepEqual({ ...w.metadata }, want)
  assert.deepEqual({ ...(await s.files.getInfo('meta')).metadata }, want)
  assert.deepEqual({ ...(await s.files.list('.')).find((e) => e.name === 'meta').metadata }, want)
  assert.deepEqual({ ...(await s.files.rename('meta', 'meta2')).metadata }, want)
  await s.files.write('meta2', 'y')
  assert.equal((await s.files.getInfo('meta2')).metadata, undefined)
  await rejects(() => s.files.write('meta5', 'x', { metadata: { a: 'b'.repeat(5000) } }), 'InvalidArgumentError')
  assert.equal(await s.files.exists('meta5'), false)
})
add('files.list', async (s) => {
  await s.commands.run('rm -rf tree; mkdir -p tree/a/b; echo x > tree/f; ln -s f tree/l; ln -s nowhere tree/d; chmod 640 tree/f')
  const got = Object.fromEntries((await s.files.list('tree')).map((e) => [e.name, e]))
  assert.deepEqual(Object.keys(got).sort(), ['a', 'd', 'f', 'l'])
  const f = got.f
  assert.ok(f.type === 'file' && f.size === 2 && f.permissions === '-rw-r-----' && f.owner === 'user' && f.group === 'user')
  assert.ok(got.a.type === 'dir' && got.a.path === '/home/user/tree/a')
  assert.ok((await s.files.list('tree', { depth: 2 })).some((e) => e.path === '/home/user/tree/a/b'))
  await rejects(() => s.files.list('no-such-dir'), 'NotFoundError')
  await rejects(() => s.files.list('tree/f'), 'InvalidArgumentError', 'SandboxError')
})
add('files.exists, get_info', async (s) => {
  await s.files.write('info.txt', '12345')
  assert.ok((await s.files.exists('info.txt')) && !(await s.files.exists('info.tx')))
  const i = await s.files.getInfo('info.txt')
  assert.ok(i.size === 5 && i.path === '/home/user/info.txt' && i.mode === 0o644)
  await rejects(() => s.files.getInfo('info.tx'), 'NotFoundError')
})
add('files.make_dir, rename, remove', async (s) => {
  assert.equal(await s.files.makeDir('m/n/o'), true)
  assert.equal(await s.files.makeDir('m/n/o'), false)
  await s.files.write('m/file', '1')
  assert.equal((await s.files.rename('m/file', 'm/q/moved')).path, '/home/user/m/q/moved')
  await rejects(() => s.files.rename('m/none', 'm/x'), 'NotFoundError')
  await s.files.remove('m')
  assert.equal(await s.files.exists('m'), false)
})
add('files.watch_dir', async (s) => {
  await s.files.makeDir('watched/sub')
  const seen = []
  let over
  const w = await s.files.watchDir('watched', (e) => seen.push(`${e.type} ${e.name}`), { recursive: true, onExit: (e) => (over = [e]) })
  await s.commands.run('cd watched && echo 1 > sub/a && mv sub/a b && rm b && mkdir new')
  await until(() => seen.includes('create new'))
  for (const want of ['create sub/a', 'write sub/a', 'rename sub/a', 'create b', 'remove b']) assert.ok(seen.includes(want), `${want}: ${seen}`)
  await w.stop()
  await until(() => over)
  over = undefined
  await s.files.watchDir('watched', () => {}, { onExit: (e) => (over = [e]) })
  await s.files.remove('watched')
  assert.deepEqual(await until(() => over), [undefined])
  await rejects(() => s.files.watchDir('none', () => {}), 'NotFoundError')
})

function get(target, headers = {}, method = 'GET', body) {
  const base = new URL(process.env.E2B_API_URL)
  return new Promise((resolve, reject) => {
    const r = http.request({ host: base.hostname, port: base.port, path: target, method, headers, timeout: 20_000 }, (res) => {
      let text = ''
      res.on('data', (b) => (text += b))
      res.on('end', () => resolve({ status: res.statusCode, text }))
    })
    r.on('error', reject)
    r.end(body)
  })
}
add('sandbox.download_url, upload_url', async (s) => {
  await s.files.write('signed.txt', 'signed')
  const head = { 'E2b-Sandbox-Id': s.sandboxId, 'E2b-Sandbox-Port': '49983' }
  const of = (u) => u.slice(process.env.E2B_SANDBOX_URL.length)
  const url = of(await s.downloadUrl('signed.txt', { useSignatureExpiration: 60_000 }))
  assert.deepEqual(await get(url, head), { status: 200, text: 'signed' })
  assert.equal((await get(url.replace('signed.txt', 'b.bin'), head)).status, 401)
  const up = of(await s.uploadUrl('up.txt'))
  const body = '--B\r\nContent-Disposition: form-data; name="file"; filename="x"\r\n\r\nupped\r\n--B--\r\n'
  assert.equal((await get(up, { ...head, 'Content-Type': 'multipart/form-data; boundary=B' }, 'POST', body)).status, 200)
  assert.equal(await s.files.read('up.txt'), 'upped')
})
add("sandbox.get_host (a program's port)", async (s) => {
  const h = await s.commands.run('mkdir -p www; echo page > www/index.html; cd www; exec python3 -m http.server 8123', { background: true })
  const host = s.getHost(8123)
  assert.ok(host.startsWith(`8123-${s.sandboxId}.`))
  await until(async () => (await get('/', { Host: host })).text === 'page\n')
  const end = h.wait().catch(() => {})
  await h.kill()
  await end
})
add('git.init, add, commit, status, branches', async (s) => {
  has(s, 'git')
  await s.git.init('repo')
  await s.git.configureUser('A', 'a@example.org', { scope: 'local', path: '/home/user/repo' })
  await s.files.write('repo/f', '1')
  await s.git.add('repo')
  await s.git.commit('repo', 'first')
  assert.equal((await s.git.status('repo')).isClean, true)
})
add('Template.build', async () => {
  has(e2b, 'Template')
  const context = fs.mkdtempSync(path.join(os.tmpdir(), 'suite-'))
  try {
    fs.writeFileSync(path.join(context, 'f.txt'), 'one $X "two"')
    const t = e2b.Template({ fileContextPath: context })
      .fromImage(other)
      .setEnvs({ GREETING: 'it is "5 $HOME"' })
      .runCmd("mkdir made && cat > made/here <<'EOF'\n$GREETING\nEOF")
      .runCmd('id -un > /root/who', { user: 'root' })
      .setWorkdir('/home/user/work')
      .copy('f.txt', 'f.txt', { mode: 0o600 })
      .setStartCmd('python3 -m http.server 8123', `python3 -c 'import socket; socket.create_connection(("127.0.0.1", 8123))'`)
    const logs = []
    await e2b.Template.build(t, { alias: TEMPLATE, cpuCount: 1, memoryMB: 512, onBuildLogs: (e) => logs.push(e.message) })
    assert.ok(logs.some((l) => l.includes('mkdir made')), `${logs}`)
  } finally {
    fs.rmSync(context, { recursive: true })
  }
  const b = await e2b.Sandbox.create(TEMPLATE, { timeoutMs: 60_000 })
  try {
    const r = await b.commands.run('cat /home/user/made/here; echo $GREETING; id -un; pwd')
    assert.equal(r.stdout, '$GREETING\nit is "5 $HOME"\nuser\n/home/user/work\n')
    assert.equal(await b.files.read('/home/user/work/f.txt'), 'one $X "two"')
    await b.commands.run(`python3 -c 'import socket; socket.create_connection(("127.0.0.1", 8123))'`)
  } finally {
    await b.kill()
  }
})
add('Template.build(fails)', async () => {
  has(e2b, 'Template')
  const t = e2b.Template().fromImage(other).runCmd('echo before; exit 7')
  await assert.rejects(() => e2b.Template.build(t, { alias: TEMPLATE + '-bad' }), /ended with 7/)
})
add('Template.build(from_template), tags', async () => {
  has(e2b, 'Template')
  has(e2b.Template, 'getTags')
  await e2b.Template.build(e2b.Template().fromTemplate(TEMPLATE).runCmd('echo second > second'), TEMPLATE + '-2', { tags: ['v1'] })
  await e2b.Template.assignTags(TEMPLATE + '-2:v1', ['stable'])
  assert.deepEqual((await e2b.Template.getTags(TEMPLATE + '-2')).map((t) => t.tag).sort(), ['stable', 'v1'])
  await e2b.Template.removeTags(TEMPLATE + '-2', ['v1'])
  const b = await e2b.Sandbox.create(TEMPLATE + '-2:stable', { timeoutMs: 60_000 })
  try {
    assert.equal((await b.commands.run('cat second; pwd')).stdout, 'second\n/home/user/work\n')
  } finally {
    await b.kill()
  }
})
add('Template.exists', async () => {
  has(e2b, 'Template')
  const fn = e2b.Template.exists ?? e2b.Template.aliasExists
  assert.equal(await fn.call(e2b.Template, 'base'), true)
  assert.equal(await fn.call(e2b.Template, 'no-such-template'), false)
})

rest(add, { e2b, has, refuses, rejects, until, fresh, Refused, TEMPLATE, other, registry })

const s = await Sandbox.create({ timeoutMs: 600_000, envs: { Y: 'yes' } })
try {
  for (const [name, fn] of cases) {
    if (!name.includes(only)) continue
    const start = Date.now()
    let outcome = 'works'
    let note = ''
    try {
      await fn(s)
    } catch (e) {
      outcome = e instanceof Refused ? 'refused' : e instanceof Absent ? 'absent' : 'failed'
      note = outcome === 'failed' ? String(e.stack) : e.message
    }
    console.log(JSON.stringify({ method: name, outcome, note, seconds: (Date.now() - start) / 1000 }))
  }
} finally {
  await s.kill().catch(() => {})
}
process.exit(0)
