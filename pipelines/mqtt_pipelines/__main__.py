"""Run ``python -m mqtt_pipelines``."""

import sys

from mqtt_pipelines.cli import main

sys.exit(main())
