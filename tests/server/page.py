"""What a page does, for tests: opens sessions over HTTP, connects peers to them, looks at the pictures."""

from __future__ import annotations

import httpx

from physis_client.webrtc import WebRtcPeer

from .conftest import WORLD


class Page:
    """What a page does: opens sessions over HTTP and connects peers to them."""

    def __init__(self, server, service):
        self.server, self.service = server, service
        self.http = httpx.AsyncClient(base_url=server.url, timeout=5.0)
        self.peers = []

    async def open(self, **fields):
        answer = await self.http.post("/v1/sessions", json={"model": WORLD, "seed": 1, **fields})
        assert answer.status_code == 201, answer.text
        return answer.json()

    async def connect(self, session, **more):
        peer = await WebRtcPeer.connect(self.server.url, session["id"], session["token"], timeout=5.0, **more)
        self.peers.append(peer)
        return peer

    async def ask(self, session, ending="", method="POST", **more):
        headers = {"Authorization": f"Bearer {session['token']}"}
        return await self.http.request(method, f"/v1/sessions/{session['id']}{ending}", headers=headers, **more)

    async def state(self, session):
        return (await self.ask(session, method="GET")).json()["state"]


async def frames(peer, count):
    coming = peer.frames()
    return [await anext(coming) for _ in range(count)]


def centre(rgb):
    """Where the blue square is, in action units, from pixels."""
    ys, xs = ((rgb[:, :, 2] > 150) & (rgb[:, :, 0] < 120)).nonzero()
    height, width = rgb.shape[:2]
    return (xs.mean() / (width - 1) * 2 - 1, ys.mean() / (height - 1) * 2 - 1)
