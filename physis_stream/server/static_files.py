"""The playground at `/` and the browser client at `/client/physis.js`.

Plain files, never cached, under a strict policy.

They lie in the installed package or, in a source tree, beside it. No path of a client leads outside of the two
folders.
"""

from __future__ import annotations

from pathlib import Path

from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Route

from physis_stream.core.errors import NotFound

TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".mjs": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".json": "application/json",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".jpg": "image/jpeg",
    ".webp": "image/webp",
    ".ico": "image/x-icon",
    ".woff2": "font/woff2",
    ".wasm": "application/wasm",
    ".ts": "text/plain; charset=utf-8",
    ".map": "application/json",
    ".md": "text/plain; charset=utf-8",
    ".txt": "text/plain; charset=utf-8",
}
POLICY = (
    "default-src 'self'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; "
    "media-src 'self' blob: mediastream:; connect-src 'self' ws: wss:; worker-src 'self' blob:; object-src 'none'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
)
PACKAGE = Path(__file__).resolve().parents[1]


def asset_folder(installed: str, source: str) -> Path:
    """Return the folder of assets: `_assets/<installed>` of the package, else `<source>` of the source tree."""
    inside = PACKAGE / "_assets" / installed
    return inside if inside.is_dir() else PACKAGE.parent / source


class Folder:
    """Serves the files under one folder."""

    def __init__(self, root: Path) -> None:
        self._root = root.resolve()

    async def answer(self, request: Request) -> Response:
        wanted = str(request.path_params.get("path", "")) or "index.html"
        return self.file(wanted)

    def file(self, wanted: str) -> Response:
        """Return the file, or raise NotFound for what is absent, hidden, of unknown type or outside."""
        parts = Path(wanted).parts
        if "\x00" in wanted or any(part.startswith(".") for part in parts):
            raise NotFound("no such page")
        path = (self._root / wanted).resolve()
        if not path.is_relative_to(self._root) or not path.is_file() or path.suffix not in TYPES:
            raise NotFound("no such page")
        headers = {"Cache-Control": "no-cache", "Content-Security-Policy": POLICY}
        return FileResponse(path, headers=headers, media_type=TYPES[path.suffix])


def routes(playground: Path, client: Path) -> list[Route]:
    """The pages' routes; the playground's come last, since they match everything."""
    return [
        Route("/client/{path:path}", Folder(client).answer, methods=["GET"]),
        Route("/", Folder(playground).answer, methods=["GET"]),
        Route("/{path:path}", Folder(playground).answer, methods=["GET"]),
    ]
