"""Coordinates several processes, one per host, that run one program.

    join_cluster   joins the processes by jax.distributed and watches its peers
    gather         gives each process the texts of all
    barrier        waits until all processes have arrived
    Vote           tells all processes at the same step if one asks to stop

With a single process, the last three return at once.
"""

from collections.abc import Iterator
import contextlib
import dataclasses
import json
import threading
import traceback

import jax
from jax.experimental import multihost_utils
import jax.numpy as jnp
import numpy as np

from kaiju_jax.sharding import peer_watchdog

# jax's own service ends the job if a process is stopped or swapped out but not
# dead. (The watchdog notices a death at once.)
_HEARTBEAT_SECONDS = 30
_SHUTDOWN_SECONDS = 30
_START_SECONDS = 300
_CONNECT_SECONDS = 30.0


@dataclasses.dataclass(frozen=True)
class Cluster:
  """The place of this process in a job; all None if jax can detect it."""

  coordinator: str | None = None  # HOST:PORT of process 0.
  processes: int | None = None  # The number of processes.
  process: int | None = None  # The index of this process.


def is_main() -> bool:
  """Returns whether this is process 0, which writes the shared files."""
  return jax.process_index() == 0


@contextlib.contextmanager
def join_cluster(
  cluster: Cluster | None, timeout: int = _START_SECONDS
) -> Iterator[None]:
  """Joins the processes of a cluster in one job while entered.

  If one of them fails or dies, all end with a line that names it and status 1
  (130 after Ctrl-C); the context is then never left. They also end if some
  processes do not come in time. With `cluster` None nothing happens.

  Args:
    cluster: the place of this process in the job.
    timeout: seconds to wait for the other processes.

  Raises:
    ValueError: no cluster is detected.
    OSError: the processes cannot connect.
  """
  if cluster is None:
    yield
    return
  # jax would abort with a C++ stack trace after its own timeout.
  late = threading.Timer(timeout, _give_up, (cluster, timeout))
  late.daemon = True
  late.start()
  try:
    _initialize(cluster, timeout)
    line = _connect()
  finally:
    late.cancel()
  try:
    yield
  except KeyboardInterrupt:
    line.fail('aborted.', status=130)
  except (ValueError, OSError, SystemExit) as error:
    line.fail(str(error))
  except BaseException as error:
    line.fail(repr(error), traceback.format_exc())
  line.leave()
  jax.distributed.shutdown()


def _give_up(cluster: Cluster, timeout: int) -> None:
  where = f' at {cluster.coordinator}' if cluster.coordinator else ''
  count = f' all {cluster.processes}' if cluster.processes else ' all'
  peer_watchdog.leave_at_once(
    f'error: --multihost: not{count} processes came together{where} within'
    f' {timeout} seconds. Is one not started, has it failed, or can it not'
    ' reach process 0?'
  )


def _initialize(cluster: Cluster, timeout: int) -> None:
  # This service would swallow SIGTERM, which the training loop handles.
  jax.config.update('jax_enable_preemption_service', False)
  try:
    jax.distributed.initialize(
      cluster.coordinator,
      cluster.processes,
      cluster.process,
      # All of this process's devices, unless a cluster manager says otherwise.
      cluster_detection_method='deactivate' if cluster.coordinator else None,
      initialization_timeout=2 * timeout,
      heartbeat_timeout_seconds=_HEARTBEAT_SECONDS,
      shutdown_timeout_seconds=_SHUTDOWN_SECONDS,
    )
  except ValueError as error:
    raise ValueError(
      f'--multihost: {error} No cluster was detected (Slurm, Open MPI,'
      ' Kubernetes and Cloud TPU are); elsewhere give'
      ' --coordinator=HOST:PORT --processes=N --process=I.'
    ) from error
  except RuntimeError as error:
    reason = str(error).partition('\n')[0]
    raise OSError(f'--multihost: {reason}') from error


def _connect() -> peer_watchdog.PeerWatchdog:
  """Connects all processes to the first one.

  Raises:
    OSError: a process cannot connect.
  """
  index, count = jax.process_index(), jax.process_count()
  server = peer_watchdog.Server() if index == 0 else None
  address = json.loads(gather(json.dumps(server and server.address))[0])
  if index == 0:
    peers = server.accept(count, _CONNECT_SECONDS)
  else:
    peer = peer_watchdog.connect(address, index)
    peers = {} if peer is None else {0: peer}
  reached = [int(text) for text in gather(str(len(peers)))]
  if reached[0] != count - 1:
    lost = [i for i in range(1, count) if not reached[i]]
    raise OSError(
      f'--multihost: process {lost} of {count} cannot connect to process 0 at'
      f' port {address["port"]} of {address["hosts"]}: open the ports between'
      ' these hosts.'
    )
  return peer_watchdog.PeerWatchdog(index, count, peers)


def gather(text: str) -> list[str]:
  """Returns the texts of all processes, in order; all must call it."""
  if jax.process_count() == 1:
    return [text]
  data = np.frombuffer(text.encode(), np.uint8)
  sizes = multihost_utils.process_allgather(np.int32(data.size))
  padded = np.zeros(int(sizes.max()), np.uint8)
  padded[: data.size] = data
  gathered = multihost_utils.process_allgather(padded)
  return [row[:size].tobytes().decode() for row, size in zip(gathered, sizes)]


def barrier(name: str) -> None:
  """Waits until all processes have called it with this name."""
  if jax.process_count() > 1:
    multihost_utils.sync_global_devices(name)


class Vote:
  """A callable that tells all processes whether any of them votes yes.

  All processes call it once per step. A single process gets its own vote back.
  Several get the result of the previous call: devices count the votes after one
  step, and hosts read the count after the next, so that no host waits.
  """

  def __init__(self):
    self._before = None
    if jax.process_count() == 1:
      return
    devices = np.asarray(jax.devices())
    mesh = jax.sharding.Mesh(devices, ('devices',))
    spec = jax.sharding.PartitionSpec
    split = jax.sharding.NamedSharding(mesh, spec('devices'))
    self._ballots = [
      jax.make_array_from_callback(
        devices.shape, split, lambda _, v=value: np.full(1, v, np.int32)
      )
      for value in (0, 1)
    ]
    self._count = jax.jit(
      jnp.max, out_shardings=jax.sharding.NamedSharding(mesh, spec())
    )

  def __call__(self, yes: bool) -> bool:
    if jax.process_count() == 1:
      return yes
    before, self._before = self._before, self._count(self._ballots[yes])
    return before is not None and bool(before)
