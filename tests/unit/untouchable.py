"""Objects of classes that must not be asked for anything."""


def forbid(*_):
    raise AssertionError


class Pretending:
    """Is no module and no tensor, and must not be asked whether it is one."""

    __class__ = property(forbid)
    __repr__ = forbid


class Listing(list):
    """A list that is to be read past its class."""

    __len__ = __bool__ = __getitem__ = forbid


class Keeping(dict):
    """A dict that is to be read past its class."""

    __len__ = __bool__ = __getitem__ = items = values = forbid
