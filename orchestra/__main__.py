"""`python -m orchestra` is `orchestra`."""

import sys

from orchestra.cli import main

sys.exit(main())
