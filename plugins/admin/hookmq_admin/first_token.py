"""Create the first admin token if there is none."""

import stat
import sys
from functools import partial
from pathlib import Path
from typing import Final

from hookmq_toolkit.durable_files import write_atomically
from hookmq_toolkit.files import write_secret
from hookmq_toolkit.threads import in_thread

from hookmq_admin.services import Services
from hookmq_admin.tokens import is_token

NAME: Final = "first"
_LONGEST: Final = 200
"""Maximum size in bytes of a file that may be replaced."""


async def create_first(services: Services, file: str) -> None:
    """Create a token. Write it to `file`, or print it if `file` is empty.

    The file is written before the token is stored. If the process dies in between, the file contains a token that is
    not valid. The next startup replaces that file.
    """
    broker, tokens = services.broker, services.tokens
    name = tokens.unused_name(NAME)
    token, text = tokens.draw(name, "admin", broker.time(), services.plugin_id, None, "")
    if file:
        try:
            await in_thread(broker.runtime, partial(write_first, Path(file), text))
        except OSError as error:
            broker.log("error", "admin.first_token_failed", file=file, error=str(error))
            return
    await tokens.add(token)
    if not file:
        print(f"hookmq: admin token, shown only once: {text}", file=sys.stderr, flush=True)


def write_first(path: Path, text: str) -> None:
    """Write a token to a file with mode 0600. Blocks.

    If the file contains only an earlier token, it is replaced, because no admin token is valid any more. Any other
    existing file raises OSError.
    """
    if _contains_token(path):
        write_atomically(path, text.encode() + b"\n")
    else:
        write_secret(path, text + "\n")


def _contains_token(path: Path) -> bool:
    try:
        found = path.lstat()
        if not stat.S_ISREG(found.st_mode) or found.st_size > _LONGEST:
            return False
        return is_token(path.read_text("ascii").removesuffix("\n"))
    except (OSError, UnicodeDecodeError):
        return False
