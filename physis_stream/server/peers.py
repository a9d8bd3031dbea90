"""All peer connections and video streams of the server: one stream a session, several peers on it.

Makes a peer from an offer within the limits and closes what a session leaves behind when it ends.
"""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor

from aioice import ice

from physis_stream.core.errors import Capacity, NotFound
from physis_stream.server.engine_watch import EngineWatch
from physis_stream.server.problems import RateLimited
from physis_stream.server.sessions import ServedSession, SessionRegister
from physis_stream.server.settings import ServerSettings
from physis_stream.server.video_track import VideoStream
from physis_stream.server.webrtc import Peer, checked_offer

log = logging.getLogger("physis_stream.server")
_own_addresses = ice.get_host_addresses


def addresses_or_loopback(use_ipv4: bool, use_ipv6: bool) -> list[str]:
    """This machine's addresses; the loopback where there is no other, so that an offline machine serves itself."""
    return _own_addresses(use_ipv4, use_ipv6) or ["127.0.0.1"]


class Peers:
    """Register of live peers, by id."""

    def __init__(self, register: SessionRegister, settings: ServerSettings, watch: EngineWatch) -> None:
        ice.get_host_addresses = addresses_or_loopback
        self._register = register
        self._settings = settings
        self._watch = watch
        self._peers: dict[str, Peer] = {}
        self._videos: dict[ServedSession, VideoStream] = {}
        self._encoding = ThreadPoolExecutor(max_workers=2, thread_name_prefix="encode")
        self.made = 0

    def __len__(self) -> int:
        return len(self._peers)

    @property
    def viewers(self) -> int:
        return sum(peer.viewer for peer in self._peers.values())

    @property
    def encoded_frames(self) -> int:
        return sum(video.encoded for video in self._videos.values())

    async def make(self, session: ServedSession, sdp: str, *, viewer: bool = False) -> tuple[Peer, str]:
        """Return a new peer of the session and its answer to the offer."""
        if (wait_s := session.offers.take(self._register.now())) is not None:
            raise RateLimited("too many offers", retry_after_s=wait_s)
        limits = self._settings.limits
        offer = checked_offer(sdp, limits)
        most = limits.viewers_per_session if viewer else limits.peers_per_session
        if sum(peer.session is session and peer.viewer == viewer for peer in self._peers.values()) >= most:
            raise Capacity(f"a session has at most {most} {'viewers' if viewer else 'peers'}", retry_after_s=5.0)
        video = self._video(session)
        peer = Peer(self._register, session, video, self._settings, self._watch, self._forget, viewer=viewer)
        self._peers[peer.id] = peer
        self.made += 1
        try:
            return peer, await peer.answer(offer)
        except BaseException:
            await peer.close("its offer was refused")
            raise

    def find(self, session: ServedSession, peer: str) -> Peer:
        found = self._peers.get(peer)
        if found is None or found.session is not session:
            raise NotFound("no such peer of this session")
        return found

    async def close(self, session: ServedSession, peer: str | None, reason: str) -> None:
        """Close one peer of a session, or all of them; those already gone are no error."""
        named = [p for p in self._peers.values() if p.session is session and peer in (None, p.id)]
        await asyncio.gather(*(p.close(reason) for p in named))

    async def close_all(self, reason: str) -> None:
        """Close every peer; the encoders' threads are let go."""
        await asyncio.gather(*(peer.close(reason) for peer in list(self._peers.values())))
        self._encoding.shutdown(wait=False, cancel_futures=True)

    def _video(self, session: ServedSession) -> VideoStream:
        video = self._videos.get(session)
        if video is None:
            world = session.world
            video = VideoStream(
                session.feed, world.fps, world.chunk_frames, self._settings.double_below, self._encoding
            )
            self._videos[session] = video
            session.closers.append(lambda reason: self._leave(session, reason))
        return video

    async def _leave(self, session: ServedSession, reason: str) -> None:
        self._videos.pop(session, None)
        for peer in [p for p in self._peers.values() if p.session is session and p.viewer]:
            peer.lose(f"the session ended: {reason}")

    def _forget(self, peer: Peer) -> None:
        self._peers.pop(peer.id, None)
