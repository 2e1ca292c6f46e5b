import { HeadraceClient, HeadraceError } from "@headrace/client";

const client = new HeadraceClient(process.env.HEADRACE_TARGET);

try {
  const sampling = { temperature: 9, topP: 3 };
  console.log(await client.generate({ model: await client.defaultModel(), prompt: "Hi", sampling }).text());
} catch (error) {
  if (!(error instanceof HeadraceError)) throw error;
  switch (error.kind) {
    case "invalid_request":
      for (const { field, description } of error.violations) console.log(`${field}: ${description}`); // all of them at once
      break;
    case "overloaded":
    case "rate_limited":
      console.log("come back in", error.retryAfterMs, "ms");
      break;
    case "unavailable":
      console.log("nobody there:", error.message, error.isRetriable ? "(may be asked again)" : "");
      break;
    default:
      console.log(error.status, error.reason, error.message, error.requestId);
  }
}
await client.close();
