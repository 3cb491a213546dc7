"""The page in Gradio and its server, which work offline and send no reports."""

import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import fields
from importlib import resources
from tempfile import TemporaryDirectory
from typing import Any

import torch

from vqshield.app.attacking import ATTACKS
from vqshield.app.choices import (
    MOST_BETA,
    MOST_CODES,
    MOST_NOISE,
    MOST_SIZE,
    SETTINGS,
    Choice,
    list_choices,
)
from vqshield.app.fragments import enlarged, recorded_panel
from vqshield.app.handlers import Controls, controls_of, show_attack, show_shield
from vqshield.app.subjects import SIDE, Limits, class_name, offered_images
from vqshield.core.errors import InvalidInputError
from vqshield.integrations import require

TITLE = "vqshield"
FIRST = Choice()
INTRODUCTION = (
    "# vqshield\n"
    "Every picture is cut into patches, and each patch becomes the nearest of *k* centres found in that "
    "picture. See what the classifier makes of it, then attack it."
)
_KEPT = (
    3600,
    3600,
)  # seconds: how often pictures that were shown are cleared away, and how old they are then
_UPLOADS = "GRADIO_TEMP_DIR"
_SYSTEM_FONTS = ["system-ui", "sans-serif"]


def serve(
    *, host: str = "127.0.0.1", port: int = 7860, browser: bool = False, limits: Limits | None = None
) -> None:
    """Serve the page until Ctrl-C.

    Args:
        host: address to listen at; 127.0.0.1 can be reached from this machine alone.
        port: port to listen at.
        browser: open the page in a browser.
        limits: what is taken from visitors.

    Raises:
        MissingExtraError: Gradio is not installed.
        InvalidInputError: the port is taken, or the host is not this machine.
    """
    limits = limits or Limits()
    gradio = _gradio()
    # A thread a call, a call a core: threads that share cores wait for each other most of the time.
    torch.set_num_threads(1)
    show_shield(_first_controls(), limits)  # the first call is slow: do it before the first visitor
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends like Ctrl-C: the uploads are removed
    with TemporaryDirectory(
        prefix="vqshield-app-", dir=os.environ.get(_UPLOADS), ignore_cleanup_errors=True
    ) as folder:
        os.environ[_UPLOADS] = folder  # readable by this user alone, unlike Gradio's default
        page = create_page(limits)
        try:
            page.launch(
                server_name=host, server_port=port, inbrowser=browser, share=False, quiet=True,
                ssr_mode=False, pwa=False, mcp_server=False, enable_monitoring=False,
                max_file_size=limits.max_bytes, footer_links=[], prevent_thread_lock=True, show_error=False,
                theme=gradio.themes.Default(font=_SYSTEM_FONTS, font_mono=["ui-monospace", "monospace"]),
                css=(resources.files("vqshield.app") / "assets" / "style.css").read_text(encoding="utf-8"),
                app_kwargs={"middleware": [_host_check(host)]},
            )  # fmt: skip
        except OSError as error:
            raise InvalidInputError(
                f"port {port} of {host} is taken, or {host} is not an address of this machine; choose another"
            ) from error
        print(f"vqshield app is at http://{host}:{page.server_port} until Ctrl-C", flush=True)
        page.block_thread()


def _host_check(host: str) -> Any:
    """Refuse Host headers with foreign names: with these, a page from elsewhere could read this one.

    At 0.0.0.0 and :: any name may be this machine's, so all are answered.
    """
    trusted = require("starlette.middleware.trustedhost", "app").TrustedHostMiddleware
    named = f"[{host}]" if ":" in host else host
    hosts = ["*"] if host in ("0.0.0.0", "::") else ["127.0.0.1", "localhost", "[::1]", named]
    return require("starlette.middleware", "app").Middleware(trusted, allowed_hosts=hosts)


def create_page(limits: Limits) -> Any:
    """The page, ready to be launched: a gradio.Blocks."""
    gradio = _gradio()
    with gradio.Blocks(title=TITLE, analytics_enabled=False, delete_cache=_KEPT) as page:
        gradio.Markdown(INTRODUCTION)
        worth = gradio.HTML(recorded_panel(FIRST), elem_id="worth")
        with gradio.Row():
            with gradio.Column(scale=2, min_width=300):
                inputs = _controls(gradio)
                again = gradio.Button("Shield again: fresh noise", elem_id="again")
            with gradio.Column(scale=3, min_width=300):
                notice = gradio.HTML(elem_id="notice")
                pair = _slider(gradio, "clean ◂ ▸ shielded", "shielded")
                answers = gradio.HTML(elem_id="answers")
                codebook = gradio.HTML(elem_id="codebook")
            with gradio.Column(scale=3, min_width=300):
                kind = gradio.Radio(
                    [(f"An attacker who {each.title}", name) for name, each in ATTACKS.items()],
                    value="through", label="Attack", elem_id="kind",
                )  # fmt: skip
                attack = gradio.Button("Attack", variant="primary", elem_id="attack")
                attacked_pair = _slider(gradio, f"clean ◂ ▸ attacked, {SIDE}×{SIDE}", "attacked")
                attacked_answers = gradio.HTML(elem_id="attacked-answers")
        _wire(
            gradio, page, limits, inputs, kind, again=again, attack=attack,
            shield_outputs=[notice, worth, pair, answers, codebook],
            attacked=[attacked_pair, attacked_answers],
        )  # fmt: skip
    page.queue(max_size=limits.waiting, default_concurrency_limit=1)
    return page


def _controls(gradio: Any) -> dict[str, Any]:
    """The controls of the left column, by the names of the fields of Controls, and the gallery."""
    offered = offered_images()
    gallery = gradio.Gallery(
        [
            (enlarged(image), class_name(int(label)))
            for image, label in zip(offered.images, offered.labels, strict=True)
        ],
        label="Pick a picture", columns=5, height="auto", allow_preview=False, buttons=[], interactive=False,
        object_fit="contain", format="png", elem_id="gallery",
    )  # fmt: skip
    number = gradio.Number(0, visible="hidden", label="picture", precision=0)
    upload = gradio.File(
        label="Or drop your own: PNG or JPEG", file_types=[".png", ".jpg", ".jpeg"], height=170,
        elem_id="upload",
    )  # fmt: skip
    defense = gradio.Radio(
        [(Choice(defense=name).title, name) for name in list_choices()], value=FIRST.defense, label="Defense",
        elem_id="defense",
    )  # fmt: skip

    def slider(name: str, least: float, most: float, step: float, label: str) -> Any:
        return gradio.Slider(
            least, most, value=getattr(FIRST, name), step=step, label=label, elem_id=name, buttons=[]
        )

    return {
        "gallery": gallery,
        "number": number,
        "upload": upload,
        "defense": defense,
        "size": slider("size", 1, MOST_SIZE, 1, "s: side of a patch, pixels"),
        "codes": slider("codes", 1, MOST_CODES, 1, "k: centres of the codebook"),
        "sigma": slider("sigma", 0, MOST_NOISE, 0.1, "σ: noise when centres are sought, in 255ths"),
        "tau": slider("tau", 0, MOST_NOISE, 0.1, "τ: noise when a centre is chosen, in 255ths"),
        "beta": slider("beta", 0, MOST_BETA, 0.5, "β: how much windows that fit well count for more"),
    }


def _slider(gradio: Any, label: str, name: str) -> Any:
    return gradio.ImageSlider(
        label=label, format="png", interactive=False, buttons=["fullscreen"], elem_id=name, max_height=420
    )


def _wire(
    gradio: Any,
    page: Any,
    limits: Limits,
    inputs: dict[str, Any],
    kind: Any,
    *,
    again: Any,
    attack: Any,
    shield_outputs: Sequence[Any],
    attacked: Sequence[Any],
) -> None:
    """Say which event calls what."""
    names = [field.name for field in fields(Controls)]
    values = [inputs[name] for name in names]

    def shield_values(*given: Any) -> tuple[Any, ...]:
        view = show_shield(Controls(**dict(zip(names, given, strict=True))), limits)
        return view.notice, view.worth, view.pair, view.answers, view.codebook

    def attack_values(kind: str, *given: Any) -> tuple[Any, ...]:
        view = show_attack(Controls(**dict(zip(names, given, strict=True))), kind, limits)
        return view.notice, view.worth, view.pair, view.answers

    def slider_values(defense: str) -> list[Any]:
        chosen = controls_of(defense)
        return [
            gradio.update(value=chosen[name].value, interactive=not chosen[name].fixed) for name in SETTINGS
        ]

    def picked(event: Any) -> tuple[int, None]:
        return event.index, None

    picked.__annotations__["event"] = gradio.SelectData  # by this Gradio knows what to hand over

    cores = os.cpu_count() or 1

    def shield_on(event: Callable[..., Any], **more: Any) -> None:
        event(
            shield_values, values, shield_outputs, concurrency_limit=cores, concurrency_id="shield",
            show_progress="minimal", trigger_mode="always_last", **more,
        )  # fmt: skip

    hidden = {"queue": False, "api_visibility": "private", "show_progress": "hidden"}
    shield_on(page.load, api_visibility="private")
    shield_on(again.click, api_name="shield")
    for name in SETTINGS:
        shield_on(inputs[name].release, api_visibility="private")
    for event in (inputs["upload"].upload, inputs["upload"].clear):
        shield_on(event, api_visibility="private")
    chosen = inputs["defense"].input(
        slider_values, [inputs["defense"]], [inputs[name] for name in SETTINGS], **hidden
    )
    shield_on(chosen.then, api_visibility="private")
    selected = inputs["gallery"].select(picked, None, [inputs["number"], inputs["upload"]], **hidden)
    shield_on(selected.then, api_visibility="private")
    attacking = attack.click(
        attack_values, [kind, *values], [*shield_outputs[:2], *attacked], api_name="attack",
        concurrency_limit=1, concurrency_id="attack", show_progress="minimal",
    )  # fmt: skip
    # An attack belongs to the values it was made with: cancel one that still runs, clear one that is shown.
    changes = [each.change for each in (kind, *values)]
    gradio.on(changes, None, cancels=[attacking], **hidden)
    gradio.on(changes, lambda: (None, None), None, attacked, trigger_mode="multiple", **hidden)


def _first_controls() -> Controls:
    values = {name: control.value for name, control in controls_of(FIRST.defense).items()}
    return Controls(number=0, upload=None, defense=FIRST.defense, **values)


def _gradio() -> Any:
    """The library, with its analytics switched off before it is imported."""
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
    return require("gradio", "app")
