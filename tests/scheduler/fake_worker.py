"""A worker that answers what its test says: a real socket on the link, no engine behind it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import zmq.asyncio

from schemas.enums import Direction
from schemas.errors import ErrorKind
from schemas.frames import (
    Abort,
    Answer,
    Failure,
    Failures,
    Goodbye,
    Heartbeat,
    Request,
    Requests,
    Result,
    Results,
    TokenizerFile,
    TokenizerWanted,
    Welcome,
    WhoAreYou,
    decode_to_worker,
)
from schemas.settings import LinkSettings
from tests.scheduler import make
from tests.scheduler.dealers import Dealer

BEAT_SECONDS = 0.1

Reply = Result | Failure | None
"""None keeps the request."""


def answered(request: Request) -> Result:
    """Return a good answer."""
    now = time.time_ns()
    spread = {Direction.BULLISH: 0.7, Direction.BEARISH: 0.2, Direction.NEUTRAL: 0.1}
    return Result(
        request_id=request.request_id,
        answer=Answer(direction=Direction.BULLISH, probabilities=spread),
        engine_started_ns=now,
        first_token_ns=now,
        completed_ns=now,
        prompt_tokens=1,
        output_tokens=1,
    )


def failed(request: Request, kind: ErrorKind = ErrorKind.ENGINE_ERROR, *, retryable: bool = True) -> Failure:
    """Return a failure."""
    return Failure(request_id=request.request_id, kind=kind.value, message="as the test says", retryable=retryable)


class FakeWorker:
    """Greets the scheduler like a worker and hands each request to ``reply``.

    ``seen`` has the requests in the order of their arrival, ``held`` those that it keeps, by id.
    """

    def __init__(self, settings: LinkSettings, worker_id: str, reply: Callable[[Request], Reply]) -> None:
        self._id = worker_id
        self._context = zmq.asyncio.Context()
        self._dealer = Dealer(self._context, settings, worker_id)
        self._session = ""
        self.reply = reply
        self.seen: list[Request] = []
        self.held: dict[int, Request] = {}
        self._tasks = [asyncio.create_task(self._beat()), asyncio.create_task(self._receive())]

    async def _beat(self) -> None:
        hello = make.hello(self._id, limits=make.limits(max_num_seqs=64, kv_blocks=8192), pid=id(self))
        while True:
            if self._session:
                await self._dealer.send(Heartbeat(session=self._session, in_flight=len(self.held), steps=0))
            else:
                await self._dealer.send(hello)
            await asyncio.sleep(BEAT_SECONDS)

    async def _receive(self) -> None:
        while True:
            frame = decode_to_worker(await self._dealer._socket.recv())
            match frame:
                case TokenizerWanted():
                    await self._dealer.send(TokenizerFile(tokenizer_hash=make.TOKENIZER_HASH, data=make.TOKENIZER))
                case Welcome():
                    self._session = frame.session
                case WhoAreYou():
                    self._session = ""
                case Abort():
                    for request_id in frame.request_ids:
                        self.held.pop(request_id, None)
                case Requests():
                    self.seen += frame.requests
                    self.held |= {request.request_id: request for request in frame.requests}
                    await self.settle(frame.requests)

    async def settle(self, requests: list[Request]) -> None:
        """Reply to requests that are held."""
        replies = [reply for request in requests if (reply := self.reply(request)) is not None]
        for reply in replies:
            self.held.pop(reply.request_id, None)
        if results := [r for r in replies if isinstance(r, Result)]:
            await self._dealer.send(Results(session=self._session, results=results))
        if failures := [r for r in replies if isinstance(r, Failure)]:
            await self._dealer.send(Failures(session=self._session, failures=failures))

    async def die(self) -> None:
        """Say that the engine died under what is held, and vanish."""
        await self._dealer.send(Goodbye(session=self._session, reason="the engine died", died=True))
        self.close()

    def close(self) -> None:
        """Vanish without a word."""
        for task in self._tasks:
            task.cancel()
        self._dealer.close()
        self._context.term()


@asynccontextmanager
async def fake_worker(
    settings: LinkSettings, reply: Callable[[Request], Reply] = answered, worker_id: str = "fake"
) -> AsyncIterator[FakeWorker]:
    """Give a worker that replies like this."""
    worker = FakeWorker(settings, worker_id, reply)
    try:
        yield worker
    finally:
        worker.close()
