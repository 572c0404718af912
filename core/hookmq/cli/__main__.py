"""``python -m hookmq.cli``: run the ``hookmq`` command without its script."""

import sys

from hookmq.cli import main

sys.exit(main())
