"""From a log to the wire: one call reads a retained generation, at its own pace and with its own deadline."""

from __future__ import annotations

import asyncio
import time
from typing import Any, Final

from service.core.deadline import Deadline
from service.core.errors import Reason, ServiceError
from service.rpc.call import CallRecord
from service.rpc.reader import ReaderWatch
from service.rpc.recordings import Recording

__all__ = ["follow"]

# Stripe's name for it.
_REPLAYED: Final = (("idempotent-replayed", "true"),)


async def follow(
    recording: Recording,
    after: int,
    call: CallRecord,
    context: Any,
    *,
    deadline: Deadline,
    reader_s: float,
    has_started_it: bool = False,
    joins: bool = False,
) -> None:
    """Write the events behind number `after`, and end as the generation ends.

    `has_started_it`: this call did. `joins`: another one did, with the same key.

    What ends the call alone, and not the generation: the caller leaves, its deadline
    passes (DEADLINE_IN_DECODE, or DEADLINE_IN_QUEUE before the first event), it reads
    too slowly (CONSUMER_TOO_SLOW).
    """
    reader = ReaderWatch(deadline, reader_s)
    number = after
    goes_on = not has_started_it or recording.policy.continues
    write, monotonic = context.write, time.monotonic
    with recording.read() as log, reader:
        try:
            async with asyncio.timeout(deadline.remaining_s()) as limit:
                while events := await log.after(number):
                    if number == after:
                        reader.begin_headers()
                        limit.reschedule(None)  # a status cannot be sent while these are on their way
                        own = recording.headers if has_started_it else _REPLAYED if joins else ()
                        await context.send_initial_metadata(
                            (("x-request-id", call.request_id), ("x-generation-id", recording.id), *own)
                        )
                        limit.reschedule(asyncio.get_running_loop().time() + deadline.remaining_s())
                    for event in events:
                        number += 1
                        reader.begin(monotonic())
                        call.last_sequence = number
                        await write(event)
                        reader.end()
        except ServiceError:  # of the log: the next event is gone
            if number == after:
                raise
            raise _too_slow("The reader fell behind the events that are kept.") from None
        except TimeoutError:
            raise _too_late(number, goes_on=goes_on) from None
        except asyncio.CancelledError:
            if not reader.took():
                raise
            if deadline.remaining_s() <= 0:
                raise _too_late(number, goes_on=goes_on) from None
            raise _too_slow(f"Nothing was read for {reader_s:g} s.") from None
    if log.has_failed:
        raise log.failure()  # not held by a name: the frames that it passes must not hold it
    if recording.is_cancelled:
        call.outcome = "cancelled"


def _too_late(number: int, *, goes_on: bool) -> ServiceError:
    reason = Reason.DEADLINE_IN_DECODE if number else Reason.DEADLINE_IN_QUEUE
    what = "The deadline of this call passed; the generation may go on, and can be joined again."
    return ServiceError(reason, what if goes_on else "The deadline passed, and with it that of the generation.")


def _too_slow(what: str) -> ServiceError:
    return ServiceError(Reason.CONSUMER_TOO_SLOW, f"{what} The generation may go on, and can be joined again.")
