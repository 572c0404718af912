"""``python -m hookmq.cli``, where the script ``hookmq`` is not on the path."""

import sys

from hookmq.cli import main

sys.exit(main())
