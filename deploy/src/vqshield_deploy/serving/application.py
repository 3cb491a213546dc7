"""The application: /classify, /healthz, /readyz, /metrics and /openapi.json."""

import asyncio
import os
import queue
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Annotated

import torch
from fastapi import FastAPI, File, HTTPException, Request, Response, UploadFile
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse

import vqshield
from vqshield_deploy.serving.batching import Batcher
from vqshield_deploy.serving.guard import Guard
from vqshield_deploy.serving.limits import Limits
from vqshield_deploy.serving.metrics import Metrics
from vqshield_deploy.serving.pictures import decode
from vqshield_deploy.serving.predictor import Answer, Predictor, Voted

TEXT = "text/plain; version=0.0.4; charset=utf-8"
RETRY = {"Retry-After": "1"}


def create_app(
    predictor: Predictor,
    limits: Limits | None = None,
    *,
    threads: int | None = None,
    keys: Sequence[bytes] = (),
) -> Guard:
    """The ASGI application of a predictor, for any server.

    Args:
        predictor: what answers.
        limits: what is taken (default: `Limits()`).
        threads: torch threads (default: one per core).
        keys: digests of API keys; empty: none are needed.
    """
    limits, metrics = limits or Limits(), Metrics()
    threads = threads or os.cpu_count() or 1
    batcher = Batcher(predictor, limits, metrics, threads)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        batcher.thread.start()
        yield
        await asyncio.to_thread(batcher.stop)

    # No pages at /docs and /redoc: they would load scripts from elsewhere. /openapi.json is served.
    app = FastAPI(
        title="vqshield serve",
        version=vqshield.__version__,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )

    @app.post("/classify", response_model=predictor.answer)
    async def classify(
        file: Annotated[UploadFile, File(description="A PNG or JPEG image.")], request: Request
    ) -> Answer:
        """Classify an image."""
        try:
            async with asyncio.timeout(limits.answer_s):
                pixels = await asyncio.to_thread(
                    decode, file.file, predictor.input, max_pixels=limits.max_pixels
                )
                answer = await asyncio.wrap_future(batcher.submit(pixels))
        except queue.Full:
            text = f"{limits.queue} images are waiting already; try again soon"
            raise HTTPException(503, text, headers=RETRY) from None
        except TimeoutError:
            text = f"the answer took more than {limits.answer_s:g} s; try again later"
            raise HTTPException(503, text, headers=RETRY) from None
        if isinstance(answer, Voted) and answer.abstained:
            metrics.abstentions.inc()
            request.state.outcome = "abstained"
        return answer

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> JSONResponse:
        """What is missing, without what was sent instead: it may be large, or no text."""
        problems = [{key: problem[key] for key in ("loc", "msg", "type")} for problem in error.errors()]
        return JSONResponse({"detail": problems}, 422)

    @app.get("/healthz")
    async def healthz(response: Response) -> dict[str, str | int | bool]:
        """Whether the process can answer at all; what runs there."""
        alive = batcher.thread.is_alive()
        response.status_code = 200 if alive else 503
        defense = predictor.defense
        return {
            "alive": alive, "vqshield": vqshield.__version__, "torch": torch.__version__, "threads": threads,
            "defense": "none" if defense is None else type(defense).__name__, "backend": predictor.backend,
        }  # fmt: skip

    @app.get("/readyz")
    async def readyz(response: Response) -> dict[str, bool]:
        """Whether the model is warm."""
        response.status_code = 200 if batcher.ready else 503
        return {"ready": batcher.ready}

    @app.get("/metrics", response_class=Response)
    async def metrics_page() -> Response:
        """Counts for Prometheus."""
        return Response(metrics.page(), media_type=TEXT)

    return Guard(app, limits, metrics, keys)
