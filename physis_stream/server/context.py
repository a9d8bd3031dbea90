"""What the routes share: one server's parts, made once and handed to each of them."""

from __future__ import annotations

from dataclasses import dataclass

from physis_stream.runtime.service import EngineService
from physis_stream.server.auth import Authority
from physis_stream.server.engine_watch import EngineWatch
from physis_stream.server.limits import TokenBucket
from physis_stream.server.peers import Peers
from physis_stream.server.sessions import SessionRegister
from physis_stream.server.settings import ServerSettings


@dataclass
class ServerContext:
    """One running server. `sockets` counts open WebSockets, `dropped_chunks` those that slow readers missed."""

    service: EngineService
    settings: ServerSettings
    register: SessionRegister
    watch: EngineWatch
    peers: Peers
    authority: Authority
    opens: TokenBucket
    draining: bool = False
    sockets: int = 0
    event_streams: int = 0
    dropped_chunks: int = 0

    async def drain(self) -> None:
        """Take no new session, end all there are and close their peers, each with a word. Idempotent."""
        self.draining = True
        await self.register.close_all("the server is going down")
        await self.peers.close_all("the server is going down")
