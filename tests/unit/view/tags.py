"""The tags and texts of a piece of HTML."""

from html.parser import HTMLParser

VOID = frozenset({"img", "br", "input"})


class Tags(HTMLParser):
    """Collects tags and text, and checks the nesting."""

    def __init__(self, html):
        super().__init__()
        self.tags, self.cells, self._open = [], [], []
        self.feed(html)
        assert self._open == []

    @property
    def text(self):
        return "".join(self.cells)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag):
        assert self._open.pop() == tag

    def handle_data(self, data):
        if self._open[-1:] != ["style"]:
            self.cells.append(data)
