"""Dask: what deployers are handed, and steps on real workers that die."""

from __future__ import annotations

import importlib
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
from tests.support.children import started
from tests.support.fleets import faulty_row, write_fleet

import modelexport as mx
from modelexport.api.fleet import FleetOptions, fleet
from modelexport.errors import ClusterUnusable, ExtraMissing, FleetInvalid, UnknownName
from modelexport.fleet.attempt import Task
from modelexport.fleet.dask_backend import DaskBackend, choose_deployer, connect
from modelexport.fleet.fleet_plan import ClusterSettings
from modelexport.fleet.process import Limits
from modelexport.record.results.fleet import StepResult, StepStatus

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


@pytest.fixture
def slurm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A folder with programs in the place of SLURM's: a job is kept there, and runs on this machine at once."""
    folder = tmp_path / "slurm"
    folder.mkdir()
    # Who submits removes the script. Its session is its own, so that it can be ended with what it has started.
    submit = 'cp "$1" "$0-$$.sh"; setsid bash "$0-$$.sh" > "$0-$$.log" 2>&1 & echo job $!\n'
    for name, text in (("sbatch", submit), ("scancel", 'kill -- "-$1"\n')):
        (folder / name).write_text(f"#!/bin/bash\n{text}", encoding="utf-8")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", environment()["PYTHONPATH"])
    return folder


class TestDeployers:
    pytestmark = pytest.mark.skipif(importlib.util.find_spec("distributed") is None, reason="needs distributed")

    @pytest.mark.usefixtures("deployers", "slurm")
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

    @pytest.mark.usefixtures("deployers")
    def test_a_machine_that_cannot_submit_jobs_is_told(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setenv("PATH", str(tmp_path))
        with pytest.raises(ClusterUnusable, match="SLURMCluster needs the program sbatch, which is not here"):
            choose_deployer("slurm", ClusterSettings()).start()

    @pytest.mark.slow
    def test_jobs_of_slurm_run_the_steps(self, tmp_path: Path, slurm: Path) -> None:
        """The real deployer, where it is installed: what it submits asks for all of it, and is a worker."""
        pytest.importorskip("dask_jobqueue")
        options = 'queue = "gpu", memory = "2GB", job_extra_directives = ["--gres=gpu:1"]'
        local = 'scheduler_options = { host = "127.0.0.1", dashboard_address = ":0" }'
        cluster = f"[cluster]\nworkers = 2\noptions = {{ {options}, {local} }}\n"
        rows = "".join(f'[[row]]\nname = "row{number}"\nfile = "a.onnx"\n' for number in range(3))
        path = write_fleet(tmp_path, HEAD + cluster + rows)
        result = fleet(path, FleetOptions(output=tmp_path / "out", cluster="slurm", trust=True))
        assert result.ok, [row.fault for row in result.rows]
        scripts = [script.read_text() for script in slurm.glob("sbatch-*.sh")]
        assert len(scripts) == 2
        for line in ("#SBATCH -p gpu", "#SBATCH --mem=2G", "#SBATCH --cpus-per-task=1", "#SBATCH --gres=gpu:1"):
            assert line in scripts[0]

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
        monkeypatch.setattr("shutil.which", lambda _: "/bin/sbatch")
        with pytest.raises(ExtraMissing, match="SLURMCluster needs dask-jobqueue"):
            choose_deployer("slurm", ClusterSettings()).start()

    @pytest.mark.usefixtures("deployers", "slurm")
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


class Scheduler:
    """In the place of a client: workers as a scheduler lists them, and what each is given."""

    status = "running"

    def __init__(self, **workers: Mapping[str, object]) -> None:
        self.workers, self.given = workers, list[tuple[str, str]]()

    def scheduler_info(self, n_workers: int) -> dict[str, object]:
        assert n_workers == -1
        return {"workers": self.workers}

    def submit(self, _: object, task: Task, __: str, *, workers: list[str] | None, **___: object) -> Given:
        self.given.append((task.row, workers[0] if workers else "any"))
        return Given(task)


class Given:
    """A future that ends when it is told to."""

    status = "finished"

    def __init__(self, task: Task) -> None:
        self.task, self.tell = task, list[Callable[[Given], None]]()

    def add_done_callback(self, tell: Callable[[Given], None]) -> None:
        self.tell.append(tell)

    def end(self) -> None:
        self.tell[0](self)

    def result(self) -> StepResult:
        return self.task.result(StepStatus.OK)


class TestPlacing:
    """No step waits behind another one while a worker has nothing to do."""

    def start(self, backend: DaskBackend, row: str, memory: int | None = None, **resources: float) -> Given:
        backend.start(Task(row, "cost", "cost", (), "", (), "key", Limits(memory=memory), resources=resources))
        future = list(backend._futures)[-1]
        assert isinstance(future, Given)
        return future

    def test_the_worker_that_has_ended_gets_the_next_step(self) -> None:
        scheduler = Scheduler(a={"nthreads": 1}, b={"nthreads": 1})
        backend = DaskBackend(scheduler, None, "here")
        assert backend.slots == 2
        self.start(backend, "long")
        for number in range(3):
            self.start(backend, f"short{number}").end()
            assert [task.row for task, _ in backend.wait()] == [f"short{number}"]
        assert scheduler.given == [("long", "a"), ("short0", "b"), ("short1", "b"), ("short2", "b")]

    def test_threads_count(self) -> None:
        scheduler = Scheduler(a={"nthreads": 1}, b={"nthreads": 3})
        backend = DaskBackend(scheduler, None, "here")
        assert backend.slots == 4
        for number in range(4):
            self.start(backend, str(number))
        assert sorted(worker for _, worker in scheduler.given) == ["a", "b", "b", "b"]

    def test_only_a_worker_that_offers_it_gets_what_wants_a_resource(self) -> None:
        scheduler = Scheduler(a={"nthreads": 1}, b={"nthreads": 1, "resources": {"GPU": 1}})
        backend = DaskBackend(scheduler, None, "here")
        self.start(backend, "first", GPU=1)
        self.start(backend, "second", GPU=1)
        self.start(backend, "third", TPU=1)
        assert scheduler.given == [("first", "b"), ("second", "b"), ("third", "any")]

    def test_a_large_row_goes_to_a_worker_with_so_much_memory(self) -> None:
        small, large = ({"nthreads": 1, "memory_limit": size * 10**9} for size in (4, 64))
        scheduler = Scheduler(a=small, b=large)
        backend = DaskBackend(scheduler, None, "here")
        self.start(backend, "first", 32 * 10**9)
        self.start(backend, "second", 32 * 10**9)
        self.start(backend, "third", 2 * 10**9)
        assert scheduler.given == [("first", "b"), ("second", "b"), ("third", "a")]
        self.start(backend, "too large", 99 * 10**9)
        assert scheduler.given[-1] == ("too large", "a")
        scheduler = Scheduler(unlimited={"nthreads": 1, "memory_limit": 0})
        self.start(DaskBackend(scheduler, None, "here"), "any", 10**9)
        assert scheduler.given == [("any", "unlimited")]


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
        rows = faulty_row(tmp_path, "slow", "sleep") + '[[row]]\nname = "fine"\nfile = "a.onnx"\n'
        path = write_fleet(tmp_path, HEAD + rows)
        hold_first_start(tmp_path)
        with scheduler(tmp_path) as (address, _), worker(tmp_path, address, "w1") as first:
            import threading

            def kill_when_running() -> None:
                """Of the two, the one that has the step."""
                while not (tmp_path / "mark").exists():
                    time.sleep(0.05)
                busy = int((tmp_path / "mark").read_text())
                assert busy in (first, second)
                os.kill(busy, signal.SIGKILL)

            with worker(tmp_path, address, "w2") as second:
                killer = threading.Thread(target=kill_when_running)
                killer.start()
                result = fleet(path, FleetOptions(output=tmp_path / "out", cluster=address, trust=True))
            killer.join(60)
            assert not killer.is_alive()
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
    """The first process of the row says who started it, and waits until that is killed; the second one goes on."""
    (folder / "sitecustomize.py").write_text(
        "import os, time\n"
        "if os.environ.get('FLEET_FAULT') == 'sleep':\n"
        "    mark = os.environ['FLEET_MARK']\n"
        "    if not os.path.exists(mark):\n"
        "        with open(mark + '.part', 'w') as file:\n"
        "            file.write(str(os.getppid()))\n"
        "        os.rename(mark + '.part', mark)\n"
        "        time.sleep(300)\n",
        encoding="utf-8",
    )
