"""Dask: what deployers are handed, and steps on real workers that die."""

from __future__ import annotations

import importlib
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Thread
from types import ModuleType

import pytest
from tests.support.children import started
from tests.support.fleets import faulty_row, write_fleet

import modelexport as mx
from modelexport.api.fleet import FleetOptions, fleet
from modelexport.errors import ClusterUnusable, ExtraMissing, FleetInvalid, UnknownName
from modelexport.fleet.dask_backend import choose_deployer, connect
from modelexport.fleet.fleet_plan import ClusterSettings

HEAD = '[fleet]\nsteps = ["cost"]\ntimeout = "3m"\n'


class Recorded:
    """In the place of a cluster of a library that is not here: what it is handed."""

    def __init__(self, **keywords: object) -> None:
        self.keywords, self.scaled = keywords, 0

    def scale(self, workers: int) -> None:
        self.scaled = workers


@pytest.fixture
def deployers(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, kind in (("dask_jobqueue", "SLURMCluster"), ("dask_kubernetes.operator", "KubeCluster")):
        module = ModuleType(name)
        setattr(module, kind, Recorded)
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(importlib.import_module("distributed"), "SSHCluster", Recorded)


class TestDeployers:
    pytestmark = pytest.mark.skipif(importlib.util.find_spec("distributed") is None, reason="needs distributed")

    @pytest.mark.usefixtures("deployers")
    def test_slurm_gets_a_job_for_each_worker(self) -> None:
        settings = ClusterSettings(20, options={"queue": "gpu", "memory": "32GB", "walltime": "02:00:00"})
        cluster = choose_deployer("slurm", settings).start()
        assert cluster.keywords == {
            "cores": 1,
            "processes": 1,
            "memory": "32GB",
            "queue": "gpu",
            "walltime": "02:00:00",
        }
        assert cluster.scaled == 20

    def test_the_job_script_of_slurm_has_it_all(self) -> None:
        pytest.importorskip("dask_jobqueue")
        settings = ClusterSettings(
            0, options={"queue": "gpu", "memory": "32GB", "job_extra_directives": ["--gres=gpu:1"]}
        )
        deployer = choose_deployer("slurm", settings)
        with deployer.start() as cluster:
            script = cluster.job_script()
        for line in ("#SBATCH -p gpu", "#SBATCH --mem=30G", "#SBATCH --cpus-per-task=1", "#SBATCH --gres=gpu:1"):
            assert line in script

    @pytest.mark.usefixtures("deployers")
    def test_ssh_puts_the_scheduler_on_the_first_host(self) -> None:
        cluster = choose_deployer("ssh", ClusterSettings(hosts=("a", "b"))).start()
        assert cluster.keywords == {"hosts": ["a", "a", "b"], "worker_options": {"nthreads": 1}}
        with pytest.raises(FleetInvalid, match="needs hosts"):
            choose_deployer("ssh", ClusterSettings())

    @pytest.mark.usefixtures("deployers")
    def test_kubernetes_gets_its_image(self) -> None:
        cluster = choose_deployer("kubernetes", ClusterSettings(3, options={"image": "me/modelexport:1"})).start()
        assert cluster.keywords == {"name": "modelexport-fleet", "n_workers": 3, "image": "me/modelexport:1"}

    def test_one_that_is_not_installed_is_named(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "dask_jobqueue", None)
        with pytest.raises(ExtraMissing, match="SLURMCluster needs dask-jobqueue"):
            choose_deployer("slurm", ClusterSettings()).start()

    @pytest.mark.usefixtures("deployers")
    def test_keywords_that_it_does_not_know_are_told(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(**_: object) -> None:
            raise TypeError("unexpected keyword 'quue'")

        monkeypatch.setattr(sys.modules["dask_jobqueue"], "SLURMCluster", refuse)
        with pytest.raises(ClusterUnusable, match="quue"):
            choose_deployer("slurm", ClusterSettings(options={"quue": "x"})).start()

    def test_other_kinds_are_refused(self) -> None:
        with pytest.raises(UnknownName, match="slurmm"):
            choose_deployer("slurmm", ClusterSettings())
        with pytest.raises(UnknownName, match="http://x"):
            connect("http://x", ClusterSettings())

    @pytest.mark.slow
    def test_no_scheduler_is_no_traceback(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from modelexport.fleet import dask_backend

        monkeypatch.setattr(dask_backend, "_CONNECT", 1)
        with pytest.raises(ClusterUnusable, match=r"there is no scheduler at tcp://127\.0\.0\.1:9"):
            connect("tcp://127.0.0.1:9", ClusterSettings())


def environment() -> dict[str, str]:
    source = str(Path(mx.__file__).parents[1])
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (source, os.environ.get("PYTHONPATH"))))}


@contextmanager
def scheduler(folder: Path) -> Iterator[tuple[str, int]]:
    """Its address and its process."""
    file = folder / "scheduler.json"
    command = [
        "-m",
        "distributed.cli.dask_scheduler",
        "--host",
        "127.0.0.1",
        "--port",
        "0",
        "--no-dashboard",
        "--scheduler-file",
        str(file),
    ]
    log = folder / "scheduler.log"
    with (
        log.open("w") as output,
        started([sys.executable, *command], env=environment(), stdout=output, stderr=output) as child,
    ):
        while not file.exists():
            assert child.poll() is None, log.read_text()
            time.sleep(0.1)
        time.sleep(0.2)
        yield f"tcp://{file.read_text().partition('tcp://')[2].partition(chr(34))[0]}", child.pid


@contextmanager
def worker(folder: Path, address: str, name: str, *more: str) -> Iterator[int]:
    command = [sys.executable, "-m", "distributed.cli.dask_worker", address, "--nthreads", "1", "--no-dashboard"]
    command += ["--no-nanny", "--name", name, "--local-directory", str(folder / name), *more]
    with (
        (folder / f"{name}.log").open("w") as output,
        started(command, env=environment(), stdout=output, stderr=output) as child,
    ):
        yield child.pid


@pytest.mark.slow
class TestWorkers:
    pytestmark = pytest.mark.skipif(importlib.util.find_spec("distributed") is None, reason="needs distributed")

    def test_a_worker_that_is_killed_costs_nothing(self, tmp_path: Path) -> None:
        """The step runs again on the other one, and its process ends with the worker."""
        psutil = pytest.importorskip("psutil")  # distributed needs it
        rows = faulty_row(tmp_path, "slow", "sleep") + '[[row]]\nname = "fine"\nfile = "a.onnx"\n'
        path = write_fleet(tmp_path, HEAD + rows)
        hold_first_start(tmp_path)
        mark = tmp_path / "mark"

        def kill_when_running(*workers: int) -> None:
            while not mark.exists() or not mark.read_text():
                time.sleep(0.05)
            callers = {caller.pid for caller in psutil.Process(int(mark.read_text())).parents()}
            (busy,) = callers & set(workers)
            os.kill(busy, signal.SIGKILL)

        with (
            scheduler(tmp_path) as (address, _),
            worker(tmp_path, address, "w1") as first,
            worker(tmp_path, address, "w2") as second,
        ):
            killer = Thread(target=kill_when_running, args=(first, second))
            killer.start()
            result = fleet(path, FleetOptions(output=tmp_path / "out", cluster=address, trust=True))
            killer.join(60)
        assert {row.name: [str(step.status) for step in row.results] for row in result.rows} == {
            "slow": ["ok"],
            "fine": ["ok"],
        }

    def test_a_scheduler_that_dies_ends_the_run_and_the_next_one_goes_on(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from modelexport.fleet import dask_backend

        monkeypatch.setattr(dask_backend, "_SILENCE", 1.0)
        rows = '[[row]]\nname = "fine"\nfile = "a.onnx"\n' + faulty_row(tmp_path, "hang", "hang")
        path = write_fleet(tmp_path, HEAD + rows)

        def end_scheduler(_: object, result: object, __: object) -> None:
            if result is not None:
                os.kill(process, signal.SIGKILL)

        with scheduler(tmp_path) as (address, process), worker(tmp_path, address, "w1"):
            options = FleetOptions(output=tmp_path / "out", cluster=address, trust=True)
            with pytest.raises(ClusterUnusable, match="went away"):
                fleet(path, options, listener=end_scheduler)
        here = fleet(path, FleetOptions(output=tmp_path / "out", trust=True, timeout="2s"))
        assert [str(step.status) for row in here.rows for step in row.results] == ["ok", "timed out"]
        assert (here.kept, here.ran) == (1, 1)

    def test_a_resource_that_no_worker_has_is_said_at_once(self, tmp_path: Path) -> None:
        path = write_fleet(tmp_path, HEAD + '[[row]]\nname = "fine"\nfile = "a.onnx"\nresources = { GPU = 1 }\n')
        options = FleetOptions(output=tmp_path / "out")
        with (
            scheduler(tmp_path) as (address, _),
            worker(tmp_path, address, "w1", "--resources", "CPU=1"),
            pytest.raises(ClusterUnusable, match="offers 1 GPU"),
        ):
            fleet(path, replace(options, cluster=address))


def hold_first_start(folder: Path) -> None:
    """The first process of the row waits until its worker is killed; the second one goes on."""
    (folder / "sitecustomize.py").write_text(
        "import os, time\n"
        "if os.environ.get('FLEET_FAULT') == 'sleep':\n"
        "    mark = os.environ['FLEET_MARK']\n"
        "    if not os.path.exists(mark):\n"
        "        with open(mark, 'w') as file:\n"
        "            file.write(str(os.getpid()))\n"
        "        time.sleep(300)\n",
        encoding="utf-8",
    )
