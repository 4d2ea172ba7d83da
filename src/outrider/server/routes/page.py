"""What needs no key: the page, which asks for one itself, and `/health`."""

from __future__ import annotations

from importlib.resources import files

from fastapi import APIRouter, Request
from fastapi.responses import PlainTextResponse, Response

from ..access import State

router = APIRouter()

_PAGE = files("outrider.server") / "page"
_FILES = {
    "/": ("index.html", "text/html"),
    "/page.css": ("page.css", "text/css"),
    "/page.js": ("page.js", "text/javascript"),
}
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:"
)
_HEADERS = {"Content-Security-Policy": _POLICY, "Referrer-Policy": "no-referrer"}


@router.api_route("/health", methods=["GET", "HEAD"])
async def health(state: State) -> Response:
    """Say whether requests are taken."""
    service = state.requests.service
    alive = service.alive and not service.closing
    return PlainTextResponse("ok" if alive else "closing", 200 if alive else 503)


@router.get("/")
@router.get("/page.css")
@router.get("/page.js")
async def page(request: Request) -> Response:
    """Return a file of the page."""
    name, kind = _FILES[request.scope["route"].path]
    content = (_PAGE / name).read_bytes()
    return Response(content, media_type=f"{kind}; charset=utf-8", headers=_HEADERS)
