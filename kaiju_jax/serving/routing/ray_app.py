"""Ray Serve carries calls to replicas in processes of their own.

    ray = start(folder)                      or join('host:6379')
    ray.deploy(['kaiju-0', 'kaiju-1'], make)
    remote = RemoteReplica('kaiju-0', ray.transport('kaiju-0'))
    ray.stop()

This is the one file that imports ray. HTTP stays in processes of ours; Serve
runs no proxy. Each replica is an application of its own with a single actor, so
that our policies choose it by name, and it is drained, replaced and killed
alone; Serve starts a dead one again. A Ray of `start` listens on loopback, and
asks for the token in its environment (`ray_local.py`).
"""

from collections.abc import AsyncIterator
from collections.abc import Callable
from collections.abc import Sequence
import contextlib
import logging
import os
import pathlib
import re
from typing import Any

import ray
from ray import serve
from ray.serve import schema

from kaiju_jax.serving.routing import replica_host

# Calls that a replica takes at once. Its engine refuses long before.
_CALLS = 10_000
# Shared memory for values above 100 KB, such as very long prompts; Ray's least.
_SHARED = 80 * 2**20
# Seconds between two health checks of a replica, and for its shutdown.
_CHECK_S, _SHUTDOWN_S = 1.0, 1.0
# Ray gives its own processes 15 s to start, which a busy machine may not have.
_TRIES = 3
_QUIET = {'enable_access_log': False, 'log_level': 'WARNING'}
_FAILED = ('DEPLOY_FAILED', 'UNHEALTHY')


class Failed(RuntimeError):
  """An error: replicas did not start; the message is Serve's."""


class RayTransport:
  """A `remote_replica.Transport` to a replica by its name."""

  def __init__(self, name: str):
    self._name = name
    # Made in the loop that uses it.
    self._handle: serve.handle.DeploymentHandle | None = None

  async def subscribe(
    self, ingress: str
  ) -> AsyncIterator[replica_host.Welcome | replica_host.Heartbeat]:
    """Yields the messages of `ReplicaHost.subscribe`; raises as Ray does."""
    messages = self._find().options(stream=True).subscribe.remote(ingress)
    try:
      async for message in messages:
        yield message
    finally:
      messages.cancel()

  async def call(self, method: str, *arguments: Any) -> replica_host.CallResult:
    """Returns the answer of `ReplicaHost.call`; raises as Ray does."""
    return await self._find().call.remote(method, *arguments)

  def _find(self) -> serve.handle.DeploymentHandle:
    if self._handle is None:
      self._handle = serve.get_app_handle(self._name)
    return self._handle


class Ray:
  """A Ray with Serve, which this process has joined."""

  def __init__(self, address: str, is_ours: bool):
    self.address = address  # For `join`.
    self.is_ours = is_ours  # Whether it ends with this process.
    self._deployed: list[str] = []

  @property
  def gpus(self) -> int:
    """Those of all its machines."""
    return int(ray.cluster_resources().get('GPU', 0))

  def deploy(
    self,
    names: Sequence[str],
    make: Callable[[str], replica_host.OwnedReplica],
    devices: int = 1,
  ) -> None:
    """Starts replicas; returns once all of them answer.

    Args:
      names: theirs; a running replica of such a name is replaced.
      make: called with its name in the process of each; must be a function of a
        module, perhaps a `functools.partial`, so that no weights are sent.
      devices: GPUs of each, where there are any.

    Raises:
      Failed: one did not start.
      ValueError: there are fewer GPUs.
    """
    # Accelerators are shared out; where there are none, no replica waits for
    # another.
    needs = {'num_cpus': 0}
    if gpus := self.gpus:
      if len(names) * devices > gpus:
        raise ValueError(
          f'--replicas={len(names)}, --tensor={devices}: their product must be'
          f' at most {gpus}, the GPUs of this Ray.'
        )
      needs['num_gpus'] = devices
    deployment = serve.deployment(
      _Replica,
      name='replica',
      num_replicas=1,
      max_ongoing_requests=_CALLS,
      ray_actor_options=needs,
      health_check_period_s=_CHECK_S,
      graceful_shutdown_timeout_s=_SHUTDOWN_S,
      logging_config=_QUIET,
    )
    targets = [
      serve.RunTarget(deployment.bind(make, name), name=name, route_prefix=None)
      for name in names
    ]
    self._deployed += names
    try:
      serve.run_many(targets)
    except RuntimeError as error:
      raise Failed(_describe(serve.status()) or str(error)) from error

  def transport(self, name: str) -> RayTransport:
    """Returns the way to a replica."""
    return RayTransport(name)

  def list(self, prefix: str) -> list[str]:
    """Returns the names of the replicas that begin with a prefix, sorted."""
    return sorted(
      x for x in serve.status().applications if x.startswith(prefix)
    )

  def stop(self) -> None:
    """Closes the replicas that this process deployed, and leaves Ray."""
    closing = [
      serve.get_app_handle(name).close.remote() for name in self._deployed
    ]
    for one in closing:
      # A replica that does not answer has nothing to close.
      with contextlib.suppress(Exception):
        one.result(timeout_s=30)
    if not self.is_ours:
      for name in self._deployed:
        serve.delete(name)
    ray.shutdown()


def start(folder: pathlib.Path) -> Ray:
  """Starts a Ray on this machine, which ends with this process.

  `ray_local.environment` must be that of this process.

  Args:
    folder: of its sockets and logs; its path must be short.

  Raises:
    RuntimeError: it does not start, or would listen to other machines.
  """
  for number in range(_TRIES):
    try:
      found = ray.init(
        include_dashboard=False,
        _node_ip_address='127.0.0.1',
        object_store_memory=_SHARED,
        _temp_dir=str(folder / str(number)),
        log_to_driver=False,
        logging_level=logging.ERROR,
        # Nothing of people's texts goes to a disk.
        _system_config={'automatic_object_spilling_enabled': False},
      )
      break
    except Exception as error:  # It has no class of its own.
      ray.shutdown()
      if number == _TRIES - 1:
        raise RuntimeError(f'Ray does not start: {error}') from error
  host = found.address_info['node_ip_address']
  if host != '127.0.0.1':
    ray.shutdown()
    raise RuntimeError(
      f'Ray {ray.__version__} listens on {host}, not loopback.'
    )
  return _serve(found.address_info['gcs_address'], is_ours=True)


def join(address: str) -> Ray:
  """Joins a running Ray; raises ConnectionError: it does not answer."""
  ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
  return _serve(address, is_ours=False)


def _serve(address: str, is_ours: bool) -> Ray:
  # A call after the end would start another Ray.
  os.environ['RAY_ENABLE_AUTO_CONNECT'] = '0'
  logging.getLogger('ray.serve').setLevel(logging.WARNING)
  proxy = serve.config.ProxyLocation.Disabled
  serve.start(proxy_location=proxy, logging_config=_QUIET)
  return Ray(address, is_ours)


def _describe(status: schema.ServeStatus) -> str:
  """Returns why replicas did not start, a line each; '' if it does not say."""
  found = []
  for name, one in status.applications.items():
    if one.status.value in _FAILED:
      said = [one.message, *(x.message for x in one.deployments.values())]
      # Behind a traceback, and a line of Serve's own.
      errors = re.findall(
        r'^\w[\w.]*(?:Error|Unavailable): .*', '\n'.join(said), re.M
      )
      found.append(f'{name}: {errors[-1] if errors else one.message}')
  return '\n'.join(found)


class _Replica(replica_host.ReplicaHost):
  """The deployment: a host, as an actor."""

  def __init__(
    self, make: Callable[[str], replica_host.OwnedReplica], name: str
  ):
    _keep_on_loopback()
    made = make(name)
    super().__init__(made.replica, made.lease, made.facts)
    self._close = made.close

  def check_health(self) -> None:
    """Has Serve replace a process whose engine has failed; raises."""
    if not self.is_alive:
      raise RuntimeError('the engine has failed.')

  def close(self) -> None:
    """Ends the replica, which saves what it saves."""
    self._close()


def _keep_on_loopback() -> None:
  """Has Serve's own server of this process listen on loopback."""
  from ray.serve._private import replica

  add = replica.add_port_to_grpc_server
  replica.add_port_to_grpc_server = lambda server, address: add(
    server, address.replace('[::]', '127.0.0.1')
  )
