"""`/v1/stats` for the page, and `/metrics` for Prometheus."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Depends
from fastapi.responses import Response

from ..access import State, check_key

router = APIRouter(dependencies=[Depends(check_key)])


@router.get("/v1/stats")
async def stats(state: State) -> dict[str, Any]:
    """Return what runs, waits and was emitted."""
    service = state.requests.service
    decoder, found = service.decoder, service.decoder.metrics
    return {
        "model": state.requests.terms.model,
        "runtime": decoder.target.name,
        "drafter": "nothing" if decoder.drafter is None else type(decoder.drafter).__name__,
        "running": service.running,
        "waiting": service.waiting,
        "emitted": found.emitted,
        "tokens_per_s": found.tokens_per_s,
        "acceptance_length": found.acceptance_length,
        "acceptance_rate": found.acceptance_rate,
        "per_position": found.per_position,
    }


@router.get("/metrics")
async def metrics(state: State) -> Response:
    """Return all figures in Prometheus's format."""
    return Response(state.metrics.text(), media_type=state.metrics.media_type)
