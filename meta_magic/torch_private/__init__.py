"""Every name of torch that torch does not promise to keep, in one room.

The rest of the house imports public names from ``torch``, and private ones from here,
where each says what breaks if torch moves it. ``tests/unit/torch_private`` fails by
name when one is gone, so that a new release says so before a user does, and
``tests/test_floors.py`` fails where a private name is used in another room.

On top of the names: what replaces functions of torch for a while (``replacing``), and
what notes and restores its modes (``snapshot``). May import torch alone. Read ``modes``
first: it is what a recording stands on.
"""
