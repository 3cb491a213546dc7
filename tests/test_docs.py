"""The documents say what the program says: figures from paper/results/, names that exist, code that runs."""

import importlib.util
import re
import sys
import tomllib
from pathlib import Path

import pytest

from vqshield.core.errors import MissingExtraError

ROOT = Path(__file__).resolve().parents[1]


TEXTS = [
    ROOT / "README.md",
    *sorted(each for each in ROOT.glob("docs/**/*.[mp][dy]") if "generated" not in each.parts),
    *sorted(ROOT.glob("examples/*.py")),
    *sorted(ROOT.glob("src/**/*.py")),
]


def tool():
    spec = importlib.util.spec_from_file_location("update_docs", ROOT / "paper" / "tools" / "update_docs.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["update_docs"] = module  # dataclasses look their types up there
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("page", tool().PAGES)
def test_tables_are_those_of_the_result_files(page: str) -> None:
    text = (ROOT / page).read_text()
    assert "<!-- begin" in text
    assert tool().updated(text) == text, f"{page} is out of date: run python paper/tools/update_docs.py"


@pytest.mark.parametrize("name", tool().DOC_PLOTS)
def test_plots_are_of_the_result_files(name: str) -> None:
    plot = tool().DOC_PLOTS[name]
    page = next(page for page in tool().PAGES if name in generated(page))
    (file,) = re.findall(r"\]\((images/.*?\.svg)\)", generated(page)[name])
    picture = (ROOT / "docs" / file).read_text()
    assert picture.endswith(f"<!-- records {plot.digest()} -->\n"), "run python paper/tools/update_docs.py"
    assert "prefers-color-scheme: dark" in picture


def generated(page: str) -> dict[str, str]:
    """The generated blocks of a page by their name."""
    blocks = re.findall(r"<!-- begin (\S+) -->\n(.*?)<!-- end \1 -->", (ROOT / page).read_text(), re.S)
    return dict(blocks)


def test_every_interval_is_a_standard_error_over_images() -> None:
    for page in ("README.md", "docs/results.md", "docs/attacks.md"):
        tables = {name: text for name, text in generated(page).items() if "±" in text}
        assert tables, page
        for name, text in tables.items():
            assert "standard deviation" not in text, f"{page}: {name}"
            assert "standard error" in text or page == "docs/attacks.md", f"{page}: {name}"


def test_the_demo_table_is_of_the_same_images_and_names_the_stronger_attack() -> None:
    demo = generated("docs/results.md")["demo"]
    rows = [[float(cell) for cell in re.findall(r"([\d.]+) ±", line)] for line in demo.splitlines()]
    rows = [row for row in rows if len(row) == 5]
    assert len(rows) == 6
    for natural, *attacked in rows:
        assert max(attacked) < natural
    assert re.search(r"quick attack: under `adaptive-v1`, .* has [\d.]+ ± [\d.]+ %", demo)


def test_the_readme_says_what_was_audited_and_what_was_not() -> None:
    table = generated("README.md")["threats-readme"]
    assert "No number in this table was audited" in table
    assert "selected on the same 1,000 images" in table


def test_every_command_is_documented() -> None:
    from vqshield.cli.application import commands

    readme = (ROOT / "README.md").read_text()
    for name in commands():
        assert f"vqshield {name}" in readme, f"README.md does not mention vqshield {name}"


@pytest.mark.parametrize(
    "page",
    ["README.md", "CONTRIBUTING.md", *(str(p.relative_to(ROOT)) for p in sorted(ROOT.glob("docs/*.md")))],
)
def test_links_lead_to_files_that_are_there(page: str) -> None:
    text = (ROOT / page).read_text()
    for link in re.findall(r"\]\((?!https?://)([^)#]+)", text):
        assert (ROOT / page).parent.joinpath(link).exists(), f"{page} links to {link}"


def test_advice_to_train_adversarially_names_the_defense() -> None:
    """Without --defense, harden trains through swRD, which docs/threats.md advises against."""
    advised = []
    for path in TEXTS:
        flat = re.sub(r"[\s\"]+", " ", path.read_text())
        commands = re.findall(r"vqshield harden (?:(?!vqshield )[^`)])*", flat)
        advised += [(path.name, each) for each in commands if "--method adversarial" in each]
    assert len(advised) >= 3
    assert [each for each in advised if "--defense" not in each[1]] == []


OTHERS = r'"?\./(?:paper|app|deploy|\{folder\})(?:\[[a-z,]+\])?"?'
INSTALL = re.compile(rf'pip install (?:"\.\[([a-z,]+)\]"(?: {OTHERS})?|{OTHERS}) -c constraints\.txt')


def install_lines() -> list[tuple[str, str]]:
    """Every line that tells how to get vqshield, with its file; a release is installed from the index."""
    lines = [(str(MissingExtraError("rich", "cli")), "errors.py")]
    for path in TEXTS:
        for line in path.read_text().splitlines():
            ours = re.search(r"pip install\W+(\.|vqshield)|vqshield\[", line) and "{extra}" not in line
            if ours and path.name != "releasing.md":
                lines.append((line, path.name))
    return lines


@pytest.mark.parametrize(("line", "file"), install_lines())
def test_every_install_line_works_from_a_clone(line: str, file: str) -> None:
    """No index has vqshield yet, and pip 23 and 24 refuse `vqshield[cli] @ git+file://$PWD`."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    found = INSTALL.search(line)
    assert found is not None, f"{file}: {line}"
    assert set((found[1] or "cli").split(",")) <= set(extras)
    assert (ROOT / "constraints.txt").is_file()
