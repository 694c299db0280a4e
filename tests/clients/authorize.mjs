// Loaded before the conformance suite, which knows nothing of tokens: gives each of its
// requests to the server the token in BACKLOT_TOKEN, however it sends them.
//
// The suite also calls a tool that is to change the list of tools. Work cannot do that here,
// and what does is a file that comes or goes in the plugin folder: BACKLOT_COMES_AND_GOES.

import { existsSync, renameSync } from "node:fs";
import http from "node:http";
import { createRequire } from "node:module";

const authorization = `Bearer ${process.env.BACKLOT_TOKEN}`;
const server = new URL(process.env.BACKLOT_URL).origin;
const file = process.env.BACKLOT_COMES_AND_GOES;

function change() {
  const hidden = file.replace(/([^/]+)$/, ".$1");
  if (existsSync(file)) renameSync(file, hidden);
  else renameSync(hidden, file);
}

const plain = globalThis.fetch;
globalThis.fetch = (resource, options = {}) => {
  const url = new URL(resource instanceof Request ? resource.url : resource);
  if (url.origin !== server) return plain(resource, options);
  if (String(options.body ?? "").includes('"test_trigger_tool_change"')) change();
  const headers = new Headers(options.headers);
  headers.set("authorization", authorization);
  return plain(resource, { ...options, headers });
};

// `http.request` with what stands where, as the suite calls it.
const request = http.request;
http.request = (options, ...rest) =>
  request({ ...options, headers: { ...options.headers, authorization } }, ...rest);

// The suite's own copy of undici, which lets it choose the header `host`.
const undici = createRequire(process.argv[1])("undici");
undici.setGlobalDispatcher(
  undici.getGlobalDispatcher().compose((dispatch) => (options, handler) => {
    if (String(options.origin) !== server) return dispatch(options, handler);
    return dispatch({ ...options, headers: { ...options.headers, authorization } }, handler);
  }),
);
