// The clients of the TypeScript SDK against a host: `sdk.mjs SDK TRANSPORT`.
//
// SDK is `v1`, which speaks the revision 2025-11-25, or `v2`, which speaks 2026-07-28.
// TRANSPORT is `http`, with BACKLOT_URL and BACKLOT_TOKEN set, or `stdio`, with the command
// that serves in BACKLOT_COMMAND, as JSON. With a third word, `ends`, the host is the process
// that serves, and ends with its client.

import assert from "node:assert/strict";
import { setTimeout as pause } from "node:timers/promises";

const [sdk, transport, host] = process.argv.slice(2);
const about = { name: "backlot-tests", version: "1.0.0" };
const capabilities = { elicitation: { form: {} } };
const person = { username: "ada", email: "ada@example.com" };

// Is told whenever the list of tools has changed.
let changed = () => {};
const listChanged = { tools: { onChanged: () => changed() } };

// Connects a client whose person answers every question in the same way.
const connect = {
  async v1() {
    const { Client } = await import("@modelcontextprotocol/sdk/client/index.js");
    const { ElicitRequestSchema } = await import("@modelcontextprotocol/sdk/types.js");
    const http = await import("@modelcontextprotocol/sdk/client/streamableHttp.js");
    const stdio = await import("@modelcontextprotocol/sdk/client/stdio.js");
    const client = new Client(about, { capabilities, listChanged });
    client.setRequestHandler(ElicitRequestSchema, () => ({ action: "accept", content: person }));
    await client.connect(reach({ ...http, ...stdio }));
    return {
      client,
      revision: "2025-11-25",
      call: (name, args, options) => client.callTool({ name, arguments: args }, undefined, options),
    };
  },
  async v2() {
    const { Client, ...http } = await import("@modelcontextprotocol/client");
    const stdio = await import("@modelcontextprotocol/client/stdio");
    const revision = "2026-07-28";
    const versionNegotiation = { mode: { pin: revision } };
    const client = new Client(about, { capabilities, listChanged, versionNegotiation });
    client.setRequestHandler("elicitation/create", () => ({ action: "accept", content: person }));
    await client.connect(reach({ ...http, ...stdio }));
    assert.equal(client.getNegotiatedProtocolVersion(), revision);
    return { client, revision, call: (name, args, options) => client.callTool({ name, arguments: args }, options) };
  },
}[sdk];

function reach({ StreamableHTTPClientTransport, StdioClientTransport }) {
  if (transport === "http") {
    const headers = { authorization: `Bearer ${process.env.BACKLOT_TOKEN}` };
    return new StreamableHTTPClientTransport(new URL(process.env.BACKLOT_URL), { requestInit: { headers } });
  }
  const [command, ...args] = JSON.parse(process.env.BACKLOT_COMMAND);
  return new StdioClientTransport({ command, args, env: process.env, stderr: "inherit" });
}

const words = ({ content }) => content.map(({ text }) => text).join("\n");
const task = ({ _meta }) => _meta["backlot/task"];
const step = (what) => console.log(`ok: ${what}`);

let { client, revision, call } = await connect();
const status = (id, wait) => call("task_status", { task_id: id, wait_seconds: wait });
const spawn = async (kind, input) => task(await call("spawn_task", { kind, input })).task_id;

// List. A host that has just started tells of the kinds that it loads.
const wanted = ["spawn_task", "task_status", "task_retry", "task_stop", "greet", "slow_compute", "test_error_handling"];
for (;;) {
  const change = new Promise((resolve) => (changed = resolve));
  const names = (await client.listTools()).tools.map(({ name }) => name);
  if (wanted.every((name) => names.includes(name))) break;
  await Promise.race([change, pause(30_000, "late", { ref: false })]).then((it) => assert.notEqual(it, "late", `${names}`));
}
step(`${revision} over ${transport}: listed`);

// Call.
assert.match(words(await call("greet", { name: "Ada" })), /^Hello, Ada!/);
const progress = [];
await call("test_tool_with_progress", {}, { onprogress: (it) => progress.push(it.progress) });
assert(progress.length >= 3, `progress ${progress}`);
const asked = words(await call("test_elicitation", { message: "Who are you?" }));
assert.match(asked, /"username":"ada"/);
const wrong = await call("greet", {});
assert.equal(wrong.isError, true);
assert.match(words(wrong), /name/);
step("called, with progress, a question and an error");

// In the background, and looked at.
const slow = await spawn("slow-compute", { seconds: 1 });
assert.equal(task(await status(slow, 0)).status, "working");
const done = await status(slow, 30);
assert.equal(task(done).status, "completed");
assert.match(words(done), /slow-compute/);
step("started in the background, looked at and waited for");

// Told of once, with whatever is called next.
const quick = (await spawn("slow-compute", { seconds: 0.1 })).slice(0, 8);
let told = "";
for (let tries = 0; !told.includes(quick) && tries < 100; tries++) {
  await pause(100);
  told = words(await call("greet", { name: "Ada" }));
}
assert.match(told, /\[task-notification\]/);
await pause(300);
assert(!words(await call("greet", { name: "Ada" })).includes(quick), "it is told once");
step("told of its end, once");

// Stopped.
const endless = await spawn("slow-compute", { seconds: 600 });
await call("task_stop", { task_id: endless, reason: "not wanted" });
assert.equal(task(await status(endless, 30)).status, "cancelled");
step("stopped");

// Retried.
const failing = await spawn("test-error-handling", {});
const failed = await status(failing, 30);
assert.equal(task(failed).status, "failed");
assert.match(words(failed), /intentionally/);
await call("task_retry", { task_id: failing });
const again = task(await status(failing, 30));
assert.deepEqual([again.status, again.attempt], ["failed", 2]);
step("retried");

// A foreground call that is given up takes its work with it.
const stop = new AbortController();
const given = call("slow_compute", { seconds: 500, label: "given up" }, { signal: stop.signal });
await pause(500);
stop.abort("given up");
await assert.rejects(given);
let left;
for (let tries = 0; tries < 100; tries++) {
  left = words(await call("task_status", {}));
  if (!/slow-compute.*working/.test(left)) break;
  await pause(100);
}
assert.doesNotMatch(left, /slow-compute.*working/);
step("given up, and its work was");

// Reconnected, and found again.
const kept = await spawn("slow-compute", { seconds: 600 });
await client.close();
({ client, call } = await connect());
assert(words(await call("task_status", {})).includes(kept), "it is in the list");
if (host === "ends") {
  assert.equal(task(await status(kept, 0)).status, "failed");
  await call("task_retry", { task_id: kept });
}
assert.equal(task(await status(kept, 0)).status, "working");
await call("task_stop", { task_id: kept });
assert.equal(task(await status(kept, 30)).status, "cancelled");
await client.close();
step("reconnected, and found again");
