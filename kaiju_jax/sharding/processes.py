"""Several processes, one per host, that run one program.

    joined       jax.distributed.initialize; a lifeline to each other
    gather       a text of each process, to all
    barrier      no process continues before all have arrived
    Vote         whether any process asks to stop, known to all at the same step

With a single process, all of them do nothing.
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

from kaiju_jax.sharding import lifeline

# If a process is stopped or swapped out but not dead, jax's own service ends
# the job. (The lifeline notices a death at once.)
_HEARTBEAT_SECONDS = 30
_SHUTDOWN_SECONDS = 30
_START_SECONDS = 300
_CONNECT_SECONDS = 30.0


@dataclasses.dataclass(frozen=True)
class Cluster:
  """Where the processes find each other; all None if jax can find out.

  Attributes:
    coordinator: HOST:PORT of process 0.
    processes: how many there are.
    process: which of them this is.
  """

  coordinator: str | None = None
  processes: int | None = None
  process: int | None = None


def is_main() -> bool:
  """Whether this process writes what is written once."""
  return jax.process_index() == 0


@contextlib.contextmanager
def join_cluster(
  cluster: Cluster | None, timeout: int = _START_SECONDS
) -> Iterator[None]:
  """While entered, the processes of a cluster are one job.

  An error in one of them, or its death, ends all of them, with status 1 and a
  line that names it: this function does not return then, nor if some processes
  do not come in time. With `cluster` None nothing happens.

  Args:
    cluster: how to find the others.
    timeout: seconds that they may take to come.

  Raises:
    ValueError: no cluster is detected.
    OSError: the processes cannot connect.
  """
  if cluster is None:
    yield
    return
  # jax would abort with a C++ stack trace, and not say which one is missing.
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
  lifeline.leave_at_once(
    f'error: --multihost: not{count} processes came together{where} within'
    f' {timeout} seconds. Is one not started, has it failed, or can it not'
    ' reach process 0?'
  )


def _initialize(cluster: Cluster, timeout: int) -> None:
  # It would swallow SIGTERM, which the loop answers.
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


def _connect() -> lifeline.Lifeline:
  """Connects all processes to the first one.

  Raises:
    OSError: one of them cannot connect.
  """
  index, count = jax.process_index(), jax.process_count()
  server = lifeline.Server() if index == 0 else None
  address = json.loads(gather(json.dumps(server and server.address))[0])
  if index == 0:
    peers = server.accept(count, _CONNECT_SECONDS)
  else:
    peer = lifeline.connect(address, index)
    peers = {} if peer is None else {0: peer}
  reached = [int(text) for text in gather(str(len(peers)))]
  if reached[0] != count - 1:
    lost = [i for i in range(1, count) if not reached[i]]
    raise OSError(
      f'--multihost: process {lost} of {count} cannot connect to process 0 at'
      f' port {address["port"]} of {address["hosts"]}: open the ports between'
      ' these hosts.'
    )
  return lifeline.Lifeline(index, count, peers)


def gather(text: str) -> list[str]:
  """Returns the texts of all processes, which must all call it."""
  if jax.process_count() == 1:
    return [text]
  data = np.frombuffer(text.encode(), np.uint8)
  sizes = multihost_utils.process_allgather(np.int32(data.size))
  padded = np.zeros(int(sizes.max()), np.uint8)
  padded[: data.size] = data
  gathered = multihost_utils.process_allgather(padded)
  return [row[:size].tobytes().decode() for row, size in zip(gathered, sizes)]


def barrier(name: str) -> None:
  """Waits until all processes are at the barrier of that name."""
  if jax.process_count() > 1:
    multihost_utils.sync_global_devices(name)


class Vote:
  """Whether any process said yes, told to all of them at the same call.

  A single process gets its own answer. Several get the answer of the call
  before: the votes are counted on the devices after one step and read after the
  next, so that no host waits.
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
