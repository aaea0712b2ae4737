// A server and a client on localhost, a worker thread, a child process and files.
const assert = require('assert');
const fs = require('fs');
const http = require('http');
const os = require('os');
const path = require('path');
const { execFileSync } = require('child_process');
const { Worker } = require('worker_threads');

async function main() {
  const dir = fs.mkdtempSync(path.join(os.tmpdir(), 'node-'));
  fs.writeFileSync(path.join(dir, 'data.json'), JSON.stringify({ n: 21 }));
  const server = http.createServer((req, res) => fs.createReadStream(path.join(dir, 'data.json')).pipe(res));
  await new Promise((resolve) => server.listen(0, 'localhost', resolve));
  const text = await new Promise((resolve, reject) => {
    http.get({ host: 'localhost', port: server.address().port }, (res) => {
      let body = '';
      res.on('data', (d) => { body += d; });
      res.on('end', () => resolve(body));
    }).on('error', reject);
  });
  server.close();
  const worker = new Worker("require('worker_threads').parentPort.once('message', (n) => require('worker_threads').parentPort.postMessage(2 * n))", { eval: true });
  worker.postMessage(JSON.parse(text).n);
  assert.strictEqual(await new Promise((resolve) => worker.once('message', resolve)), 42);
  await worker.terminate();
  assert.strictEqual(execFileSync(process.execPath, ['-p', '6 * 7']).toString(), '42\n');
  assert.strictEqual(os.hostname(), 'worker.example');
  fs.rmSync(dir, { recursive: true });
}

main().catch((err) => { console.error(err); process.exit(1); });
