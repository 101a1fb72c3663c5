"""The door: ``%%meta`` and ``%meta``. The only package that imports IPython."""
