"""Who may call: Host, Origin, the server's token, signed tokens and their scopes."""

from __future__ import annotations

import pytest

from physis_stream.server.auth import Authority, Claims, host_name
from physis_stream.server.settings import ConfigurationError, IceServer, ServerSettings, is_loopback, read_token_file
from physis_stream.testing.serving import QUICK

from .conftest import WORLD, problem

TOKEN = "a-server-token-of-some-length"


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.1:8080", "localhost:3000", "LOCALHOST", "[::1]:8080"])
async def test_loopback_names_are_our_own(api, host):
    assert (await api.http.get("/healthz", headers={"Host": host})).status_code == 200


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "", "192.0.2.1", "[::2]", "a:b:c", "[bad"])
async def test_a_foreign_host_is_refused_whatever_it_asks(api, host):
    for path in ("/healthz", "/v1/models", "/", "/docs"):
        assert problem(await api.http.get(path, headers={"Host": host})) == (403, "unauthorized")


@pytest.mark.parametrize(
    "origin", ["http://127.0.0.1:8080", "http://localhost:5173", "https://localhost", "http://[::1]:1"]
)
async def test_a_loopback_page_may_call_and_read(api, origin):
    answer = await api.http.get("/v1/models", headers={"Origin": origin})
    assert answer.status_code == 200
    assert answer.headers["access-control-allow-origin"] == origin
    assert "Origin" in answer.headers["vary"]


@pytest.mark.parametrize(
    "origin",
    ["https://evil.example", "null", "http://localhost.evil.example", "file://", "", "http://", "chrome-extension://x",
     "http://[bad", "https://127.0.0.1.evil.example:8080", "ftp://localhost"],
)  # fmt: skip
async def test_a_foreign_page_is_refused_before_anything_happens(api, origin):
    answer = await api.http.post("/v1/sessions", json={"model": WORLD}, headers={"Origin": origin})
    assert problem(answer) == (403, "unauthorized")
    assert "access-control-allow-origin" not in answer.headers
    assert api.service.calls == []


async def test_configured_hosts_and_origins_are_let_in(make_api):
    settings = ServerSettings(
        allowed_hosts=("worlds.example",), allowed_origins=("https://page.example",), timers=QUICK
    )
    api = await make_api(settings=settings)
    headers = {"Host": "worlds.example", "Origin": "https://page.example"}
    assert (await api.http.get("/v1/models", headers=headers)).status_code == 200
    own = {"Host": "worlds.example", "Origin": "https://worlds.example"}
    assert (await api.http.get("/v1/models", headers=own)).status_code == 200
    other = {"Host": "worlds.example", "Origin": "http://page.example"}
    assert problem(await api.http.get("/v1/models", headers=other)) == (403, "unauthorized")


async def test_a_preflight_is_answered_for_allowed_pages_only(api):
    asked = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}
    good = await api.http.options("/v1/sessions", headers={"Origin": "http://localhost:5173", **asked})
    assert good.status_code == 204
    assert "Authorization" in good.headers["access-control-allow-headers"]
    bad = await api.http.options("/v1/sessions", headers={"Origin": "https://evil.example", **asked})
    assert bad.status_code == 403


async def test_every_answer_carries_the_headers_that_browsers_heed(api):
    answer = await api.http.get("/v1/models")
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "no-referrer"
    assert answer.headers["cross-origin-resource-policy"] == "same-origin"


@pytest.mark.parametrize(
    ("value", "name"),
    [("a:1", "a"), ("[::1]:8", "::1"), ("A.B", "a.b"), ("", ""), ("[", ""), ("a@b", "b"), ("a/b", "a")],
)
def test_the_host_is_read_as_a_browser_would(value, name):
    assert host_name(value) == name


async def test_a_token_in_the_query_is_for_sockets_and_events_only(api):
    session = await api.open()
    answer = await api.http.post(f"/v1/sessions/{session['id']}/reset?token={session['token']}")
    assert problem(answer) == (401, "unauthorized")


# The server's own token


@pytest.fixture
async def guarded(make_api):
    return await make_api(settings=ServerSettings(token=TOKEN, timers=QUICK), wall_clock=lambda: 1000.0)


def bearing(token):
    return {"Authorization": f"Bearer {token}"}


async def test_a_guarded_server_wants_its_token_for_what_is_not_a_sessions(guarded):
    for method, path in [("GET", "/v1/models"), ("GET", "/v1/stats"), ("GET", "/metrics"), ("POST", "/v1/tokens")]:
        assert problem(await guarded.http.request(method, path)) == (401, "unauthorized")
        assert problem(await guarded.http.request(method, path, headers=bearing("wrong"))) == (403, "unauthorized")
    assert problem(await guarded.http.post("/v1/sessions", json={"model": WORLD})) == (401, "unauthorized")
    assert guarded.service.live_sessions() == []
    assert (await guarded.http.get("/healthz")).status_code == 200


async def test_the_servers_token_opens_and_the_sessions_token_goes_on(guarded):
    answer = await guarded.http.post("/v1/sessions", json={"model": WORLD}, headers=bearing(TOKEN))
    assert answer.status_code == 201
    session = answer.json()
    assert (await guarded.ask(session, "/reset")).status_code == 200
    assert problem(await guarded.ask({**session, "token": TOKEN}, "/reset")) == (403, "unauthorized")


async def make_token(api, **claims):
    answer = await api.http.post("/v1/tokens", json=claims, headers=bearing(TOKEN))
    assert answer.status_code == 201, answer.text
    return answer.json()


async def test_a_signed_token_opens_the_models_it_names_from_the_origins_it_names(guarded):
    made = await make_token(guarded, duration_s=60, models=[WORLD], origins=["http://localhost:5173"])
    assert made["expires_s"] == 1060
    from_page = {**bearing(made["token"]), "Origin": "http://localhost:5173"}
    assert (await guarded.http.post("/v1/sessions", json={"model": WORLD}, headers=from_page)).status_code == 201
    elsewhere = {**bearing(made["token"]), "Origin": "http://localhost:9"}
    answer = await guarded.http.post("/v1/sessions", json={"model": WORLD}, headers=elsewhere)
    assert problem(answer) == (403, "unauthorized")
    other = await make_token(guarded, models=["another"])
    answer = await guarded.http.post("/v1/sessions", json={"model": WORLD}, headers=bearing(other["token"]))
    assert problem(answer) == (403, "unauthorized")


async def test_a_signed_token_makes_no_further_tokens(guarded):
    made = await make_token(guarded)
    assert problem(await guarded.http.post("/v1/tokens", headers=bearing(made["token"]))) == (403, "unauthorized")


@pytest.mark.parametrize(
    "claims",
    [
        {"duration_s": 0},
        {"duration_s": 10**6},
        {"models": "all"},
        {"models": [1]},
        {"origins": ["x"] * 33},
        {"view": 3},
    ],
    ids=str,
)
async def test_wrong_claims_are_refused(guarded, claims):
    answer = await guarded.http.post("/v1/tokens", json=claims, headers=bearing(TOKEN))
    assert problem(answer) == (422, "invalid_request")


def test_a_token_expires_and_cannot_be_forged():
    now = [0.0]
    authority = Authority(ServerSettings(token=TOKEN), lambda: now[0])
    token = authority.make(Claims(expires_s=10, models=("a",)))
    assert authority.read(token).models == ("a",)
    body, _, signature = token.partition(".")
    forged = authority.make(Claims(expires_s=99999)).partition(".")[0]
    for broken in (f"{forged}.{signature}", f"{body}.", "", ".", "a.b", "ü.ü", token[:-2], f"{token}.x"):
        with pytest.raises(Exception, match="wrong token"):
            authority.read(broken)
    other = Authority(ServerSettings(token=TOKEN + "2"), lambda: 0.0)
    with pytest.raises(Exception, match="wrong token"):
        other.read(token)
    now[0] = 10.0
    with pytest.raises(Exception, match="expired"):
        authority.read(token)


async def test_a_watching_token_only_watches(guarded):
    answer = await guarded.http.post("/v1/sessions", json={"model": WORLD}, headers=bearing(TOKEN))
    session = answer.json()
    made = await guarded.http.post("/v1/tokens", json={"view": session["id"]}, headers=bearing(session["token"]))
    watching = made.json()["token"]
    assert problem(await guarded.ask({**session, "token": watching}, "/reset")) == (403, "unauthorized")
    opened = await guarded.http.post("/v1/sessions", json={"model": WORLD}, headers=bearing(watching))
    assert problem(opened) == (403, "unauthorized")
    offer = await guarded.http.post(
        f"/whep/{session['id']}", content=b"v=0", headers={**bearing(watching), "Content-Type": "application/sdp"}
    )
    assert problem(offer) == (422, "invalid_request"), "the token was good, the offer was not"
    stranger = await guarded.http.post("/v1/tokens", json={"view": session["id"]}, headers=bearing(TOKEN))
    assert problem(stranger) == (403, "unauthorized")


# Settings


@pytest.mark.parametrize(
    ("host", "loopback"),
    [("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("localhost", True), ("0.0.0.0", False),
     ("192.0.2.1", False), ("::", False), ("example.org", False)],
)  # fmt: skip
def test_any_bind_but_loopback_demands_a_token(host, loopback):
    assert is_loopback(host) is loopback
    if loopback:
        ServerSettings(host=host)
    else:
        with pytest.raises(ConfigurationError, match="token"):
            ServerSettings(host=host)
        ServerSettings(host=host, token=TOKEN)


@pytest.mark.parametrize(
    "wrong", [{"token": "short"}, {"port": -1}, {"port": 70000}, {"allowed_origins": ("page.example",)},
              {"allowed_origins": ("https://page.example/path",)},
              {"ice_servers": (IceServer(("turn.example",)),)}, {"ice_servers": (IceServer(("stun:a b",)),)},
              {"ice_servers": (IceServer(("http://x",)),)}]
)  # fmt: skip
def test_wrong_settings_are_refused_at_load(wrong):
    with pytest.raises(ConfigurationError):
        ServerSettings(**wrong)


def test_ice_servers_are_named_as_browsers_do():
    for url in ("stun:stun.example", "stun:192.0.2.1:3478", "turn:t.example:3478?transport=udp", "turns:t.example"):
        ServerSettings(ice_servers=(IceServer((url,), "user", "secret"),))


def test_a_token_file_is_read_only_if_others_cannot(tmp_path):
    path = tmp_path / "token"
    path.write_text(f"{TOKEN}\n")
    path.chmod(0o600)
    assert read_token_file(path) == TOKEN
    path.chmod(0o644)
    with pytest.raises(ConfigurationError, match="chmod"):
        read_token_file(path)
    path.chmod(0o600)
    path.write_text("")
    with pytest.raises(ConfigurationError, match="empty"):
        read_token_file(path)
    with pytest.raises(ConfigurationError, match="cannot read"):
        read_token_file(tmp_path / "absent")
