"""Server-sent events of one session: the same objects as on `control`, for those who hold no peer."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from physis_stream.core.errors import Capacity
from physis_stream.runtime.service import Notice
from physis_stream.server.auth import bearer
from physis_stream.server.context import ServerContext
from physis_stream.server.control_channel import event_object
from physis_stream.server.json_text import to_json
from physis_stream.server.sessions import ServedSession

KEEP_ALIVE_S = 10.0


class EventStreams:
    """`GET /v1/sessions/{id}/events`: the present status first, then each notice until the session ends."""

    def __init__(self, server: ServerContext) -> None:
        self._server = server
        self._open: Counter[ServedSession] = Counter()

    async def answer(self, request: Request) -> Response:
        register = self._server.register
        session = register.find(request.path_params["id"], bearer(request, query=True))
        most = self._server.settings.limits.event_streams_per_session
        if self._open[session] >= most:
            raise Capacity(f"a session has at most {most} event streams", retry_after_s=5.0)
        status = await register.ask(register.service.status(session.id))
        first = Notice(session.id, "status", {"state": status.state, "epoch": status.epoch})
        return StreamingResponse(
            self._events(session, first), 200, {"Cache-Control": "no-store"}, media_type="text/event-stream"
        )

    async def _events(self, session: ServedSession, first: Notice) -> AsyncIterator[str]:
        listener = session.feed.listen(max_chunks=0)
        self._open[session] += 1
        try:
            yield _event(first)
            while True:
                try:
                    async with asyncio.timeout(KEEP_ALIVE_S):
                        notice = await listener.notice()
                except TimeoutError:
                    session.quiet_since_s = self._server.register.now()
                    yield ": alive\n\n"
                    continue
                if notice is None:
                    return
                yield _event(notice)
        finally:
            session.feed.leave(listener)
            self._open[session] -= 1
            if not self._open[session]:
                del self._open[session]


def _event(notice: Notice) -> str:
    return f"event: {notice.kind}\ndata: {to_json(event_object(notice))}\n\n"
