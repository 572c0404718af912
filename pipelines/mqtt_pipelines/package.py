"""Package the code for ``spark-submit`` as a program and an archive for ``--py-files``."""

import importlib.util
import zipfile
from pathlib import Path
from typing import Final

ARCHIVE: Final = "mqtt_pipelines.zip"
PROGRAM: Final = "pipelines.py"
PACKAGES: Final = ("mqtt_pipelines", "pyspark_mqtt")
_STAMP: Final = (1980, 1, 1, 0, 0, 0)
_SOURCE: Final = """\
import sys

from mqtt_pipelines.cli import main

sys.exit(main())
"""


def package(folder: Path) -> tuple[Path, Path]:
    """Write the archive and the program to `folder`, which is created if necessary. Return both paths. For a given
    version, the files are always identical byte for byte.
    """
    folder.mkdir(parents=True, exist_ok=True)
    archive, program = folder / ARCHIVE, folder / PROGRAM
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as packed:
        for name in PACKAGES:
            found = importlib.util.find_spec(name)
            assert found is not None
            assert found.origin is not None
            root = Path(found.origin).parent
            for file in sorted([*root.rglob("*.py"), root / "py.typed"]):
                entry = zipfile.ZipInfo(f"{name}/{file.relative_to(root).as_posix()}", _STAMP)
                packed.writestr(entry, file.read_bytes(), zipfile.ZIP_DEFLATED)
    program.write_text(_SOURCE)
    return archive, program
