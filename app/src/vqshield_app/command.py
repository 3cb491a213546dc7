"""`vqshield app`: a page to play with, in the browser."""

from typing import Annotated

import typer


def app(
    host: Annotated[
        str, typer.Option(help="Address to listen on. 127.0.0.1 can be reached from this machine alone.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port to listen on.")] = 7860,
    browser: Annotated[
        bool, typer.Option("--browser/--no-browser", help="Open the page in a browser.")
    ] = True,
) -> None:
    """Open a page to defend and attack pictures; works offline."""
    from vqshield_app.page import serve  # here, so that --help does not wait for torch

    serve(host=host, port=port, browser=browser)
