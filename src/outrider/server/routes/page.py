"""What needs no key: the page, which asks for one itself, and `/health`."""

from __future__ import annotations

from importlib.resources import files

from fastapi import APIRouter
from fastapi.responses import PlainTextResponse, Response

from ..access import State

router = APIRouter()

_PAGE = files("outrider.server") / "page"
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
async def page() -> Response:
    """Return the page."""
    return _file("index.html", "text/html")


@router.get("/page.css")
async def style() -> Response:
    """Return how the page looks."""
    return _file("page.css", "text/css")


@router.get("/page.js")
async def script() -> Response:
    """Return what the page does."""
    return _file("page.js", "text/javascript")


def _file(name: str, kind: str) -> Response:
    content = (_PAGE / name).read_bytes()
    return Response(content, media_type=f"{kind}; charset=utf-8", headers=_HEADERS)
