"""Files as Kubernetes mounts a Secret: links through one link, which is replaced when the Secret changes."""

from __future__ import annotations

import itertools
from pathlib import Path


class MountedSecret:
    """`put` writes a new version of all files and switches to it at once."""

    def __init__(self, directory: Path, **files: str | bytes) -> None:
        self.directory = directory
        self._versions = itertools.count(1)
        directory.mkdir()
        self.put(**files)

    def put(self, **files: str | bytes) -> None:
        """Names with `_` for the dot: ``put(tls_crt=…, tls_key=…)``."""
        former = (self.directory / "..data").resolve() if (self.directory / "..data").exists() else None
        version = self.directory / f"..version{next(self._versions)}"
        version.mkdir()
        for name, content in files.items():
            file = version / name.replace("_", ".")
            file.write_bytes(content.encode() if isinstance(content, str) else content)
            link = self.directory / file.name
            if not link.is_symlink():
                link.symlink_to(Path("..data") / file.name)
        (self.directory / "..next").symlink_to(version.name)
        (self.directory / "..next").rename(self.directory / "..data")
        if former is not None:
            for file in former.iterdir():
                file.unlink()
            former.rmdir()

    def __truediv__(self, name: str) -> Path:
        return self.directory / name
