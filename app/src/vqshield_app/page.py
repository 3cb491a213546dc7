"""The page in Gradio and its server, which work offline and send no reports."""

import os
import signal
from collections.abc import Callable
from dataclasses import asdict, fields
from importlib import resources
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any

import torch

from vqshield.core.errors import InvalidInputError
from vqshield.integrations import require
from vqshield_app import choices
from vqshield_app.choices import SETTINGS, Choice, list_choices, settings_of, usual
from vqshield_app.experiments import ATTACKS, EPSILON, MOST_EPSILON
from vqshield_app.fragments import enlarged, recorded_panel
from vqshield_app.handlers import Controls, View, show_attack, show_shield
from vqshield_app.subjects import SIDE, Limits, offered_images

TITLE = "vqshield"
FIRST = Choice()
INTRODUCTION = (
    "# vqshield\n"
    "A defense replaces every patch of a picture by the nearest of *k* centres found in that picture. "
    "Look at the classes that a classifier predicts, then attack them."
)
_HOUR = 3600  # seconds
_UPLOADS = "GRADIO_TEMP_DIR"
ATTACK, BUSY = "Attack", "Attacking …"
_START = """
() => {
  // On a phone the settings are folded: pictures, attack and result come first.
  if (matchMedia("(max-width: 640px)").matches) document.querySelector("#settings > button")?.click();
  // A name that differs from the text in view is none: speech control finds things by what is read.
  const rename = () => document.querySelectorAll(".upload-container[aria-label]")
    .forEach(found => found.removeAttribute("aria-label"));
  rename();
  new MutationObserver(rename).observe(document.body, {childList: true, subtree: true});
}
"""
_SYSTEM_FONTS = ["system-ui", "sans-serif"]


def serve(
    *, host: str = "127.0.0.1", port: int = 7860, browser: bool = False, limits: Limits | None = None
) -> None:
    """Serve the page until Ctrl-C; at 127.0.0.1, it can be reached from this machine alone.

    Raises:
        MissingExtraError: Gradio is not installed.
        InvalidInputError: the port is taken, or the host is not this machine.
    """
    limits = limits or Limits()
    gradio = _gradio()
    # A thread a call, a call a core: threads that share cores wait for each other most of the time.
    torch.set_num_threads(1)
    first = Controls(number=0, upload=None, **asdict(FIRST))
    show_shield(first, limits)  # the first call is slow: do it before the first visitor
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
                css=(resources.files("vqshield_app") / "assets" / "style.css").read_text(encoding="utf-8"),
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
    trusted = require("starlette.middleware.trustedhost", "./app").TrustedHostMiddleware
    named = f"[{host}]" if ":" in host else host
    hosts = ["*"] if host in ("0.0.0.0", "::") else ["127.0.0.1", "localhost", "[::1]", named]
    return require("starlette.middleware", "./app").Middleware(trusted, allowed_hosts=hosts)


def create_page(limits: Limits) -> Any:
    """The page, ready to be launched: a gradio.Blocks."""
    gradio = _gradio()
    parts: dict[str, Any] = {}  # by name; the controls by the fields of Controls
    with gradio.Blocks(title=TITLE, analytics_enabled=False, delete_cache=(_HOUR, _HOUR)) as page:
        gradio.Markdown(INTRODUCTION)
        parts["worth"] = gradio.HTML(recorded_panel(FIRST), elem_id="worth")
        with gradio.Row(elem_id="desk"):  # in the order of a phone; style.css has the desk's columns
            with gradio.Column(elem_id="pictures"):
                parts |= _pictures(gradio)
            with gradio.Column(elem_id="attacking"):
                parts["notice"] = gradio.HTML(elem_id="notice")
                parts["kind"] = gradio.Radio(
                    [(kind.title, name) for name, kind in ATTACKS.items()], value="through",
                    label="Attacker", elem_id="kind",
                )  # fmt: skip
                parts["eps"] = gradio.Slider(
                    1, MOST_EPSILON, value=EPSILON, step=1, label="ε: largest change of a value, in 255ths",
                    elem_id="eps", buttons=[],
                )  # fmt: skip
                parts["attack"] = gradio.Button(ATTACK, variant="primary", elem_id="attack")
                parts["attacked pair"] = _slider(gradio, f"clean ◂ ▸ attacked, {SIDE}×{SIDE}", "attacked")
                parts["attacked answers"] = gradio.HTML(elem_id="attacked-answers")
            with gradio.Column(elem_id="defending"):
                parts["pair"] = _slider(gradio, "clean ◂ ▸ defended", "shielded")
                parts["answers"] = gradio.HTML(elem_id="answers")
                parts["codebook"] = gradio.HTML(elem_id="codebook")
            with gradio.Column(elem_id="controls"):
                parts |= _controls(gradio)
                parts["again"] = gradio.Button("Defend again: fresh noise", elem_id="again")
        _wire(gradio, page, limits, parts)
    page.queue(max_size=limits.waiting, default_concurrency_limit=1)
    return page


def _pictures(gradio: ModuleType) -> dict[str, Any]:
    """What picture is looked at, by the names of the fields of Controls, and the gallery."""
    offered = offered_images()
    return {
        "gallery": gradio.Gallery(
            [
                (enlarged(image), offered.classes[int(label)])
                for image, label in zip(offered.images, offered.labels, strict=True)
            ],
            label="Pick a picture", columns=5, height="auto", allow_preview=False, buttons=[],
            interactive=False, object_fit="contain", format="png", elem_id="gallery",
        ),
        "number": gradio.Number(0, visible="hidden", label="picture", precision=0),
        "upload": gradio.File(
            label="Or drop your own: PNG or JPEG", file_types=[".png", ".jpg", ".jpeg"], height=140,
            elem_id="upload",
        ),
    }  # fmt: skip


def _controls(gradio: ModuleType) -> dict[str, Any]:
    """The defense and its settings, by the names of the fields of Controls."""
    defense = gradio.Radio(
        [(Choice(defense=name).title, name) for name in list_choices()], value=FIRST.defense,
        label="Defense", elem_id="defense",
    )  # fmt: skip

    def slider(name: str, least: float, most: float, step: float, label: str) -> Any:
        return gradio.Slider(
            least, most, value=getattr(FIRST, name), step=step, label=label, elem_id=name, buttons=[]
        )

    with gradio.Accordion("Settings", elem_id="settings"):
        return {
            "defense": defense,
            "size": slider("size", 1, choices.MOST_SIZE, 1, "s: side of a patch, pixels"),
            "codes": slider("codes", 1, choices.MOST_CODES, 1, "k: centres of the codebook"),
            "sigma": slider(
                "sigma", 0, choices.MOST_NOISE, 0.1, "σ: noise while centres are found, in 255ths"
            ),
            "tau": slider("tau", 0, choices.MOST_NOISE, 0.1, "τ: noise while a centre is chosen, in 255ths"),
            "beta": slider("beta", 0, choices.MOST_BETA, 0.5, "β: extra weight of windows that fit well"),
        }


def _slider(gradio: ModuleType, label: str, name: str) -> Any:
    return gradio.ImageSlider(
        label=label, format="png", interactive=False, buttons=["fullscreen"], elem_id=name, max_height=420
    )


def _wire(gradio: ModuleType, page: Any, limits: Limits, parts: dict[str, Any]) -> None:
    """Connect events to handlers."""
    names = [field.name for field in fields(Controls)]
    controls = [parts[name] for name in names]
    sliders = [parts[name] for name in SETTINGS]
    shielded = [parts[name] for name in View._fields]
    attacked = [parts["attacked pair"], parts["attacked answers"], parts["attack"]]

    def shield_values(*values: Any) -> View:
        return show_shield(Controls(**dict(zip(names, values, strict=True))), limits)

    def ready() -> Any:
        return gradio.update(value=ATTACK, interactive=True)

    def attack_values(kind: str, eps: float, *values: Any) -> tuple[Any, ...]:
        view = show_attack(Controls(**dict(zip(names, values, strict=True))), kind, eps, limits)
        return *view[:4], ready()

    def slider_values(defense: str) -> list[Any]:
        measured, free = usual(defense), settings_of(defense)
        return [gradio.update(value=getattr(measured, name), interactive=name in free) for name in SETTINGS]

    def picked(event: Any) -> tuple[int, None]:
        return event.index, None

    picked.__annotations__["event"] = gradio.SelectData  # by this Gradio knows what to hand over

    def shield_on(event: Callable[..., Any], **options: Any) -> None:
        event(
            shield_values, controls, shielded, concurrency_limit=os.cpu_count() or 1, concurrency_id="shield",
            show_progress="minimal", trigger_mode="always_last", **options,
        )  # fmt: skip

    shield_on(page.load, api_visibility="private")
    shield_on(parts["again"].click, api_name="shield")
    for slider in sliders:
        shield_on(slider.release, api_visibility="private")
    for event in (parts["upload"].upload, parts["upload"].clear):
        shield_on(event, api_visibility="private")
    hidden = {"queue": False, "api_visibility": "private", "show_progress": "hidden"}
    chosen = parts["defense"].input(slider_values, [parts["defense"]], sliders, **hidden)
    shield_on(chosen.then, api_visibility="private")
    selected = parts["gallery"].select(picked, None, [parts["number"], parts["upload"]], **hidden)
    shield_on(selected.then, api_visibility="private")
    busy = f"() => ({{__type__: 'update', value: '{BUSY}', interactive: false}})"
    clicked = parts["attack"].click(None, None, parts["attack"], js=busy, **hidden)
    attacking = clicked.then(
        attack_values, [parts["kind"], parts["eps"], *controls], [*shielded[:2], *attacked],
        api_name="attack", concurrency_limit=1, concurrency_id="attack", show_progress="minimal",
    )  # fmt: skip
    focus = "() => { if (document.activeElement == document.body) document.querySelector('#attack').focus() }"
    attacking.then(None, js=focus, **hidden)  # a button that is disabled loses the keyboard
    # An attack belongs to the values it was made with: cancel one that still runs, clear one that is shown.
    changes = [part.change for part in (parts["kind"], parts["eps"], *controls)]
    gradio.on(changes, None, cancels=[attacking], **hidden)
    gradio.on(changes, lambda: (None, None, ready()), None, attacked, trigger_mode="multiple", **hidden)
    page.load(None, js=_START)


def _gradio() -> ModuleType:
    """The library, with its analytics switched off before it is imported."""
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
    gradio: ModuleType = require("gradio", "./app")
    return gradio
