"""``python -m meta_magic``: the same as the command ``meta-magic``."""

import sys

from meta_magic.check.commands import main

if __name__ == "__main__":
    sys.exit(main())
