import { createServer } from "node:http";

import { HeadraceClient, HeadraceError } from "@headrace/client";

const client = new HeadraceClient(process.env.HEADRACE_TARGET); // one for the whole process
const model = await client.defaultModel();

const server = createServer(async (request, response) => {
  const { searchParams } = new URL(request.url ?? "/", "http://localhost");
  const left = new AbortController();
  response.once("close", () => left.abort()); // a browser that goes away stops the engine
  const input = { model, prompt: searchParams.get("prompt") ?? "The river", sampling: { maxOutputTokens: 200 } };
  try {
    for await (const piece of client.generate(input, { signal: left.signal, timeoutMs: 60_000 }).deltas()) {
      if (!response.headersSent) response.writeHead(200, { "content-type": "text/plain; charset=utf-8" });
      response.write(piece);
    }
    response.end();
  } catch (error) {
    if (!(error instanceof HeadraceError)) throw error;
    if (response.headersSent) response.destroy(); // a cut is not to look like an end
    else response.writeHead(error.kind === "invalid_request" ? 400 : error.isRetriable ? 503 : 500).end(error.message);
  }
});

server.listen(Number(process.env.PORT ?? 3000), "127.0.0.1", () => console.log("listening on", server.address()));
