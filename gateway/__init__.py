"""The HTTP gateway: OpenAI-shaped requests in, server-sent events out, one gRPC call behind each.

It is a client of the service like any other and holds no policy. `openai` and
`sse` are pure; `app` has the routes, `generation` serves one request,
`upstream` makes the calls, `server` begins and ends the process.
"""
