"""`vqshield serve`: a defended classifier behind HTTP."""

from collections.abc import Mapping

from vqshield.cli.derived import Option, PythonOnly, Values
from vqshield.cli.options import DEFENSES, TRY_BUNDLED, command
from vqshield.cli.output import show
from vqshield.cli.unused import Unused, option_is
from vqshield.core.display_names import NONE
from vqshield.core.errors import printable
from vqshield.core.settings import parse_number
from vqshield_deploy.serving.deployment import Deployment
from vqshield_deploy.serving.limits import Limits
from vqshield_deploy.serving.server import serve as run_server

UNUSED = (
    Unused("with --votes 1", option_is("votes", 1), "selection alpha abstain sequential"),
    Unused("without --rate", option_is("rate", 0), "burst"),
)


def _channels(name: str, text: str) -> Option:
    def parse(numbers: str, _: Mapping[str, object]) -> tuple[float, ...]:
        return tuple(parse_number(name, number) for number in numbers.split(","))

    return Option(type=str, metavar="R,G,B", parse=parse, help=text)


@command(
    run_server,
    Deployment,
    deployment=PythonOnly("made from the options of its fields"),
    limits=PythonOnly("made from the options of its fields"),
    started=PythonOnly("the command prints the address"),
    classifier=TRY_BUNDLED,
    defense=Option(
        help=f"One of {DEFENSES}, as in swrd:size=3,codes=25, or {NONE} (default: the one that the "
        "classifier's file says it was fine-tuned behind, else swrd)."
    ),
    mean=_channels(
        "mean",
        "Mean of each channel, in units of [0, 1], for a module:function that needs normalised images.",
    ),
    std=_channels("std", "Standard deviation of each channel, next to --mean."),
)
def serve(values: Values, limits: Limits) -> None:
    """Serve a defended classifier over HTTP.

    POST an image file to /classify. /healthz and /readyz are for supervisors, /metrics is for Prometheus, and
    /openapi.json describes the interface.

    SIGTERM and Ctrl-C stop the server after it has answered the requests that have arrived.
    """
    deployment = values.call(Deployment)

    def started(host: str, port: int) -> None:
        place = f"[{host}]" if ":" in host else host
        show(f"serving {printable(deployment)} on http://{place}:{port}", err=True)
        if deployment.seed is not None:
            warning = "whoever knows the seed can rehearse every sample; use it for tests only"
            show(f"WARNING: seed={deployment.seed}: {warning}", err=True)

    values.call(run_server, deployment=deployment, limits=limits, started=started)
