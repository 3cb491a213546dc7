"""`vqshield compare`: two finished runs next to each other, image by image."""

from vqshield.cli.derived import Option, Values
from vqshield.cli.options import command
from vqshield.cli.output import AsJson, show, show_json
from vqshield_deploy.gating.comparison import compare as run_compare


@command(
    run_compare,
    before=Option(argument=True),
    after=Option(argument=True),
    radii=Option("radius"),
)
def compare(values: Values, as_json: AsJson = False) -> None:
    """Compare two finished runs on the same images.

    Takes the --out folders of evaluate, ladder or certify. Shows the paired difference of every result.
    """
    found = values.call(run_compare)
    if as_json:
        show_json(found)
    else:
        show(found.table.terminal(), *found.notes)
