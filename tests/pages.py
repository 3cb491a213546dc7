"""A page taken apart, for tests of reports."""

from html.parser import HTMLParser


class Page(HTMLParser):
    """Every tag with its attributes, and the text outside styles."""

    def __init__(self, source):
        super().__init__()
        self.tags, self.text, self.styles, self._open = [], [], [], ""
        self.feed(source)

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        self._open = tag

    def handle_data(self, data):
        (self.styles if self._open == "style" else self.text).append(data)

    def handle_endtag(self, tag):
        self._open = ""

    def all(self, tag):
        return [attributes for name, attributes in self.tags if name == tag]
