"""A gRPC client for server-streaming calls on the event loop's own sockets.

A token that arrives costs a socket read, a look at 14 bytes and a slice; there
is no thread to cross and no task per message. HPACK decoding is hpack's;
frames are read here: a general HTTP/2 state machine (h2) cannot be passed by
for DATA alone, and takes a GOAWAY as the end of all streams.

    frames        HTTP/2 frames as bytes                        pure
    metadata      call metadata <-> header fields                pure
    outcome       how a call ended: trailers, resets, HTTP       pure
    inbox         the messages of one call, and their window
    outbox        what one connection still has to send
    header_block  header blocks, decoded
    streams       the streams of one connection
    keepalive     whether a silent peer is still there
    connection    one socket: bytes in, frames out
    security      TLS for asyncio
    target        what a target names
    endpoint      the connections to one address
    channel       which connection a call takes
    retry         whether and when a call is tried again         pure
    call          one call: deadline, attempts, reading
"""
