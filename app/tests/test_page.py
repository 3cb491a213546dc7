"""How the page is wired and served, with a stand-in for Gradio that calls the listeners at once."""

import os
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from vqshield_app import page as app_page
from vqshield_app.handlers import View
from vqshield_app.subjects import Limits

CONTROLS = ("kind", "eps", "size", "codes", "sigma", "tau", "beta", "defense", "upload", "number")


class Part:
    """A component: its value, and what listens to its events."""

    def __init__(self, value: Any = None, **options: Any) -> None:
        self.value, self.listeners = value, dict[str, list[Listener]]()
        self.name = options.get("elem_id") or options.get("label")

    def __getattr__(self, event: str) -> Any:
        if event.startswith("__"):
            raise AttributeError(event)
        return Trigger(self, event)

    def queue(self, **_: Any) -> None:
        """The page itself is a part too."""

    def fire(self, event: str) -> None:
        for listener in self.listeners.get(event, ()):
            listener.call()


class Trigger(SimpleNamespace):
    """An event of a component; calling it adds a listener, as in Gradio."""

    def __init__(self, part: Part, event: str) -> None:
        super().__init__(part=part, event=event)

    def __call__(self, *call: Any, **options: Any) -> "Listener":
        return Listener([self], *call, **options)


class Listener:
    """Calls a function with the values of the inputs, and gives the outputs theirs."""

    def __init__(
        self,
        triggers: Any,
        function: Any,
        inputs: Any = (),
        outputs: Any = (),
        *,
        cancels: Any = (),
        **_: Any,
    ) -> None:
        self.function, self.inputs, self.outputs, self.cancels = function, inputs or (), outputs, cancels
        self.cancelled, self.followers = False, list[Listener]()
        for trigger in triggers:
            trigger.part.listeners.setdefault(trigger.event, []).append(self)

    def call(self) -> None:
        for other in self.cancels:
            other.cancelled = True
        if self.function is not None:
            found = self.function(*(each.value for each in self.inputs))
            for part, value in zip(self.outputs, found, strict=True):
                part.value = value
        for follower in self.followers:
            follower.call()

    def then(self, *call: Any, **options: Any) -> "Listener":
        self.followers.append(Listener([], *call, **options))
        return self.followers[-1]


class Gradio(SimpleNamespace):
    """As much of the module as the page needs; `parts` has what was made, by its id."""

    def __init__(self) -> None:
        super().__init__(
            parts={}, on=Listener, update=dict, SelectData=object, themes=SimpleNamespace(Default=dict)
        )

    def __getattr__(self, name: str) -> Any:
        if name in ("Blocks", "Row", "Column", "Accordion"):
            return lambda *_, **__: nullcontext(Part())
        return self._part

    def _part(self, *values: Any, **options: Any) -> Part:
        part = Part(options.pop("value", values[0] if values else None), **options)
        self.parts["number" if part.name == "picture" else part.name] = part
        return part


@pytest.fixture
def gradio(monkeypatch: pytest.MonkeyPatch) -> Gradio:
    made = Gradio()
    monkeypatch.setattr(app_page, "_gradio", lambda: made)
    return made


@pytest.mark.parametrize("control", CONTROLS)
def test_an_attack_does_not_outlive_the_values_that_it_was_made_with(
    gradio: Gradio, monkeypatch: pytest.MonkeyPatch, control: str
) -> None:
    shown = View(notice="", worth="", pair=("clean", "attacked"), answers="20 of 20")
    monkeypatch.setattr(app_page, "show_attack", lambda *_: shown)
    app_page.create_page(Limits())
    pictures, answers = gradio.parts["attacked"], gradio.parts["attacked-answers"]
    gradio.parts["attack"].fire("click")
    (clicked,) = gradio.parts["attack"].listeners["click"]
    (attacking,) = clicked.followers
    assert not attacking.cancelled
    assert (pictures.value, answers.value) == (("clean", "attacked"), "20 of 20")
    gradio.parts[control].fire("change")
    assert (pictures.value, answers.value) == (None, None)
    assert gradio.parts["attack"].value == {"value": "Attack", "interactive": True}
    assert attacking.cancelled, "an attack that still runs is of the old values"


def test_an_attack_that_fails_leaves_no_other_on_the_page(
    gradio: Gradio, monkeypatch: pytest.MonkeyPatch
) -> None:
    views = [View(notice="", worth="", pair=("a", "b"), answers="20 of 20"), View(notice="stopped")]
    monkeypatch.setattr(app_page, "show_attack", lambda *_: views.pop(0))
    app_page.create_page(Limits())
    for _ in range(2):
        gradio.parts["attack"].fire("click")
    assert gradio.parts["notice"].value == "stopped"
    assert (gradio.parts["attacked"].value, gradio.parts["attacked-answers"].value) == (None, None)


def serve(monkeypatch: pytest.MonkeyPatch, launch: Any, host: str = "127.0.0.1") -> None:
    """Serve a page that is only launched."""
    page = SimpleNamespace(launch=launch, block_thread=lambda: None, server_port=7860)
    monkeypatch.setattr(app_page, "create_page", lambda _: page)
    monkeypatch.setattr(app_page, "show_shield", lambda *_: None)
    monkeypatch.setattr(app_page.torch, "set_num_threads", lambda _: None)
    monkeypatch.setattr(app_page.signal, "signal", lambda *_: None)
    app_page.serve(host=host)


def test_uploads_lie_in_a_private_folder_that_is_removed(
    gradio: Gradio, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path))
    seen: list[tuple[Path, int]] = []

    def launch(**_: Any) -> None:
        folder = Path(os.environ["GRADIO_TEMP_DIR"])
        seen.append((folder.parent, folder.stat().st_mode & 0o777))
        (folder / "upload.png").touch()

    serve(monkeypatch, launch)
    assert seen == [(tmp_path, 0o700)]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("host", "answered", "refused"),
    [
        ("127.0.0.1", ["127.0.0.1:7860", "localhost:7860", "[::1]:7860"], ["evil.example", "10.0.0.1", ""]),
        ("box.lan", ["box.lan", "localhost"], ["evil.example", "box.lan.evil.example"]),
        ("fe80::1", ["[fe80::1]:7860"], ["evil.example"]),
        ("0.0.0.0", ["any.example", "10.0.0.1:7860"], []),
    ],
)
def test_foreign_host_headers_are_refused(
    gradio: Gradio,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    host: str,
    answered: list[str],
    refused: list[str],
) -> None:
    pytest.importorskip("httpx", reason="starlette's TestClient needs httpx")
    starlette = pytest.importorskip("starlette.applications", reason="comes with Gradio")
    from starlette.testclient import TestClient

    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path))
    clients: list[TestClient] = []
    serve(
        monkeypatch,
        lambda app_kwargs, **_: clients.append(TestClient(starlette.Starlette(**app_kwargs))),
        host,
    )
    statuses = {name: clients[0].get("/", headers={"Host": name}).status_code for name in answered + refused}
    assert statuses == dict.fromkeys(answered, 404) | dict.fromkeys(refused, 400)
