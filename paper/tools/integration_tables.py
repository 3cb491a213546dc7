"""The tables of docs/integrations.md, from benchmarks/results/, for update_docs.py."""

import recorded
from tables import percent, table
from vqshield.core.display_names import display_name


def exports() -> str:
    """Exported models compared with the models."""
    record = recorded.load(recorded.BENCHMARKS / "onnx-cpu.json")
    heads = [
        "bundled classifier behind", "operators", "same class", "same pixels", "logits within",
        "onnxruntime, ms per image", "native kernel, ms per image",
    ]  # fmt: skip
    lines = []
    for row in record.rows:
        native = next(each for each in row.compared if each.backend == "native")
        lines.append(
            [
                display_name(row.defense),
                f"{row.nodes}",
                f"{percent(native.same_class)}%",
                f"{percent(native.same_pixels)}%",
                f"{native.logits_within:.0e}",
                f"{row.milliseconds_an_image:.1f}",
                f"{native.milliseconds_an_image:.1f}",
            ]
        )
    env, versions = record.environment, record.versions
    return table(
        heads,
        lines,
        f"{record.images} bundled images in batches of {record.batch}, the same seed and streams on "
        "both sides. Same pixels: images whose every shielded pixel is within 1e-5; logits within: the "
        f"largest difference in those. Opset {record.rows[0].opset}, CPU time of one thread of "
        f"{env['processor']}, onnxruntime {versions['onnxruntime']}, onnx {versions['onnx']}, torch "
        f"{env['torch']}.",
    )


def adapters() -> str:
    """Which libraries the adapters were tried in."""
    record = recorded.load(recorded.BENCHMARKS / "integrations.json")
    lines = []
    for row in record.rows:
        passed = f"{row.passed} of {row.passed + row.failed}"
        lines.append([row.library, row.version, passed, _yes(row.example_runs)])
    env = record.environment
    return table(
        ["library", "version", "tests passed", "example runs"],
        lines,
        f"All in one environment: Python {env['python']}, torch {env['torch']}.",
    )


def loaders() -> str:
    """The draws of DataLoader workers."""
    record = recorded.load(recorded.BENCHMARKS / "integrations.json")
    heads = ["workers", "repeats with a seed", "differs without one", "no draw twice in two epochs"]
    lines = []
    for row in record.loaders:
        found = (row.repeats_with_a_seed, row.differs_without, row.all_draws_differ)
        lines.append([f"{row.workers} {row.method}".strip(), *map(_yes, found)])
    return table(heads, lines)


def peer_suites() -> str:
    """Attack libraries' own tests, and which settings of a defense they needed."""
    record = recorded.load(recorded.BENCHMARKS / "peer-suites.json")
    heads = ["tests of", "pass with the bare model", "of these shielded, by default", "with settings"]
    lines, needs = [], []
    for row in record.rows:
        helped = [each for each in row.differences if each.passes_with]
        lines.append(
            [
                f"{row.library} {row.version}",
                f"{row.bare_passed}",
                f"{row.shielded_passed}",
                f"{row.shielded_passed + len(helped)}",
            ]
        )
        for settings in dict.fromkeys(each.passes_with for each in row.differences):
            names = [_attack(each.test) for each in row.differences if each.passes_with == settings]
            needs.append(f"- {row.library}, {_needing(settings)}: {_listed(names)}.")
    env = record.environment
    commits = ", ".join(f"{row.library} at {row.commit[:10]}" for row in record.rows)
    return table(
        heads,
        lines,
        f"`{record.defense}` in front of every model. {commits}, torch {env['torch']}, Python "
        f"{env['python']}.",
        *(["\n".join(needs)] if needs else []),
    )


def _needing(settings: str) -> str:
    return f"with `{settings.replace(',', ', ')}`" if settings else "with none of the settings tried"


def _attack(test: str) -> str:
    """What a test is of: the attack's name, without its settings and the model's."""
    name, _, inside = test.partition("::")[2].partition("[")
    attack = inside.removesuffix("]").partition("(")[0].rpartition("-")[2]
    return attack if attack and not attack.startswith("pytorch_") else name.removeprefix("test_")


def _listed(names: list[str]) -> str:
    """Each name once, with how often it came."""
    counts = {name: names.count(name) for name in names}
    return ", ".join(name if count == 1 else f"{name} ({count})" for name, count in counts.items())


def _yes(found: bool) -> str:
    return "yes" if found else "no"


INTEGRATION_TABLES = {"onnx": exports, "adapters": adapters, "loaders": loaders, "peer-suites": peer_suites}
