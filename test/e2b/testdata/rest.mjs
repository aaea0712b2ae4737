// The cases of suite.mjs that are about what the package offers beside the main road, and the one that finds what no case names. See
// rest.py, whose names these are.
import assert from 'node:assert/strict'
import fs from 'node:fs'
import os from 'node:os'
import path from 'node:path'

// What is no part of the interface, although JavaScript shows it.
const INTERNAL = new Set(
  ('collectStackTrace build instructionsWithHashes serialize resolveOpts resolveApiOpts fileUrl createSandbox forkSandbox connectSandbox ' +
    'getFullInfo checkHealth start runGit runShell getRemoteUrl resolveRemoteName withRemoteCredentials hasUpstream constructor').split(' '),
)
// Objects of volumes have methods too; there are no volumes, and so no such object.

export default function (add, { e2b, has, refuses, rejects, until, fresh, Refused, TEMPLATE, other, registry }) {
  const { Sandbox, Template, Volume, Secret } = e2b
  const allRefused = async (all) => {
    let said
    for (const fn of all) {
      try {
        await refuses(fn)
      } catch (e) {
        if (!(e instanceof Refused)) throw e
        said = e
      }
    }
    throw said
  }
  add('E2B(api_key).Sandbox', async () => {
    has(e2b, 'E2B')
    const n = await new e2b.E2B({ apiKey: process.env.E2B_API_KEY }).Sandbox.create({ timeoutMs: 60_000 })
    await n.kill()
  })
  add('sandbox.beta_pause', () =>
    fresh({}, async (n) => {
      has(n, 'betaPause')
      await n.betaPause()
      assert.equal((await n.getInfo()).state, 'paused')
    }))
  add('sandbox.get_mcp_url, get_mcp_token', async (s) => {
    assert.ok(s.getMcpUrl().includes('50005'))
    await refuses(() => s.getMcpToken(), 'no such file')
  })
  add('Sandbox.create(iam)', async () => {
    has(Secret, 'iamToken')
    await refuses(() => fresh({ iam: { tokens: { t: Secret.iamToken({ audience: 'a', tokenType: 'JWT-SVID' }) } } }, () => {}))
  })
  add('Sandbox.create(network rules, secrets)', async () => {
    has(Secret, 'fill')
    const rules = { 'example.org': [{ transform: { headers: { X: Secret.fill('s') } } }] }
    await refuses(() => fresh({ network: { allowOut: ['example.org'], rules } }, () => {}))
  })
  add('Secret.create, update, get_info, list, exists, destroy', () => {
    has(Secret, 'create')
    return allRefused([
      () => Secret.create('n', 'v'), () => Secret.update('n', 'v'), () => Secret.getInfo('n'), () => Secret.list().nextItems(),
      () => Secret.exists('n'), () => Secret.destroy('n'),
    ])
  })
  add('Volume.create, connect, get_info, list, destroy', () => {
    has(Volume, 'create')
    return allRefused([() => Volume.create('n'), () => Volume.connect('v'), () => Volume.getInfo('v'), () => Volume.list(), () => Volume.destroy('v')])
  })
  add('commands handle: send_stdin, close_stdin, disconnect', async (s) => {
    const h = await s.commands.run('cat', { background: true, stdin: true })
    has(h, 'sendStdin')
    has(h, 'closeStdin')
    await h.sendStdin('by the handle\n')
    await h.closeStdin()
    assert.equal((await h.wait()).stdout, 'by the handle\n')
    const d = await s.commands.run('sleep 1', { background: true })
    await d.disconnect()
  })
  add('pty.stream_input', async (s) => {
    has(s.pty, 'streamInput')
  })
  add('git: remotes, clone, push, pull, reset, restore, config', async (s) => {
    has(s, 'git')
    const [g, repo, bare] = [s.git, '/home/user/fulljs', '/home/user/fulljs.git']
    await g.init(bare, { bare: true })
    await g.init(repo, { initialBranch: 'main' })
    await g.configureUser('A', 'a@example.org', { scope: 'global' })
    await g.setConfig('dsec.key', 'value', { scope: 'local', path: repo })
    assert.equal((await g.getConfig('dsec.key', { scope: 'local', path: repo })).trim(), 'value')
    await s.files.write(`${repo}/f`, '1')
    await g.add(repo)
    await g.commit(repo, 'first')
    await g.remoteAdd(repo, 'origin', bare)
    assert.equal(await g.remoteGet(repo, 'origin'), bare)
    await g.push(repo, { remote: 'origin', branch: 'main' })
    await g.clone(bare, { path: '/home/user/clonedjs', branch: 'main' })
    await s.files.write(`${repo}/f`, '2')
    await g.restore(repo, { paths: ['f'] })
    assert.equal(await s.files.read(`${repo}/f`), '1')
    await s.files.write(`${repo}/f`, '3')
    await g.add(repo)
    await g.commit(repo, 'second')
    await g.push(repo, { remote: 'origin', branch: 'main' })
    await g.pull('/home/user/clonedjs', { remote: 'origin', branch: 'main' })
    assert.equal(await s.files.read('/home/user/clonedjs/f'), '3')
    await g.reset(repo, { mode: 'hard', target: 'HEAD~1' })
    assert.equal(await s.files.read(`${repo}/f`), '1')
    await g.createBranch(repo, 'side')
    await g.checkoutBranch(repo, 'main')
    await g.deleteBranch(repo, 'side', { force: true })
    assert.ok(!(await g.branches(repo)).branches.includes('side'))
    await g.dangerouslyAuthenticate({ username: 'u', password: 'p', host: 'example.org' })
  })
  add('Template: from_*_image, from_dockerfile, *_install, to_json, to_dockerfile', async () => {
    const T = Template
    const images = {
      fromDebianImage: 'debian:', fromUbuntuImage: 'ubuntu:', fromPythonImage: 'python:', fromNodeImage: 'node:', fromBunImage: 'oven/bun:',
      fromAlpineImage: 'alpine:', fromArchImage: 'archlinux:', fromFedoraImage: 'fedora:', fromBaseImage: 'e2bdev/base',
    }
    for (const [made, image] of Object.entries(images)) {
      if (T()[made]) assert.ok(JSON.parse(await T.toJSON(T()[made](), false)).fromImage.startsWith(image), made)
    }
    let t = T().fromDockerfile('FROM debian:12\nRUN true\nWORKDIR /w\nENV A=b\n')
    t = t.aptInstall('git').pipInstall('wheel').npmInstall('left-pad')
    if (t.bunInstall) t = t.bunInstall('left-pad')
    for (const i of JSON.parse(await T.toJSON(t, false)).steps) assert.ok(['RUN', 'WORKDIR', 'ENV', 'USER', 'COPY'].includes(i.type), i.type)
    assert.ok(T.toDockerfile(t).includes('RUN true'))
    if (t.addMcpServer) assert.throws(() => t.addMcpServer('exa'))
    if (t.betaDevContainerPrebuild) {
      assert.throws(() => t.betaDevContainerPrebuild('/d'))
      assert.throws(() => t.betaSetDevContainerStart('/d'))
    }
  })
  add('Template.from_aws_registry, from_gcp_registry, from_image(credentials)', () => {
    has(Template(), 'fromAWSRegistry')
    const build = (t) => () => Template.build(t.runCmd('true'), { alias: TEMPLATE + '-reg' })
    return allRefused([
      build(Template().fromAWSRegistry('1.dkr.ecr.eu-west-1.amazonaws.com/i', { accessKeyId: 'k', secretAccessKey: 's', region: 'eu-west-1' })),
      build(Template().fromGCPRegistry('eu.gcr.io/p/i', { serviceAccountJSON: { type: 'service_account' } })),
      build(Template().fromImage('registry.example.org/i', { username: 'u', password: 'p' })),
    ])
  })
  add('Template.build(from_image of a registry)', async () => {
    await Template.build(Template().fromImage(registry).runCmd('echo made > made'), { alias: TEMPLATE + '-image' })
    await fresh({}, async (b) => {
      assert.equal((await b.commands.run('cat made; echo $OF_THE_IMAGE; id -un; pwd')).stdout, 'made\nyes\nuser\n/home/user\n')
    }, TEMPLATE + '-image')
    await rejects(() => Template.build(Template().fromImage(registry + '-none').runCmd('true'), { alias: TEMPLATE + '-image' }), 'BuildError')
  })
  add('Template: copy_items, git_clone, make_dir, make_symlink, remove, rename, set_user, set_ready_cmd, skip_cache', async () => {
    const context = fs.mkdtempSync(path.join(os.tmpdir(), 'suite-'))
    try {
      for (const name of ['a', 'b']) fs.writeFileSync(path.join(context, name), name)
      const t = Template({ fileContextPath: context }).fromImage(other)
        .copyItems([{ src: 'a', dest: '/home/user/a' }, { src: 'b', dest: '/home/user/b' }])
        .runCmd('git init -q /home/user/origin && cd /home/user/origin && git -c user.name=A -c user.email=a commit -q --allow-empty -m first')
        .gitClone('/home/user/origin', '/home/user/clone')
        .makeDir(['/home/user/d', '/home/user/e'], { mode: 0o750 })
        .makeSymlink('/home/user/a', '/home/user/link')
        .rename('/home/user/b', '/home/user/c')
        .remove('/home/user/e', { recursive: true })
        .skipCache()
        .setUser('root')
        .runCmd('id -un > /who')
        .setUser('user')
        .setReadyCmd('test -d /home/user/clone/.git')
      await Template.build(t, { alias: TEMPLATE + '-steps' })
    } finally {
      fs.rmSync(context, { recursive: true })
    }
    await fresh({}, async (b) => {
      const out = (await b.commands.run('cat ~/a ~/c ~/link /who; ls ~; stat -c %a ~/d; git -C ~/clone log --format=%s')).stdout
      assert.equal(out, 'abaroot\na\nc\nclone\nd\nlink\norigin\n750\nfirst\n')
    }, TEMPLATE + '-steps')
  })
  add('Template.build_in_background, get_build_status, alias_exists', async () => {
    has(Template, 'buildInBackground')
    const info = await Template.buildInBackground(Template().fromImage(other).runCmd('echo in the background'), { alias: TEMPLATE + '-back' })
    const logs = []
    await until(async () => {
      const got = await Template.getBuildStatus(info, { logsOffset: logs.length })
      logs.push(...got.logEntries.map((e) => e.message))
      return got.status === 'ready'
    }, 120)
    assert.ok(logs.some((l) => l.includes('in the background')), `${logs}`)
    if (Template.aliasExists) assert.equal(await Template.aliasExists(TEMPLATE + '-back'), true)
  })
  add('every method is named by a case', async (s) => {
    const text = ['suite.mjs', 'rest.mjs'].map((f) => fs.readFileSync(new URL(f, import.meta.url), 'utf8')).join('')
    const methods = (o) => {
      const found = new Set()
      for (; o && o !== Object.prototype && o !== Function.prototype; o = Object.getPrototypeOf(o)) {
        for (const [k, d] of Object.entries(Object.getOwnPropertyDescriptors(o))) {
          if (typeof d.value === 'function' && !INTERNAL.has(k) && !k.startsWith('_') && !/^class /.test(d.value)) found.add(k)
        }
      }
      return [...found]
    }
    const offers = { Sandbox: [Sandbox, Sandbox.prototype], commands: [s.commands], files: [s.files], pty: [s.pty], git: s.git ? [s.git] : [], Template: [Template, Template()], Volume: Volume ? [Volume] : [], Secret: Secret ? [Secret] : [] }
    const missing = []
    for (const [name, all] of Object.entries(offers)) {
      for (const m of all.flatMap(methods)) {
        const how = { Sandbox: String.raw`\b(Sandbox|[abnms])`, Template: String.raw`(\b(Template|T|t)|\))\s*`, git: String.raw`\b(git|g)` }[name] ?? String.raw`\b${name}`
        if (new RegExp(String.raw`${how}\.${m}\b`).test(text) || text.includes(`${m}:`) || text.includes(`'${m}'`)) continue
        missing.push(`${name}.${m}`)
      }
    }
    assert.deepEqual(missing, [])
  })
}
