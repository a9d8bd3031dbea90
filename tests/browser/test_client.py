"""`physis.js` by itself, in a blank page: what it exports, throttles and refuses, and how frames meet chunks."""

from __future__ import annotations

import re

import pytest

from tests.browser.conftest import ROOT

pytestmark = pytest.mark.browser
OPEN_JS = """
const { PhysisClient } = await import("/client/physis.js");
const client = new PhysisClient();
const video = Object.assign(document.createElement("video"), { muted: true, playsInline: true });
document.body.replaceChildren(video);
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
const refusal = async (run) => { try { await run(); return null; } catch (error) { return [error.name, error.code]; } };
const session = await client.openSession({ model: "fake-square", seed: 0 });
await session.attach(video);
"""


@pytest.fixture
def blank(fake, new_page):
    page = new_page()
    page.goto(f"{fake.url}/healthz")
    return page


def with_session(page, body: str):
    """Run `body` with `client`, an attached `session`, `video`, `sleep` and `refusal` at hand."""
    return page.evaluate(f"async () => {{ {OPEN_JS} {body} }}")


def test_what_is_exported_is_declared(blank):
    exported = set(blank.evaluate("async () => Object.keys(await import('/client/physis.js'))"))
    declared = (ROOT / "clients" / "web" / "physis.d.ts").read_text(encoding="utf-8")
    assert exported == set(re.findall(r"^export (?:class|const) (\w+)", declared, re.MULTILINE))


def test_public_members_are_declared(blank):
    declared = (ROOT / "clients" / "web" / "physis.d.ts").read_text(encoding="utf-8")
    for name in ("PhysisClient", "PhysisSession"):
        (body,) = re.findall(rf"^export class {name}[^{{]*\{{(.*?)^\}}", declared, re.MULTILINE | re.DOTALL)
        members = blank.evaluate(
            f"async () => Object.getOwnPropertyNames((await import('/client/physis.js')).{name}.prototype)"
        )
        missing = [member for member in members if not re.search(rf"\b{member}\b", body)]
        assert missing == [], f"{name} does not declare {missing}"


def test_act_sends_at_most_one_per_displayed_frame_and_the_latest_wins(blank):
    sent = with_session(
        blank,
        """
        const sent = [];
        session.addEventListener("sent", ({ detail }) => sent.push([detail.seq, detail.action[0]]));
        for (let turn = 0; turn < 500; turn += 1) session.act([turn / 1000, 0]);
        await sleep(120);
        return sent;
        """,
    )
    assert sent == [[1, 0.0], [2, 0.499]]


def test_each_applied_action_has_exactly_one_photon(blank):
    sent, photons = with_session(
        blank,
        """
        const photons = [];
        let sent = 0;
        session.addEventListener("sent", () => { sent += 1; });
        session.addEventListener("photon", ({ detail }) => photons.push([detail.seq, detail.ms]));
        await sleep(600);
        for (let turn = 0; turn < 10; turn += 1) { session.act([turn / 20, 0]); await sleep(150); }
        await sleep(800);
        return [sent, photons];
        """,
    )
    assert sent == 10
    assert sorted(seq for seq, _ in photons) == list(range(1, 11))
    assert all(0 < ms < 500 for _, ms in photons)


def test_a_bad_action_is_refused_before_it_leaves(blank):
    refused = with_session(
        blank,
        """
        return [await refusal(() => session.act([0])), await refusal(() => session.act([NaN, 0])),
                await refusal(() => session.act([0, Infinity])), await refusal(() => session.act([0, 0, 0]))];
        """,
    )
    assert refused == [["InvalidAction", "invalid_action"]] * 4


def test_refusals_come_typed(blank):
    refused = with_session(
        blank,
        """
        const other = await refusal(() => client.openSession({ model: "atlantis" }));
        const gone = await refusal(() => session.restore("0".repeat(32)));
        await session.close();
        const ended = await refusal(() => session.reset({ seed: 1 }));
        return [other, gone, ended, session.endedReason, await refusal(() => session.close())];
        """,
    )
    other, gone, ended, reason, again = refused
    assert other == ["NotFound", "not_found"]
    assert gone == ["NotFound", "not_found"]
    assert ended == ["SessionEnded", "session_ended"]
    assert reason == "closed"
    assert again is None


def test_a_server_that_is_not_there_is_a_transport_refusal(blank):
    refused = blank.evaluate(
        """async () => {
          const { PhysisClient } = await import("/client/physis.js");
          const nowhere = new PhysisClient("http://127.0.0.1:9");
          try { await nowhere.models(); } catch (error) { return [error.name, error.code]; }
        }"""
    )
    assert refused == ["Transport", "transport"]


def test_snapshot_and_restore_bring_a_moment_back(blank):
    kept, moved, back, epochs = with_session(
        blank,
        """
        const place = () => [session.lastTelemetry.state.x, session.lastTelemetry.state.y];
        session.act([-0.9, -0.9]);
        await sleep(2600);
        const mark = await session.snapshot();
        const kept = place(), before = session.epoch;
        session.act([0.9, 0.9]);
        await sleep(1200);
        const moved = place();
        const first = new Promise((resolve) => session.addEventListener("telemetry", ({ detail }) => {
          if (detail.epoch > before) resolve(detail.state);
        }));
        await session.restore(mark);
        const state = await first;
        return [kept, moved, [state.x, state.y], [before, session.epoch]];
        """,
    )
    assert kept == pytest.approx([-0.9, -0.9], abs=0.01)
    assert abs(moved[0] - kept[0]) > 0.3
    assert back == pytest.approx(kept, abs=0.1)
    assert epochs[1] > epochs[0]


def test_fork_gives_one_or_an_array_and_each_has_its_own_token(blank):
    kinds = with_session(
        blank,
        """
        const one = await session.fork();
        const two = await session.fork(2);
        const tokens = new Set([session, one, ...two].map((each) => each.token));
        return [one.constructor.name, Array.isArray(two), two.length, tokens.size, client.sessions.length];
        """,
    )
    assert kinds == ["PhysisSession", True, 2, 4, 4]


def test_stats_come_each_second_and_when_asked(blank):
    told, asked = with_session(
        blank,
        """
        const told = [];
        session.addEventListener("stats", ({ detail }) => told.push(detail.sessions));
        await sleep(2600);
        return [told, (await session.stats()).max_sessions];
        """,
    )
    assert told[:2] == [1, 1]
    assert asked == 4


def test_nothing_is_heard_after_ended(blank):
    heard = with_session(
        blank,
        """
        const heard = [];
        for (const type of ["frame", "telemetry", "status", "connection", "ended", "photon"]) {
          session.addEventListener(type, () => heard.push(type));
        }
        await sleep(300);
        heard.length = 0;
        await session.close();
        await sleep(600);
        return heard;
        """,
    )
    assert heard == ["connection", "ended"]


LEDGER_JS = """
async () => {
  const { PhotonLedger, rtpDistance } = await import("/client/photons.js");
  const span = 9000, out = {};
  out.distances = [rtpDistance(5, 3), rtpDistance(3, 5), rtpDistance(0, 2 ** 32 - 9000), rtpDistance(2 ** 32 - 1, 0)];
  const told = (rtp_ts, chunk, ...applied) => ({ rtp_ts, chunk, applied });
  const seqs = (photons) => photons.map(({ seq, ms }) => [seq, ms]);

  let ledger = new PhotonLedger(span);
  ledger.sent(1, 100);
  ledger.chunk(told(9000, 1, 1));
  out.older = seqs(ledger.frame(0, 150).photons);
  out.own = seqs(ledger.frame(9000, 180).photons);
  out.again = seqs(ledger.frame(9000, 190).photons);

  ledger = new PhotonLedger(span);
  ledger.sent(1, 100);
  ledger.frame(9000, 180);
  ledger.frame(18000, 280);
  out.late = seqs(ledger.chunk(told(9000, 1, 1)));

  ledger = new PhotonLedger(span);
  ledger.sent(1, 100);
  ledger.chunk(told(2 ** 32 - 9000, 1, 1));
  const skipped = ledger.frame(0, 300);
  out.skipped = [seqs(skipped.photons), skipped.telemetry];

  ledger = new PhotonLedger(span);
  ledger.sent(1, 100);
  ledger.chunk(told(9000, 1, 1));
  ledger.newPeer();
  out.forgotten = seqs(ledger.frame(9000, 180).photons);
  out.unknown = seqs(ledger.chunk(told(9000, 1, 77)));
  return out;
}
"""


def test_frames_meet_chunks_in_whatever_order_they_come(blank):
    out = blank.evaluate(LEDGER_JS)
    assert out["distances"] == [2, -2, 9000, -1]
    assert out["older"] == []
    assert out["own"] == [[1, 80]]
    assert out["again"] == []
    assert out["late"] == [[1, 80]]
    assert out["skipped"] == [[[1, 200]], None]
    assert out["forgotten"] == []
    assert out["unknown"] == []
