"""What is served and how it goes: `/v1/models`, `/v1/stats` and `/metrics`."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Depends
from fastapi.responses import Response

from ..access import ServerState, State, check_key

router = APIRouter(dependencies=[Depends(check_key)])


@router.get("/v1/models")
async def models(state: State) -> dict[str, Any]:
    """List the model."""
    return {"object": "list", "data": [_described(state)]}


@router.get("/v1/models/{name:path}")
async def model(name: str, state: State) -> dict[str, Any]:
    """Describe the model; 404 for another name."""
    state.requests.check_model(name)
    return _described(state)


@router.get("/v1/stats")
async def stats(state: State) -> dict[str, Any]:
    """Return what runs, waits and was emitted."""
    service = state.requests.service
    decoder, found = service.decoder, service.decoder.metrics
    return {
        "model": state.requests.model,
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


def _described(state: ServerState) -> dict[str, Any]:
    name = state.requests.model
    return {
        "id": name,
        "object": "model",
        "created": state.started,
        "owned_by": "outrider",
        "root": name,
        "max_model_len": state.requests.service.decoder.max_length,
    }
