"""Test the base class of all listeners."""

import subprocess
import sys

from hookmq.server.base_listener import BaseListener
from hookmq.server.listener import Listener
from hookmq.server.plugin_listeners import PluginListener


def test_every_listener_has_the_base() -> None:
    assert issubclass(Listener, BaseListener)
    assert issubclass(PluginListener, BaseListener)


def test_a_configuration_is_checked_without_an_http_library() -> None:
    """Checking a configuration does not import an HTTP library. Importing aiohttp takes as long as all the other
    imports of most commands together.
    """
    code = "import hookmq.config.plugins, sys; print('aiohttp' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "False\n"
