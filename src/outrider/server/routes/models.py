"""`/v1/models`: the model, under its name."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Depends

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


def _described(state: ServerState) -> dict[str, Any]:
    name = state.requests.terms.model
    return {
        "id": name,
        "object": "model",
        "created": state.started,
        "owned_by": "outrider",
        "root": name,
        "max_model_len": state.requests.service.decoder.max_length,
    }
