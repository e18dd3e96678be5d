"""``python -m dpjax``: the command line, where the `dpjax` script is not on the path."""

import sys

from dpjax.cli import main

if __name__ == "__main__":
    sys.exit(main())
