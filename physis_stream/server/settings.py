"""The server's configuration: frozen, checked once at load, with what follows from it as properties."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass, field
from pathlib import Path

from physis_stream.server.limits import Limits

ICE_URL = re.compile(r"stuns?:[^\s:?]+(:\d{1,5})?|turns?:[^\s:?]+(:\d{1,5})?(\?transport=(udp|tcp))?")
LOOPBACK_HOSTS = ("localhost", "127.0.0.1", "::1")


class ConfigurationError(ValueError):
    """The configuration is wrong; the message says how to mend it."""


@dataclass(frozen=True, slots=True)
class Timers:
    """Seconds. A vanished peer is noticed within `silence_s` + `sweep_s`, its slot free `grace_s` later."""

    silence_s: float = 4.0
    grace_s: float = 12.0
    unattached_s: float = 20.0
    lockstep_idle_s: float = 300.0
    sweep_s: float = 0.5
    gather_s: float = 3.0
    connect_s: float = 15.0
    stats_s: float = 1.0
    call_s: float = 30.0
    body_s: float = 15.0
    drain_s: float = 3.0


@dataclass(frozen=True, slots=True)
class IceServer:
    """One STUN or TURN server that both the browser and this server use."""

    urls: tuple[str, ...]
    username: str | None = None
    credential: str | None = None


def is_loopback(host: str) -> bool:
    """Say whether a bind address reaches this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """`token` guards opening sessions; it may be absent only on a loopback bind.

    `allowed_hosts` are further names in the Host header, `allowed_origins` further pages ("https://example.org") that
    may call; loopback hosts always may. `double_below` doubles pictures with a side under that many pixels before
    encoding: VP8 keeps colour at half resolution, which blurs tiny pictures.
    """

    host: str = "127.0.0.1"
    port: int = 8080
    token: str | None = None
    allowed_hosts: tuple[str, ...] = ()
    allowed_origins: tuple[str, ...] = ()
    ice_servers: tuple[IceServer, ...] = ()
    double_below: int = 128
    limits: Limits = field(default_factory=Limits)
    timers: Timers = field(default_factory=Timers)

    def __post_init__(self) -> None:
        if not 0 <= self.port < 65536:
            raise ConfigurationError(f"port must be 0..65535, got {self.port}")
        if not is_loopback(self.host) and not self.token:
            raise ConfigurationError(f"binding {self.host} opens the server to others: give it a token file")
        if self.token is not None and len(self.token) < 16:
            raise ConfigurationError("the token must have at least 16 characters")
        for url in (url for server in self.ice_servers for url in server.urls):
            if not ICE_URL.fullmatch(url):
                raise ConfigurationError(
                    f"an ICE server is stun:host[:port] or turn:host[:port][?transport=], got {url}"
                )
        for origin in self.allowed_origins:
            if "://" not in origin or origin.rstrip("/").count("/") != 2:
                raise ConfigurationError(f"an origin is scheme://host[:port], got {origin}")

    @property
    def hosts(self) -> frozenset[str]:
        """Names that the Host header may carry, without port."""
        bound = () if self.host in ("0.0.0.0", "::") else (self.host.lower(),)
        return frozenset((*LOOPBACK_HOSTS, *bound, *(host.lower() for host in self.allowed_hosts)))

    @property
    def origins(self) -> frozenset[str]:
        return frozenset(origin.rstrip("/").lower() for origin in self.allowed_origins)


def read_token_file(path: Path) -> str:
    """Return the token in a file; raise ConfigurationError if it is missing, empty or readable by others."""
    try:
        mode = path.stat().st_mode
        token = path.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise ConfigurationError(f"cannot read the token file {path}: {error.strerror}") from error
    if mode & 0o077:
        raise ConfigurationError(f"the token file {path} may be read by others: chmod 600 it")
    if not token:
        raise ConfigurationError(f"the token file {path} is empty")
    return token
