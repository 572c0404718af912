"""Send the requests shown on the page about sources to a broker with that page's configuration."""

import json
import os
import re
import shutil
import subprocess
from itertools import pairwise
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from pages import Block, blocks
from ports import free_port
from serving import serving
from workspace import ROOT

PAGE = ROOT / "docs" / "how-to" / "sources.md"
TOKEN = "0123456789abcdef"


def answers(port: int) -> bool:
    """Return whether the source is listening."""
    try:
        urlopen(f"http://127.0.0.1:{port}/publish", timeout=5).close()
    except HTTPError as error:
        error.close()
        return True
    except OSError:
        return False
    return True


@pytest.mark.slow
def test_the_requests_of_the_page_work(tmp_path: Path) -> None:
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    shown: list[Block] = list(blocks(PAGE))
    config = next(one.text for one in shown if one.kind == "yaml config")
    port = free_port()
    for given, real in (
        ("1883", "0"),
        ("8090", str(port)),
        ("path: state", f"path: {tmp_path}/state"),
        ("path: sinks", f"path: {tmp_path}/sinks"),
    ):
        assert given in config
        config = config.replace(given, real)
    (tmp_path / "hookmq.yaml").write_text(config)
    given_token = {"ERP_TOKEN": TOKEN}
    done = 0
    with serving("-c", str(tmp_path / "hookmq.yaml"), environ=given_token):
        while not answers(port):
            pass
        for block, output in pairwise(shown):
            if block.kind == "sh" and block.text.startswith("curl"):
                command = re.sub("8090", str(port), block.text)
                found = subprocess.run(
                    ["bash", "-c", command],
                    env={**os.environ, **given_token},
                    capture_output=True,
                    check=True,
                    timeout=60,
                )
                assert json.loads(found.stdout) == json.loads(output.text)
                done += 1
    assert done == 2
