// Runs the conformance suite of MCP against a server, and holds what came of it against
// `scenarios.mjs`: `conformance.mjs REVISION RESULTS`, with BACKLOT_URL, BACKLOT_TOKEN and
// BACKLOT_COMES_AND_GOES set. Exits with 1 where they differ.

import { spawnSync } from "node:child_process";
import { existsSync, readdirSync, readFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath, pathToFileURL } from "node:url";
import { excused, foreign } from "./scenarios.mjs";

const [revision, results] = process.argv.slice(2);
const here = dirname(fileURLToPath(import.meta.url));
const suite = join(here, "node_modules/@modelcontextprotocol/conformance/dist/index.js");

// Runs the scenarios that a revision requires, and those that it has but does not count.
const authorize = ["--import", pathToFileURL(join(here, "authorize.mjs")).href];
const run = spawnSync(
  process.execPath,
  [...authorize, suite, "server", "--url", process.env.BACKLOT_URL, "--requirements", revision, "-o", results],
  { encoding: "utf8", maxBuffer: 1 << 28 },
);

const differences = [];
let passed = 0;
const seen = new Set();
for (const folder of readdirSync(results).sort()) {
  const scenario = folder.match(/^server-(.*)-\d{4}-\d\d-\d\dT[\d-]+Z$/)[1];
  seen.add(scenario);
  if (scenario in foreign[revision]) continue;
  const told = join(results, folder, "checks.json");
  if (!existsSync(told)) {
    differences.push(`${scenario} broke off: ${run.stderr.match(`Failed to run scenario ${scenario}: (.*)`)?.[1]}`);
    continue;
  }
  const checks = JSON.parse(readFileSync(told, "utf8"));
  const reasons = excused[revision][scenario] ?? {};
  const bad = checks.filter(({ status }) => status === "FAILURE" || status === "WARNING");
  const ids = new Set(bad.map(({ id }) => id));
  for (const { id, status, errorMessage } of bad) {
    if (!(id in reasons)) differences.push(`${scenario}:${id} ${status}: ${errorMessage}`);
  }
  for (const id of Object.keys(reasons)) {
    if (!ids.has(id)) differences.push(`${scenario}:${id} passes or is gone: take it out of scenarios.mjs`);
  }
  passed += checks.filter(({ status }) => status === "SUCCESS").length;
}
for (const scenario of [...Object.keys(foreign[revision]), ...Object.keys(excused[revision])]) {
  if (!seen.has(scenario)) differences.push(`${scenario} is gone: take it out of scenarios.mjs`);
}
if (seen.size === 0) differences.push(`the suite ran nothing: ${run.stdout}${run.stderr}`);

const ours = [...seen].filter((scenario) => !(scenario in foreign[revision])).length;
console.log(`conformance ${revision}: ${passed} checks of ${ours} scenarios passed`);
for (const [scenario, reason] of Object.entries(foreign[revision])) {
  console.log(`  not run for its result: ${scenario}: ${reason}`);
}
for (const [scenario, checks] of Object.entries(excused[revision])) {
  for (const [id, reason] of Object.entries(checks)) console.log(`  excused: ${scenario}:${id}: ${reason}`);
}
for (const difference of differences) console.log(`  DIFFERENCE: ${difference}`);
process.exit(differences.length === 0 ? 0 : 1);
