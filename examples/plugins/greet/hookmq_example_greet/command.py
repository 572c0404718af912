"""Define ``hookmq greet``, which asks a running broker to publish a greeting."""

import argparse
import urllib.error
import urllib.request
from urllib.parse import quote

from hookmq.plugin import HookMQError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments. There is no plugin object here, so the command sends its request to a running
    broker.
    """
    parser.description = "Publish a greeting."
    parser.add_argument("name", help="name to greet")
    parser.add_argument(
        "--url",
        default="http://127.0.0.1:9090/plugins/example_greet",
        help="URL of the plugin (default: %(default)s)",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Send the request, and print the response."""
    request = urllib.request.Request(f"{arguments.url}/{quote(arguments.name, '')}", method="POST")
    try:
        with urllib.request.urlopen(request, timeout=10) as response:
            print(response.read().decode())
    except urllib.error.HTTPError as error:
        with error:
            raise HookMQError(f"{arguments.url}: {error.code} {error.reason}") from None
    except OSError as error:
        raise HookMQError(f"{arguments.url}: {error}") from None
    return 0
