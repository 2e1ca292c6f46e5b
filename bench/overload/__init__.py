"""Four times more work than the service can do: what it promises to those it takes, and to those it refuses.

plan    what comes when, and the limits that are promised    pure
run     the processes, the callers and the probes
judge   the figures, and which of them are as promised       pure
plot    docs/overload.png
"""
