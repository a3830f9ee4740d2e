"""Files of others come from archives made here: nothing is downloaded, and nothing is written beside the cache."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from measure.anyfile.foreign_files import (
    LARGEST,
    MANIFEST,
    Fetched,
    ForeignFile,
    NotAManifest,
    NotExtracted,
    extract_member,
    fetch_files,
    find_cache,
    main,
    read_manifest,
)
from measure.anyfile.registries import Archive, NotDownloaded

CONTENT = b"the graph of somebody else"
MEMBER = "vad/data/model.onnx"
ENTRY: Mapping[str, str | int] = {
    "id": "vad",
    "exporter": "torch dynamo",
    "registry": "pypi",
    "package": "vad",
    "version": "1.0",
    "archive": "vad-1.0-py3-none-any.whl",
    "archive_sha256": "a" * 64,
    "member": MEMBER,
    "sha256": "b" * 64,
    "size": 26,
    "producer_name": "pytorch",
    "producer_version": "2.9.0",
    "ir_version": 10,
    "opset": 18,
    "about": "voice activity",
}


def hash_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def make_wheel(members: Mapping[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as wheel:
        for name, content in members.items():
            wheel.writestr(name, content)
    return buffer.getvalue()


def make_package(*entries: tarfile.TarInfo) -> bytes:
    """A package of npm; plain files hold CONTENT."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as package:
        for entry in entries:
            entry.size = len(CONTENT) if entry.isfile() else 0
            package.addfile(entry, io.BytesIO(CONTENT) if entry.isfile() else None)
    return buffer.getvalue()


def make_file(archive: bytes, *, name: str = "vad", member: str = MEMBER, content: bytes = CONTENT) -> ForeignFile:
    return ForeignFile(
        id=name,
        exporter="torch dynamo",
        archive=Archive("pypi", "vad", "1.0", "vad-1.0-py3-none-any.whl", hash_of(archive)),
        member=member,
        sha256=hash_of(content),
        size=len(content),
        producer_name="pytorch",
        producer_version="2.9.0",
        ir_version=10,
        opset=18,
        about="voice activity",
    )


def serve(content: bytes) -> Callable[[Archive, Path], Path]:
    """A registry with one archive."""

    def download(archive: Archive, folder: Path) -> Path:
        path = folder / archive.name
        path.write_bytes(content)
        return path

    return download


def refuse(archive: Archive, folder: Path) -> Path:
    raise NotDownloaded(f"no {archive.package} here")


def fetch(files: list[ForeignFile], cache: Path, archive: bytes) -> list[Fetched]:
    return list(fetch_files(files, cache, serve(archive)))


def names_in(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def write_manifest(folder: Path, *entries: Mapping[str, str | int]) -> Path:
    path = folder / "manifest.toml"
    tables = [
        "\n".join(["[[file]]", *(f"{key} = {json.dumps(value)}" for key, value in entry.items())]) for entry in entries
    ]
    path.write_text("\n\n".join(tables), encoding="utf-8")
    return path


def test_only_the_member_is_kept(tmp_path: Path) -> None:
    archive = make_wheel({MEMBER: CONTENT, "vad/setup.py": b"raise SystemExit"})
    (fetched,) = fetch([make_file(archive)], tmp_path, archive)
    assert fetched.path == tmp_path / "files" / "vad.onnx"
    assert fetched.path.read_bytes() == CONTENT
    assert names_in(tmp_path) == ["files/vad.onnx"]


def test_an_archive_with_two_files_is_downloaded_once(tmp_path: Path) -> None:
    archive = make_wheel({MEMBER: CONTENT, "vad/other.onnx": b"another"})
    files = [make_file(archive), make_file(archive, name="other", member="vad/other.onnx", content=b"another")]
    downloads = []

    def download(wanted: Archive, folder: Path) -> Path:
        downloads.append(wanted.name)
        return serve(archive)(wanted, folder)

    assert [fetched.problem for fetched in fetch_files(files, tmp_path, download)] == ["", ""]
    assert len(downloads) == 1


def test_what_is_cached_is_not_downloaded_again(tmp_path: Path) -> None:
    archive = make_wheel({MEMBER: CONTENT})
    fetch([make_file(archive)], tmp_path, archive)
    (fetched,) = fetch_files([make_file(archive)], tmp_path, refuse)
    assert fetched.path is not None


def test_a_cached_file_that_was_changed_is_fetched_again(tmp_path: Path) -> None:
    archive = make_wheel({MEMBER: CONTENT})
    (first,) = fetch([make_file(archive)], tmp_path, archive)
    assert first.path is not None
    first.path.write_bytes(CONTENT[::-1])
    (again,) = fetch([make_file(archive)], tmp_path, archive)
    assert again.path is not None
    assert again.path.read_bytes() == CONTENT


def test_an_archive_with_another_hash_is_not_opened(tmp_path: Path) -> None:
    other = make_wheel({MEMBER: CONTENT, "more": b""})
    (fetched,) = fetch([make_file(make_wheel({MEMBER: CONTENT}))], tmp_path, other)
    assert fetched.path is None
    assert hash_of(other) in fetched.problem
    assert names_in(tmp_path) == []


def test_a_member_with_another_hash_is_reported_and_the_others_are_kept(tmp_path: Path) -> None:
    archive = make_wheel({MEMBER: b"something else, of equal l", "vad/other.onnx": CONTENT})
    files = [make_file(archive), make_file(archive, name="other", member="vad/other.onnx")]
    changed, kept = fetch(files, tmp_path, archive)
    assert "not " + hash_of(CONTENT) in changed.problem
    assert kept.path is not None
    assert names_in(tmp_path) == ["files/other.onnx"]


def test_a_member_that_is_missing_is_reported(tmp_path: Path) -> None:
    archive = make_wheel({"vad/model.onnx": CONTENT})
    (fetched,) = fetch([make_file(archive)], tmp_path, archive)
    assert fetched.path is None
    assert fetched.problem == f"vad-1.0-py3-none-any.whl has no {MEMBER}"


def test_an_archive_that_is_none_is_reported(tmp_path: Path) -> None:
    (fetched,) = fetch([make_file(CONTENT)], tmp_path, CONTENT)
    assert "cannot be read" in fetched.problem


def test_a_registry_that_refuses_is_reported(tmp_path: Path) -> None:
    (fetched,) = fetch_files([make_file(b"")], tmp_path, refuse)
    assert fetched == Fetched(fetched.file, None, "no vad here")


def test_a_member_larger_than_promised_is_not_unpacked_to_its_end(tmp_path: Path) -> None:
    archive = tmp_path / "bomb.whl"
    archive.write_bytes(make_wheel({MEMBER: bytes(10_000_000)}))
    with pytest.raises(NotExtracted, match=hash_of(bytes(len(CONTENT) + 1))):
        extract_member(archive, make_file(b""), tmp_path / "files" / "vad.onnx")
    assert names_in(tmp_path) == ["bomb.whl"]


@pytest.mark.parametrize("hostile", ["../outside.onnx", "/tmp/outside.onnx", "..\\outside.onnx"])
def test_a_hostile_name_beside_the_member_is_never_written(tmp_path: Path, hostile: str) -> None:
    archive = make_wheel({hostile: b"overwrites", MEMBER: CONTENT})
    cache = tmp_path / "deep" / "cache"
    (fetched,) = fetch([make_file(archive)], cache, archive)
    assert fetched.path is not None
    assert names_in(tmp_path) == ["deep/cache/files/vad.onnx"]


def test_a_package_of_npm_is_read(tmp_path: Path) -> None:
    archive = tmp_path / "vad-1.0.tgz"
    archive.write_bytes(make_package(tarfile.TarInfo("package/model.onnx")))
    extract_member(archive, make_file(b"", member="package/model.onnx"), tmp_path / "vad.onnx")
    assert (tmp_path / "vad.onnx").read_bytes() == CONTENT


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE, tarfile.FIFOTYPE])
def test_a_member_that_is_no_plain_file_is_refused(tmp_path: Path, kind: bytes) -> None:
    link = tarfile.TarInfo("package/model.onnx")
    link.type, link.linkname = kind, "package/other.onnx"
    archive = tmp_path / "vad-1.0.tgz"
    archive.write_bytes(make_package(tarfile.TarInfo("package/other.onnx"), link))
    with pytest.raises(NotExtracted, match="is not a plain file"):
        extract_member(archive, make_file(b"", member="package/model.onnx"), tmp_path / "vad.onnx")
    assert names_in(tmp_path) == ["vad-1.0.tgz"]


def test_the_manifest_is_read(tmp_path: Path) -> None:
    (file,) = read_manifest(write_manifest(tmp_path, ENTRY))
    assert (file.id, file.archive.package, file.opset, file.sha256) == ("vad", "vad", 18, "b" * 64)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"id": "../vad"}, "is no id"),
        ({"id": "a/b"}, "is no id"),
        ({"member": "../model.onnx"}, "leads out"),
        ({"member": "/etc/passwd"}, "leads out"),
        ({"member": "a\\..\\model.onnx"}, "leads out"),
        ({"sha256": "abc"}, "64 hexadecimal"),
        ({"archive_sha256": "Z" * 64}, "64 hexadecimal"),
        ({"size": LARGEST + 1}, "at most"),
        ({"colour": "red"}, "colour"),
    ],
)
def test_an_entry_that_cannot_be_meant_is_refused(tmp_path: Path, change: dict[str, str | int], reason: str) -> None:
    with pytest.raises(NotAManifest, match=reason):
        read_manifest(write_manifest(tmp_path, {**ENTRY, **change}))


def test_an_entry_without_a_package_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotAManifest, match="vad: 'package'"):
        read_manifest(write_manifest(tmp_path, {key: value for key, value in ENTRY.items() if key != "package"}))


def test_two_entries_of_one_name_are_refused(tmp_path: Path) -> None:
    with pytest.raises(NotAManifest, match="two entries are called vad"):
        read_manifest(write_manifest(tmp_path, ENTRY, ENTRY))


def test_the_manifest_has_enough_files_of_enough_exporters() -> None:
    files = read_manifest()
    assert len(files) >= 28
    assert len({file.exporter.partition(",")[0] for file in files}) >= 6
    assert {file.archive.registry for file in files} == {"pypi", "npm"}
    assert len({file.sha256 for file in files}) == len(files)


def test_the_manifest_names_no_host() -> None:
    assert "://" not in MANIFEST.read_text(encoding="utf-8")


def test_the_cache_is_where_the_user_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MODELEXPORT_CACHE", str(tmp_path))
    assert find_cache() == tmp_path
    monkeypatch.delenv("MODELEXPORT_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert find_cache() == tmp_path / "modelexport"


def test_the_command_says_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    archive = make_wheel({MEMBER: CONTENT})
    there, gone = make_file(archive), replace(make_file(archive, name="gone"), member="gone.onnx")
    fetch([there], tmp_path, archive)
    monkeypatch.setenv("MODELEXPORT_CACHE", str(tmp_path))
    monkeypatch.setattr(f"{main.__module__}.read_manifest", lambda: (there, gone))
    monkeypatch.setattr(
        f"{main.__module__}.fetch_files", lambda files, cache: fetch_files(files, cache, serve(archive))
    )
    assert main([]) == 1
    shown = capsys.readouterr().out
    assert "not to be had: vad-1.0-py3-none-any.whl has no gone.onnx" in shown
    assert shown.endswith("1 of 2 files\n")
    assert main(["vad"]) == 0
    assert main(["nothing"]) == 2
