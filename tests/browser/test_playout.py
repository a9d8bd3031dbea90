"""Pictures are shown when they come: the playout delay is negotiated, carried by packets, and obeyed by Chromium."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

import pytest
from aiortc import RTCPeerConnection, RTCSessionDescription
from aiortc.rtcrtpparameters import RTCRtpHeaderExtensionParameters, RTCRtpSendParameters
from aiortc.rtp import HeaderExtensions, unpack_header_extensions

from physis_stream.server.playout import PLAYOUT_DELAY, PlayoutExtensions, show_at_once

MID = "urn:ietf:params:rtp-hdrext:sdes:mid"
LAG_JS = """
async (count) => {
  const { PhysisClient } = await import("/client/physis.js");
  const client = new PhysisClient();
  const sleep = (seconds) => new Promise((resolve) => setTimeout(resolve, 1000 * seconds));
  document.body.replaceChildren();
  const lags = [];
  for (let seed = 0; seed < count; seed += 1) {
    const video = Object.assign(document.createElement("video"), { muted: true, playsInline: true });
    video.style.cssText = "width: 300px; height: 300px";
    document.body.append(video);
    const session = await client.openSession({ model: "fake-square", seed });
    const lag = [];
    session.addEventListener("frame", ({ detail }) => lag.push(detail.shownMs - detail.receivedMs));
    await session.attach(video);
    lags.push(lag);
  }
  await sleep(3);
  for (let turn = 0; turn < 5; turn += 1) {
    const until = performance.now() + 250;
    while (performance.now() < until);
    await sleep(0.75);
  }
  for (const lag of lags) lag.length = 0;
  await sleep(4);
  const answer = client.sessions[0].peerConnection.remoteDescription.sdp;
  for (const session of client.sessions) await session.close();
  return { lags, answer };
}
"""


def written(*extensions: tuple[int, str]) -> list[tuple[int, bytes]]:
    """What a packet of stream "0" carries where these (id, uri) were negotiated."""
    carrier = PlayoutExtensions()
    asked = [RTCRtpHeaderExtensionParameters(id=number, uri=uri) for number, uri in extensions]
    carrier.configure(RTCRtpSendParameters(headerExtensions=asked))
    return list(unpack_header_extensions(*carrier.set(HeaderExtensions(mid="0"))))


def test_a_packet_carries_a_delay_of_0_to_100_ms_under_the_negotiated_id():
    assert written((4, MID), (9, PLAYOUT_DELAY)) == [(4, b"0"), (9, b"\x00\x00\x0a")]
    assert written((9, PLAYOUT_DELAY)) == [(9, b"\x00\x00\x0a")]


def test_a_receiver_that_does_not_know_it_gets_what_aiortc_sends():
    assert written((4, MID)) == [(4, b"0")]
    assert written() == []


async def answered(offered: bool) -> str:
    """The answer of a peer that shows at once to an offer with the extension under id 7, or without it."""
    watcher, server = RTCPeerConnection(), RTCPeerConnection()
    try:
        watcher.addTransceiver("video", direction="recvonly")
        show_at_once(server.addTransceiver("video", direction="sendonly").sender)
        offer = (await watcher.createOffer()).sdp
        line = next(line for line in offer.splitlines() if line.endswith(PLAYOUT_DELAY))
        asked = offer.replace(line, f"a=extmap:7 {PLAYOUT_DELAY}") if offered else offer.replace(line + "\r\n", "")
        await server.setRemoteDescription(RTCSessionDescription(asked, "offer"))
        return str((await server.createAnswer()).sdp)
    finally:
        await watcher.close()
        await server.close()


@pytest.mark.parametrize("offered", [True, False])
def test_it_is_answered_under_the_id_of_the_offer_and_only_if_offered(offered):
    with ThreadPoolExecutor(1) as apart:
        answer = apart.submit(asyncio.run, answered(offered)).result(20)
    assert (f"a=extmap:7 {PLAYOUT_DELAY}" in answer) == offered
    assert (PLAYOUT_DELAY in answer) == offered


@pytest.mark.browser
def test_chromium_shows_pictures_at_once_even_after_hiccups(fake, new_page):
    page = new_page()
    page.goto(f"{fake.url}/healthz")
    seen = page.evaluate(LAG_JS, 3)
    assert PLAYOUT_DELAY in seen["answer"]
    for lag in seen["lags"]:
        assert len(lag) > 20
        assert sorted(lag)[len(lag) // 2] < 50, "half of the frames are shown late"
