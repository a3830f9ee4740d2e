"""Dask: the same steps on the workers of a cluster.

    connect("tcp://10.0.0.1:8786", …)       a scheduler that runs already
    connect("slurm", …)                     one that Dask's own deployers start, with `[cluster]` as their keywords

A task is the work of `attempt.perform`, and its result a few hundred bytes; files go through a folder that all workers
see, or through an address. A worker that dies takes its process with it (`launcher.py`), and its scheduler gives the
step to another one. A scheduler that dies ends the run: what ended is kept, and the next run goes on.

Needs the extra `fleet`; see https://distributed.dask.org and https://docs.dask.org/en/stable/deploying.html.
"""

from __future__ import annotations

import logging
import queue
import shutil
import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from modelexport.errors import ClusterUnusable, ExtraMissing, FleetInvalid, UnknownName, propose_name
from modelexport.fleet.attempt import Abandoned, Task, perform
from modelexport.fleet.contents import installed_versions
from modelexport.fleet.fleet_plan import ClusterSettings
from modelexport.record.results.fleet import StepResult, StepStatus

_SCHEMES = ("tcp", "tls", "ucx", "ws", "wss")
# Seconds until a scheduler must have answered, and a silent one is gone.
_CONNECT, _SILENCE = 15, 10.0
_PATIENCE = 0.5


@dataclass(frozen=True)
class Deployer:
    """What starts a cluster: a class of a library, with its keywords.

    asks     how many workers it is asked for when it is there
    program  what it calls to get machines
    """

    library: str
    name: str
    package: str
    keywords: Mapping[str, object]
    asks: int = 0
    program: str = ""

    def start(self) -> Any:
        if self.program and shutil.which(self.program) is None:
            # Dask says so in a thread of its own, and waits for workers that nobody will start.
            hint = "Run this on a machine that can submit jobs, or use --cluster tcp://HOST:PORT."
            raise ClusterUnusable(f"{self.name} needs the program {self.program}, which is not here", hint)
        try:
            cluster_class = getattr(import_module(self.library), self.name)
        except ImportError as error:
            message = f"{self.name} needs {self.package}, which is not installed"
            raise ExtraMissing(message, f"pip install 'modelexport[fleet]' {self.package}") from error
        try:
            cluster = cluster_class(**self.keywords)
            if self.asks:
                cluster.scale(self.asks)
        except (OSError, ValueError, TypeError, RuntimeError, ImportError) as error:
            hint = "See [cluster] in the file of models: its options are the keywords of that class."
            raise ClusterUnusable(f"{self.name} cannot be started: {error}", hint) from error
        return cluster


def choose_deployer(kind: str, settings: ClusterSettings) -> Deployer:
    """The deployer of a kind of cluster, with what `[cluster]` says; starts nothing."""
    options, workers = dict(settings.options), settings.workers
    match kind:
        case "local":
            # A thread for each worker: its work is to wait for a process.
            keywords = {"n_workers": workers or 2, "threads_per_worker": 1, "dashboard_address": None, **options}
            return Deployer("distributed", "LocalCluster", "distributed", keywords)
        case "ssh":
            if not settings.hosts:
                raise FleetInvalid("a cluster by ssh needs hosts", 'Say which: [cluster] hosts = ["node1", "node2"]')
            # The first one is the scheduler's, and a worker's as well: https://docs.dask.org/en/stable/deploying-ssh.html
            keywords = {"hosts": [settings.hosts[0], *settings.hosts], "worker_options": {"nthreads": 1}, **options}
            return Deployer("distributed", "SSHCluster", "asyncssh", keywords)
        case "slurm":
            keywords = {"cores": 1, "processes": 1, "memory": "8GB", **options}
            return Deployer("dask_jobqueue", "SLURMCluster", "dask-jobqueue", keywords, workers or 1, "sbatch")
        case "kubernetes":
            keywords = {"name": "modelexport-fleet", "n_workers": workers or 1, **options}
            return Deployer("dask_kubernetes.operator", "KubeCluster", "dask-kubernetes", keywords)
    raise UnknownName("kind of cluster", kind, ["tcp://HOST:PORT", "local", "ssh", "slurm", "kubernetes"])


def connect(where: str, settings: ClusterSettings) -> DaskBackend:
    """A backend for a scheduler by its address, or for a cluster that is started for this run."""
    try:
        from distributed import Client
    except ImportError as error:
        remedy = "pip install 'modelexport[fleet]'"
        raise ExtraMissing.of_import("a cluster", "distributed", error, remedy) from error
    cluster = None
    if "://" in where:
        if where.partition("://")[0] not in _SCHEMES:
            raise UnknownName("kind of address", where, [f"{scheme}://HOST:PORT" for scheme in _SCHEMES])
    else:
        cluster = choose_deployer(where, settings).start()
    try:
        client: Any = Client(cluster or where, timeout=_CONNECT, set_as_default=False)  # type: ignore[no-untyped-call]
    except (OSError, ValueError, TimeoutError) as error:
        if cluster is not None:
            cluster.close()
        hint = "Check the address, and that `dask scheduler` runs there."
        raise ClusterUnusable(f"there is no scheduler at {where}: {error}", hint) from error
    return DaskBackend(client, cluster, where)


class DaskBackend:
    """Steps as tasks of a scheduler."""

    def __init__(self, client: Any, cluster: Any, where: str) -> None:
        self._client, self._cluster, self._where = client, cluster, where
        self._run = uuid.uuid4().hex
        # With the address of the worker that it was meant for.
        self._futures: dict[Any, tuple[Task, str]] = {}
        self._known_workers: Mapping[str, Any] = {}
        self._asked = 0.0
        self._ended: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._last_heard = time.monotonic()
        # What it says of a connection that is lost, this backend says in one line.
        self._log = logging.getLogger("distributed")
        self._log_level = self._log.level
        self._log.setLevel(logging.CRITICAL)

    @property
    def slots(self) -> int:
        """One for each thread of the workers that are there now; clusters grow while they run.

        None waits at a worker: behind a step that takes an hour, it would wait while other workers have nothing to do.
        """
        threads: int = sum(worker["nthreads"] for worker in self._workers().values())
        return max(1, threads)

    def notes(self) -> Iterator[str]:
        """What a user should know of the workers: a worker with other versions gives other results."""
        own = dict(installed_versions())
        with suppress(OSError, TimeoutError, RuntimeError):
            for worker, versions in self._client.run(installed_versions).items():
                other = [name for name in own if dict(versions).get(name) != own[name]]
                if other:
                    yield f"worker {worker} has other versions of {', '.join(other)}"

    def start(self, task: Task) -> None:
        # A name of its own: Dask takes tasks with the same name for the same task, whoever asks.
        name = f"{task.row}-{task.step}-{uuid.uuid4().hex[:8]}"
        worker = self._least_busy(task)
        future = self._client.submit(
            run_on_worker,
            task,
            self._run,
            key=name,
            pure=False,
            resources=dict(task.resources) or None,
            workers=[worker] if worker else None,
            allow_other_workers=bool(worker),  # it may die before it has begun
        )
        self._futures[future] = task, worker
        future.add_done_callback(self._ended.put)

    def _least_busy(self, task: Task) -> str:
        """The address of the worker where a step begins first; empty if nobody offers what it wants.

        With a memory limit, of the workers that have so much, if any has: rows of 64 GB and of 2 GB share a cluster.
        Dask itself, with 20 workers and more, gives a task to any that has not two of them yet
        (`decide_worker_non_rootish` in https://github.com/dask/distributed/blob/main/distributed/scheduler.py).
        """
        busy = Counter(worker for _, worker in self._futures.values())
        fitting = {address: worker for address, worker in self._workers().items() if _offers(worker, task.resources)}
        roomy = {address: worker for address, worker in fitting.items() if _has_room(worker, task.limits.memory or 0)}
        workers = roomy or fitting
        return min(workers, key=lambda address: busy[address] / workers[address]["nthreads"], default="")

    def _check_resources(self, wanted: Mapping[str, float]) -> None:
        """Dask waits forever for a resource that no worker has."""
        workers = list(self._workers().values())
        for name, amount in wanted.items():
            if workers and not any(_offers(worker, {name: amount}) for worker in workers):
                known = sorted({key for worker in workers for key in worker.get("resources", {})})
                hint = (
                    f"Start workers with --resources '{name}={amount:g}'. {propose_name(name, known) if known else ''}"
                )
                raise ClusterUnusable(f"no worker of {self._where} offers {amount:g} {name}", hint)

    def _workers(self) -> Mapping[str, Any]:
        """Those that the scheduler knew a moment ago, by address. Of a thousand workers, an answer has megabytes."""
        if time.monotonic() > self._asked + _PATIENCE or not self._known_workers:
            try:
                self._known_workers = self._client.scheduler_info(n_workers=-1)["workers"]
            except TypeError:  # older versions list all of them, and have no such keyword
                self._known_workers = self._client.scheduler_info()["workers"]
            self._asked = time.monotonic()
        return self._known_workers

    def wait(self) -> Iterator[tuple[Task, StepResult]]:
        try:
            future = self._ended.get(timeout=_PATIENCE)
        except queue.Empty:
            self._ensure_connected()
            # Again and again: workers come and go, and the first may come after the first step was given away.
            for resources in {tuple(task.resources.items()) for task, _ in self._futures.values()}:
                self._check_resources(dict(resources))
            return
        while True:
            task, _ = self._futures.pop(future, (None, ""))
            if task is not None:
                yield task, self._result_of(future, task)
            try:
                future = self._ended.get_nowait()
            except queue.Empty:
                return

    def _ensure_connected(self) -> None:
        if self._client.status == "running":
            self._last_heard = time.monotonic()
        elif time.monotonic() - self._last_heard > _SILENCE or self._client.status == "closed":
            raise self._gone()

    def _gone(self) -> ClusterUnusable:
        hint = "What ended is kept. Start the scheduler again, and run the same command."
        return ClusterUnusable(f"the scheduler at {self._where} went away", hint)

    def _result_of(self, future: Any, task: Task) -> StepResult:
        """Its result, or why there is none: workers died under it, or the scheduler is gone."""
        from distributed import KilledWorker

        if future.status == "finished":
            result = future.result()
            if not isinstance(result, StepResult):
                raise TypeError(f"{task.row}, {task.step}: a worker answered {type(result).__name__}")
            return result
        if future.status in ("cancelled", "lost"):
            raise self._gone()
        error = future.exception()
        if isinstance(error, KilledWorker):
            return task.result(StepStatus.LOST, f"workers died while it ran, the last one at {error.last_worker}")
        return task.result(StepStatus.LOST, f"the worker could not run it: {type(error).__name__}: {error}")

    def close(self) -> None:
        """Processes on workers end, also those whose results nobody can fetch any longer."""
        pending, self._futures = list(self._futures), {}
        if pending:
            # Whatever a scheduler answers that is on its way out, it must not hide why this ends.
            with suppress(Exception):
                self._client.run(stop_run, self._run, on_error="ignore")
                self._client.cancel(pending, force=True)
        for part in (self._client, self._cluster):
            if part is not None:
                with suppress(Exception):
                    part.close()
        self._log.setLevel(self._log_level)


def _offers(worker: Mapping[str, Any], wanted: Mapping[str, float]) -> bool:
    resources = worker.get("resources", {})
    return all(resources.get(name, 0) >= amount for name, amount in wanted.items())


def _has_room(worker: Mapping[str, Any], memory: int) -> bool:
    """By the memory that it was started with; a worker without a limit says 0 or nothing."""
    return (worker.get("memory_limit") or memory) >= memory


# In each worker: what its running steps look at, by the run that they belong to.
_stops: dict[str, threading.Event] = {}


def run_on_worker(task: Task, run: str) -> StepResult:
    """What a worker does."""
    try:
        return perform(task, _stops.setdefault(run, threading.Event()))
    except Abandoned:
        return task.result(StepStatus.LOST, "the run was ended")


def stop_run(run: str) -> None:
    """End the steps of a run in this worker, and those that are about to start."""
    _stops.setdefault(run, threading.Event()).set()
