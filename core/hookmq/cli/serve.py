"""Run the broker until SIGTERM or SIGINT (a second one at once); SIGHUP reads the configuration again.

Without -c it listens on this machine only: 127.0.0.1:1883 (TCP) and 127.0.0.1:8083/mqtt (WebSocket).
"""

import argparse
from hookmq.cli.source import add_source, config_of
