"""What waits for the reader of one call: in order, once, and in little memory."""

import asyncio
import random
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace._http2 import inbox as module
from headrace._http2.inbox import MAX_APART, STREAM_WINDOW_BYTES, Inbox, MessageError

LIMIT_BYTES = 1_000_000


def prefixed(message: bytes) -> bytes:
    return b"\x00" + len(message).to_bytes(4) + message


class Peer:
    """Gives frames to an inbox as a connection does, and keeps the window's accounts."""

    def __init__(self) -> None:
        self.inbox = Inbox(LIMIT_BYTES)
        self.inbox.give_back = self._widen
        self.inbox.begin()
        self.window = STREAM_WINDOW_BYTES

    def _widen(self, increment: int) -> None:
        self.window += increment

    def send(self, data: bytes, *, is_one_message: bool) -> None:
        inbox = self.inbox
        inbox.unreturned_bytes += len(data)
        self.window -= len(data)
        if is_one_message and inbox.is_plain:
            inbox.messages.append(data[5:])
            if len(inbox.messages) > module.MAX_APART:
                inbox.pack()
        else:
            inbox.feed(data)
        if inbox.unreturned_bytes > inbox.HALF_WINDOW_BYTES:
            assert inbox.account()

    def read(self) -> bytes | None:
        if not self.inbox.messages and not self.inbox.cut():
            return None
        message = self.inbox.messages.popleft()
        self.inbox.give_back_if_due()
        return message


async def backlog_of(size: int) -> tuple[Inbox, list[bytes]]:
    peer = Peer()
    sent: list[bytes] = []
    while peer.window > size + 5:
        message = len(sent).to_bytes(4).rjust(size, b"t")
        sent.append(message)
        peer.send(prefixed(message), is_one_message=True)
    return peer.inbox, sent


@pytest.mark.parametrize("size", [8, 15, 200, 4000])
async def test_a_backlog_takes_little_more_memory_than_the_window(size: int) -> None:
    inbox, sent = await backlog_of(size)
    held = sum(map(sys.getsizeof, inbox.messages)) + sys.getsizeof(inbox._uncut)
    assert held < STREAM_WINDOW_BYTES * 1.5
    assert len(sent) * (size + 5) > STREAM_WINDOW_BYTES * 0.7


async def test_a_backlog_is_read_in_order_and_then_frames_take_the_short_way_again() -> None:
    inbox, sent = await backlog_of(15)
    assert not inbox.is_plain
    peer = Peer()
    peer.inbox = inbox
    inbox.give_back = peer._widen
    assert [peer.read() for _ in range(len(sent) + 1)] == [*sent, None]
    assert peer.inbox.is_plain
    assert inbox.unreturned_bytes == 0


@settings(max_examples=150, deadline=None)
@given(st.lists(st.integers(0, 400), max_size=120), st.randoms(use_true_random=False))
def test_any_order_of_sending_and_reading_gives_every_message_once_and_in_order(
    sizes: list[int], dice: random.Random
) -> None:
    async def run() -> None:
        peer = Peer()
        got: list[bytes | None] = []
        messages = [dice.randbytes(size) for size in sizes]
        for message in messages:
            whole = prefixed(message)
            cut = dice.randrange(len(whole) + 1)
            if dice.random() < 0.7:
                peer.send(whole, is_one_message=True)
            else:
                peer.send(whole[:cut], is_one_message=False)
                peer.send(whole[cut:], is_one_message=False)
            while dice.random() < 0.4:
                got.append(peer.read())
        while (rest := peer.read()) is not None:
            got.append(rest)
        assert [message for message in got if message is not None] == messages
        assert not peer.inbox.is_within_message

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "MAX_APART", 7)
        patch.setattr(module, "KEPT_APART", 3)
        patch.setattr(module, "STREAM_WINDOW_BYTES", 100_000)
        patch.setattr(Inbox, "HALF_WINDOW_BYTES", 500)
        asyncio.run(run())


async def test_what_cannot_be_taken_is_told_when_it_comes_however_much_waits() -> None:
    inbox, _ = await backlog_of(15)
    assert len(inbox.messages) <= MAX_APART
    with pytest.raises(MessageError, match="compressed"):
        inbox.feed(b"\x01\x00\x00\x00\x01x")


async def test_half_a_message_behind_a_backlog_is_known_as_that() -> None:
    inbox, _ = await backlog_of(15)
    assert not inbox.is_within_message
    inbox.feed(prefixed(b"more")[:-1])
    assert inbox.is_within_message


async def test_what_is_dropped_does_not_come_back() -> None:
    inbox, _ = await backlog_of(15)
    inbox.drop()
    assert not inbox.cut()
    assert not inbox.is_within_message
