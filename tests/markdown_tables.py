"""Tables of Markdown, read back."""


def cells(text: str) -> list[list[str]]:
    """The rows of a table, without its heads."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]
