"""Every name of torch that torch does not promise to keep, in one room.

The other rooms import public names from ``torch``, and private ones from here, where
each says what breaks if torch moves it. ``tests/unit/torch_private`` fails by name when
one is gone, so that a new release breaks a test before a user's cell, and
``tests/test_private_torch.py`` fails where another room uses a private name.

``replacing`` replaces functions of torch while a recording runs, ``snapshot`` saves and
restores torch's modes. May import torch alone. Read ``modes`` first.
"""
