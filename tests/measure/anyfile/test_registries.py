"""pip and npm are asked for exactly one archive; no registry is asked here."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from measure.anyfile.registries import Archive, NotDownloaded, download_archive, make_npm_command, make_pip_command

WHEEL = Archive("pypi", "vad", "1.0", "vad-1.0-py3-none-any.whl", "a" * 64)
PACKAGE = Archive("npm", "@someone/vad", "1.0.0", "someone-vad-1.0.0.tgz", "a" * 64)


def run_as(
    monkeypatch: pytest.MonkeyPatch, folder: Path, *files: str, code: int = 0, error: str = ""
) -> list[Sequence[str]]:
    """Programs that leave these files behind; the commands that were run."""
    commands: list[Sequence[str]] = []

    def run(command: Sequence[str], **_options: object) -> subprocess.CompletedProcess[str]:
        commands.append(command)
        for name in files:
            (folder / name).write_bytes(b"")
        return subprocess.CompletedProcess(command, code, "", error)

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr(shutil, "which", lambda _name: "/bin/npm")
    return commands


def test_pip_takes_wheels_alone_and_checks_the_hash(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    commands = run_as(monkeypatch, tmp_path, WHEEL.name)
    assert download_archive(WHEEL, tmp_path) == tmp_path / WHEEL.name
    (command,) = commands
    assert {"--only-binary=:all:", "--require-hashes", "--no-deps"} <= set(command)


def test_a_wheel_for_every_machine_needs_no_platform(tmp_path: Path) -> None:
    command = make_pip_command(WHEEL, tmp_path / "requirement.txt", tmp_path)
    assert not [part for part in command if part.startswith(("--platform", "--abi"))]


def test_a_wheel_for_one_machine_is_asked_for_on_every_machine(tmp_path: Path) -> None:
    archive = Archive(
        "pypi", "vad", "1.0", "vad-1.0-cp39-abi3-manylinux2014_x86_64.manylinux_2_28_x86_64.whl", "a" * 64
    )
    command = make_pip_command(archive, tmp_path / "requirement.txt", tmp_path)
    assert command[-8:] == [
        *("--implementation", "cp"),
        *("--python-version", "39"),
        *("--abi", "abi3"),
        *("--platform=manylinux2014_x86_64", "--platform=manylinux_2_28_x86_64"),
    ]


def test_npm_runs_no_script_of_the_package(tmp_path: Path) -> None:
    command = make_npm_command(PACKAGE, tmp_path)
    assert command[-1] == "@someone/vad@1.0.0"
    assert "--ignore-scripts" in command


def test_a_package_of_npm_is_packed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    run_as(monkeypatch, tmp_path, PACKAGE.name)
    assert download_archive(PACKAGE, tmp_path) == tmp_path / PACKAGE.name


def test_without_npm_that_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(shutil, "which", lambda _name: None)
    with pytest.raises(NotDownloaded, match="npm is not installed"):
        download_archive(PACKAGE, tmp_path)


def test_what_the_program_says_is_the_reason(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    run_as(monkeypatch, tmp_path, code=1, error="WARNING: old\nERROR: No matching distribution found for vad\n")
    with pytest.raises(NotDownloaded, match=r"^ERROR: No matching distribution found for vad$"):
        download_archive(WHEEL, tmp_path)


def test_a_program_that_hangs_is_a_reason_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def hang(command: Sequence[str], **_options: object) -> None:
        raise subprocess.TimeoutExpired(command, 1)

    monkeypatch.setattr(subprocess, "run", hang)
    with pytest.raises(NotDownloaded, match="timed out"):
        download_archive(WHEEL, tmp_path)


@pytest.mark.parametrize("files", [(), ("one.whl", "two.whl")])
def test_none_or_two_files_are_not_the_archive(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, files: tuple[str, ...]
) -> None:
    run_as(monkeypatch, tmp_path, *files)
    with pytest.raises(NotDownloaded, match=f"{len(files)} files were downloaded"):
        download_archive(WHEEL, tmp_path)


def test_another_registry_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotDownloaded, match="no such registry: hub"):
        download_archive(Archive("hub", "vad", "1.0", "vad.zip", "a" * 64), tmp_path)
