"""The flags that describe a run's hardware, which no experiment contains.

(none)                   the first device trains alone
--fsdp=4 --tensor=2      a mesh over all devices
--accelerator=h100_64    that slice's mesh, flags and environment
--multihost              one process per host, as the cluster manager says
"""

from collections.abc import Mapping
import dataclasses
import importlib.metadata
import os
import re
import subprocess
import sys

from kaiju_jax import tpu_gpu_configs
from kaiju_jax.runs import flags
from kaiju_jax.sharding import config as sharding_config

# The variable in which libtpu reads flags of that prefix. XLA and libtpu exit
# at flags that they do not know.
_TPU = 'xla_tpu_', 'LIBTPU_INIT_ARGS'
_FLAG_VARIABLES = ('XLA_FLAGS', 'LIBTPU_INIT_ARGS')
# XLA's messages on flags that it refuses, in lines of severity E or F:
# "F1121 09:54:30.349984 5486 parse_flags_from_env.cc:234] Unknown …".
_COMPLAINT = re.compile(
  r"^[EF]\d{4} .*\] ((?:Unknown flags?|Couldn't interpret) .*)$", re.MULTILINE
)
_TRIAL_S = 120


@dataclasses.dataclass(frozen=True, kw_only=True)
class Hardware:
  """The devices of a run."""

  # Devices that rows and stored weights are split over.
  fsdp: flags.Positive | None = None
  # Devices that each matrix in use is split over.
  tensor: flags.Positive | None = None
  # A slice of tpu_gpu_configs/: its mesh (--fsdp and --tensor override it), XLA
  # flags and environment.
  accelerator: str | None = None
  # Whether this is one of several processes that train together, one per host.
  # Slurm, Open MPI, Kubernetes and Cloud TPU tell a process which it is.
  multihost: bool = False
  # HOST:PORT of process 0, without a cluster manager.
  coordinator: str | None = None
  # Number of processes; goes with --coordinator.
  processes: flags.Positive | None = None
  # Number of this process, from 0; goes with --coordinator.
  process: flags.NonNegative | None = None

  def prepare(self) -> sharding_config.MeshConfig | None:
    """Returns the mesh of the flags, None for one device; sets the environment.

    Call it before jax looks for devices. Variables that are already set keep
    their values; XLA's flags in them come last and override the accelerator's.
    XLA ends a process at a flag that its version does not know, so another
    process tries the flags first. The `xla_tpu_*` flags belong to libtpu, which
    exists only on a TPU, so they are set untested.

    Raises:
      ValueError: the accelerator is unknown, or XLA refuses its flags.
    """
    mesh = None
    if self.accelerator is not None:
      accelerator = tpu_gpu_configs.load(self.accelerator)
      given = _flag_variables(accelerator.flags, accelerator.environment)
      _try(self.accelerator, given['XLA_FLAGS'])
      _set_environment(given, accelerator.environment)
      mesh = accelerator.mesh
    if self.fsdp or self.tensor:
      mesh = sharding_config.MeshConfig(self.fsdp or 1, self.tensor or 1)
    return mesh

  def cluster(self):
    """Returns the `processes.Cluster` that the flags describe, if any.

    Raises:
      ValueError: the flags contradict each other.
    """
    names = 'coordinator', 'processes', 'process'
    given = {name: getattr(self, name) for name in names}
    missing = [name for name, value in given.items() if value is None]
    if len(missing) < len(given) and not self.multihost:
      raise ValueError(
        '--coordinator, --processes, --process: need --multihost.'
      )
    if not self.multihost:
      return None
    if 0 < len(missing) < len(given):
      raise ValueError(
        f'--{missing[0]} is missing: --coordinator, --processes and --process'
        ' go together.'
      )
    if not missing:
      _check(**given)
    from kaiju_jax.sharding import processes  # Imports jax: not for --help.

    return processes.Cluster(**given)


def _check(coordinator: str, processes: int, process: int) -> None:
  host, _, port = coordinator.rpartition(':')
  if not host or not port.isdecimal() or int(port) >= 1 << 16:
    raise ValueError(f'--coordinator={coordinator}: must be HOST:PORT.')
  if process >= processes:
    raise ValueError(
      f'--process={process}: must be less than --processes={processes}; they'
      ' count from 0.'
    )


def _flag_variables(xla_flags, environment) -> dict[str, str]:
  """Returns the accelerator's text for each variable that XLA reads."""
  given = {}
  for variable in _FLAG_VARIABLES:
    texts = [environment.get(variable, '')]
    texts += [
      f'--{name}={str(value).lower()}'
      for name, value in xla_flags.items()
      if variable == (_TPU[1] if name.startswith(_TPU[0]) else 'XLA_FLAGS')
    ]
    given[variable] = ' '.join(filter(None, texts))
  return given


def _try(accelerator: str, xla_flags: str) -> None:
  """Refuses flags that the installed XLA does not know.

  The CPU's backend reads the same flags as a GPU's and is always available.
  """
  if not xla_flags:
    return
  try:
    done = subprocess.run(
      [sys.executable, '-c', 'import jax; jax.devices()'],
      env=os.environ | {'JAX_PLATFORMS': 'cpu', 'XLA_FLAGS': xla_flags},
      stdin=subprocess.DEVNULL,
      capture_output=True,
      text=True,
      errors='replace',
      timeout=_TRIAL_S,
    )
  except subprocess.TimeoutExpired:
    return  # No verdict; the run itself will show it.
  complaints = _COMPLAINT.findall(done.stderr)
  if done.returncode and complaints:
    raise ValueError(
      f'--accelerator={accelerator}: JAX'
      f' {importlib.metadata.version("jax")} does not take its XLA flags:'
      f' {"; ".join(complaints)}. Change `flags` or `environment` in'
      f' tpu_gpu_configs/{accelerator}.py or its chip, or take the JAX'
      ' that they were written for.'
    )


def _set_environment(
  given: Mapping[str, str], environment: Mapping[str, str]
) -> None:
  for name, value in environment.items():
    if name not in _FLAG_VARIABLES:
      os.environ.setdefault(name, value)
  for variable, text in given.items():
    # If a flag is given twice, XLA uses the last value.
    both = ' '.join(filter(None, (text, os.environ.get(variable, ''))))
    if both:
      os.environ[variable] = both
