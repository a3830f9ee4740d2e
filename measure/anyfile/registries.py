"""Archives of package registries: which one, and how pip or npm downloads it.

Both programs ask the registry that this machine is set up for; nothing here knows an address. Neither runs code of the
package: pip is allowed wheels only, and npm packs what the registry has.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

_LIMIT = 600  # seconds for one archive
_REASON = 300  # characters of what a program says


class NotDownloaded(Exception):
    """The registry does not give the archive, or gives another one."""


@dataclass(frozen=True)
class Archive:
    """One file of a registry.

    registry  pypi or npm
    name      name of the file; a wheel's says for which Python and machine it is
    """

    registry: str
    package: str
    version: str
    name: str
    sha256: str


DownloadArchive: TypeAlias = Callable[[Archive, Path], Path]


def download_archive(archive: Archive, folder: Path) -> Path:
    """The archive as a file in `folder`, which is empty before."""
    if archive.registry == "pypi":
        requirement = folder / "requirement.txt"
        requirement.write_text(f"{archive.package}=={archive.version} --hash=sha256:{archive.sha256}\n")
        _run(make_pip_command(archive, requirement, folder))
        requirement.unlink()
    elif archive.registry == "npm":
        if shutil.which("npm") is None:
            raise NotDownloaded("npm is not installed")
        _run(make_npm_command(archive, folder))
    else:
        raise NotDownloaded(f"no such registry: {archive.registry}")
    downloaded = sorted(folder.iterdir())
    if len(downloaded) != 1:
        raise NotDownloaded(f"{len(downloaded)} files were downloaded for {archive.package} {archive.version}")
    return downloaded[0]


def make_pip_command(archive: Archive, requirement: Path, folder: Path) -> list[str]:
    """pip, told to take the wheel of the manifest on any machine.

    `vad-1.0-cp39-abi3-win_amd64.whl` → `--implementation cp --python-version 39 --abi abi3 --platform win_amd64`
    """
    python, abi, platforms = archive.name.removesuffix(".whl").split("-")[-3:]
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--no-deps",
        "--only-binary=:all:",
        "--require-hashes",
    ]
    command += ["--dest", str(folder), "--requirement", str(requirement)]
    if (abi, platforms) == ("none", "any"):
        return command
    interpreter = python.split(".")[-1]
    command += ["--implementation", interpreter[:2], "--python-version", interpreter[2:], "--abi", abi]
    return command + [f"--platform={platform}" for platform in platforms.split(".")]


def make_npm_command(archive: Archive, folder: Path) -> list[str]:
    specification = f"{archive.package}@{archive.version}"
    return ["npm", "pack", "--loglevel=error", "--ignore-scripts", "--pack-destination", str(folder), specification]


def _run(command: Sequence[str]) -> None:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_LIMIT, check=False, env={**os.environ, "NO_COLOR": "1"}
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotDownloaded(f"{command[0]}: {error}") from error
    if done.returncode:
        lines = [line for line in (done.stderr or done.stdout).splitlines() if line.strip()]
        errors = [line for line in lines if line.lower().startswith(("error", "npm err"))] or lines
        raise NotDownloaded(" ".join(errors)[:_REASON] or f"{command[0]} ended with {done.returncode}")
