// What went wrong, in sentences. One table from the codes of the API.

import { el } from "./elements.js";

const LATER = "Nothing was run. Try again in a moment.";
const KEY = "Enter a key that this service accepts, and send again.";
const SHORTER = "Shorten the text or the system prompt, allow fewer tokens, or begin a new chat.";
const AGAIN = "The text that had come is kept. Asking again makes a new answer.";
const LIMIT = ["You have reached your limit.", "It opens again by itself."];
const GONE = ["The rest of the answer is no longer kept.", AGAIN];
const LARGE = ["This is too large to be sent.", SHORTER, "new"];
const AWAY = ["The service cannot be reached.", LATER];

// code: what happened, what to do, what the button does ("retry" if that is missing)
const BY_CODE = {
  server_is_overloaded: ["The model is busy.", `All places are taken, and so is the waiting line. ${LATER}`],
  queue_timeout: ["The model is busy.", `No place became free in time. ${LATER}`],
  rate_limit_exceeded: LIMIT,
  insufficient_quota: ["Your quota of today is spent.", "It begins anew tomorrow.", null],
  model_not_ready: ["The model is still loading.", LATER],
  draining: ["The server is restarting.", LATER],
  backend_unavailable: ["The engine behind the model is away.", "Try again in a moment."],
  store_unavailable: ["The service cannot reach its store.", LATER],
  generation_lost: ["The server that ran this answer is gone.", AGAIN],
  invalid_api_key: ["The key was not accepted.", KEY, "key"],
  context_length_exceeded: ["This is too long for the model.", SHORTER, "new"],
  request_too_large: LARGE,
  model_not_found: ["The model is not there any more.", "Choose another one in the settings.", null],
  deadline_exceeded: ["The time was over.", "Ask for less, or try again."],
  first_token_timeout: ["The engine did not begin.", "It was silent for too long."],
  token_gap_timeout: ["The engine fell silent in the middle.", AGAIN],
  backend_error: ["The engine failed on this request.", "Another wording may work."],
  consumer_too_slow: ["This page did not read fast enough.", AGAIN],
  request_timeout: ["The request did not arrive in time.", LATER],
  replay_expired: GONE,
  generation_not_found: GONE,
  idempotency_key_reused: ["The server took this for another request.", "Asking again takes a new key."],
  cancelled: ["The answer was stopped from elsewhere.", AGAIN],
  // The page's own.
  unreachable: [AWAY[0], "Does it run, and are you online?"],
  connection_lost: ["The connection was lost.", "The text that had come is kept; the rest may be there still.", "resume"],
};
const BY_STATUS = {
  400: ["The request was refused.", "", null],
  401: ["This service asks for a key.", KEY, "key"],
  403: ["Your key does not allow this.", "Choose another model, or use another key.", "key"],
  404: ["That is not there.", "Is this the address of the gateway?", null],
  413: LARGE,
  429: LIMIT,
  502: AWAY,
  503: AWAY,
  504: ["The service did not answer in time.", "Try again in a moment."],
};
const OTHERWISE = ["The server failed.", "That is not your doing. The details help whoever runs it."];

/** Return a failure: the page's own, or what an event within a stream tells. */
export const failureOf = ({ code = null, message = "" }, requestId = null) => ({ code, message, requestId });

/** Return the failure that a response tells; one of a proxy's is not `isOurs`. */
export async function failureOfResponse(response) {
  const { headers, status } = response;
  const error = (await response.json().catch(() => null))?.error;
  return {
    ...failureOf(error ?? {}, headers.get("x-request-id")),
    status,
    retryAfterMs: Number(headers.get("retry-after-ms") ?? 1000 * headers.get("retry-after")),
    shouldRetry: headers.get("x-should-retry") === "true",
    isOurs: Boolean(error),
  };
}

/** Return a failure in words; `action` is "retry", "key", "new", "resume" or null. */
export function inWords({ code, status, message, requestId }) {
  const [title, advice, action = "retry"] = BY_CODE[code] ?? BY_STATUS[status] ?? OTHERWISE;
  const where = [status && `HTTP ${status}`, code, requestId].filter(Boolean).join(" · ");
  return { title, advice: advice || message, action, details: [message, where].filter(Boolean).join("\n") };
}

/** Return what shows a failure: its sentences, `deeds`, and the details folded. */
export function failureParts(failure, ...deeds) {
  const { title, advice, details } = inWords(failure);
  return [
    el("p", "", el("strong", "", title), ` ${advice}`),
    el("p", "deeds", ...deeds),
    el("details", "", el("summary", "", "Details"), el("pre", "", details)),
  ];
}
