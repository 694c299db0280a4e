// What of the conformance suite is not passed, each with the reason. Everything else is.
//
// A scenario or check that is in here and passes is an error, as one is that is not in here
// and does not: so nothing is skipped that nobody decided to skip.

const resources = "Backlot has no resources: what work leaves behind is read as output and files";
const prompts = "Backlot has no prompts";
const completion = "there is nothing to complete without prompts and resources";
const sampling = "work asks a person and never the client's model or its folders";

// Scenarios that have no part here, by revision.
export const foreign = {
  "2025-11-25": {
    "completion-complete": completion,
    "tools-call-sampling": sampling,
    "resources-list": resources,
    "resources-read-text": resources,
    "resources-read-binary": resources,
    "resources-templates-read": resources,
    "resources-subscribe": resources,
    "resources-unsubscribe": resources,
    "prompts-list": prompts,
    "prompts-get-simple": prompts,
    "prompts-get-with-args": prompts,
    "prompts-get-embedded-resource": prompts,
    "prompts-get-with-image": prompts,
  },
  "2026-07-28": {
    "completion-complete": completion,
    "resources-list": resources,
    "resources-read-text": resources,
    "resources-read-binary": resources,
    "resources-templates-read": resources,
    "sep-2164-resource-not-found": resources,
    "prompts-list": prompts,
    "prompts-get-simple": prompts,
    "prompts-get-with-args": prompts,
    "prompts-get-embedded-resource": prompts,
    "prompts-get-with-image": prompts,
    "input-required-result-non-tool-request": prompts,
    "input-required-result-basic-sampling": sampling,
    "input-required-result-basic-list-roots": sampling,
    "input-required-result-multiple-input-requests": sampling,
    "input-required-result-capability-check": sampling,
    "tasks-required-task-error":
      "nothing here needs the extension: without it a call is answered as soon as its work " +
      "has ended, or told how to look for it",
    "tasks-status-notifications": "the suite skips it itself: it is to be rewritten",
  },
};

// Single checks of scenarios that are run, by revision.
export const excused = {
  "2025-11-25": {},
  "2026-07-28": {
    "server-stateless": {
      "sep-2575-server-rejects-undeclared-capability": sampling,
      "sep-2575-missing-capability-http-400": sampling,
    },
    caching: {
      "sep-2549-prompts-list-caching-hints": prompts,
      "sep-2549-resources-list-caching-hints": resources,
      "sep-2549-resources-templates-list-caching-hints": resources,
    },
    "tasks-lifecycle": {
      "sep-2663-tasks-get-status-failed":
        "work that traps has failed like any other work, which is for the model to read: " +
        "`failed` is what the host could not do",
    },
    "tasks-mrtr-input": {
      "tasks-mrtr-partial-fulfillment": "a job asks one question at a time",
    },
  },
};
