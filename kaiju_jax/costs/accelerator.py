"""Describes hardware: a chip's figures, and a slice of such chips.

Hardware is data, apart from experiments: each file of `tpu_gpu_configs`
describes one slice, and an experiment never names a device. Imports no jax.
"""

from collections.abc import Mapping
import dataclasses
import math

from kaiju_jax.sharding import config as sharding_config

PLATFORMS = ('cpu', 'cuda', 'tpu')


@dataclasses.dataclass(frozen=True)
class Chip:
  """One device's figures; a chip's file gives the source of each."""

  name: str
  platform: str  # One of PLATFORMS.
  hbm_bytes: float  # Device memory.
  hbm_bandwidth: float = 0.0  # bytes/s of device memory.
  peak_bf16: float = 0.0  # Dense bf16 operations/s on the data sheet.
  peak_int8: float = 0.0  # Dense int8 operations/s on the data sheet.
  # operations/s that a large bf16 matmul reaches, as measured by others or by
  # our guess.
  matmul_bf16: float = 0.0
  matmul_int8: float = 0.0  # The same for int8.
  # bytes/s, one way, from one GPU to the others of its node.
  node_bandwidth: float = 0.0
  # bytes/s, one way, from one GPU to other nodes.
  network_bandwidth: float = 0.0
  # bytes/s, one way, of one link from a TPU to a neighbour.
  link_bandwidth: float = 0.0
  # The names by which jax knows the device (`device_kind`); none that is also
  # another chip's.
  kinds: tuple[str, ...] = ()
  # A text proto that describes a GPU to XLA's compiler; '' for other platforms.
  description: str = ''


@dataclasses.dataclass(frozen=True)
class Accelerator:
  """A slice of chips, and the mesh and flags that a step uses on it."""

  name: str  # The name of the slice's file.
  chip: Chip
  hosts: int  # Number of hosts, each of which runs one process.
  devices_per_host: int  # Devices of each host.
  # Widths of the axes; their product is the number of devices.
  mesh: sharding_config.MeshConfig
  # The compiler's name for a TPU slice, 'v5p:4x4x8'; '' for other platforms.
  topology: str = ''
  # XLA flags for this slice, without the dashes.
  flags: Mapping[str, bool | int] = dataclasses.field(default_factory=dict)
  # Variables that a launcher sets before the process starts.
  environment: Mapping[str, str] = dataclasses.field(default_factory=dict)

  @property
  def devices(self) -> int:
    return self.hosts * self.devices_per_host

  @property
  def torus(self) -> tuple[int, ...]:
    """Lengths of a TPU slice's sides; () for other platforms."""
    sides = self.topology.partition(':')[2]
    return tuple(int(side) for side in sides.split('x')) if sides else ()


def check(accelerator: Accelerator) -> None:
  """Refuses a slice whose parts disagree.

  Raises:
    ValueError: names the slice, the field, and what would be right.
  """
  name, mesh = accelerator.name, accelerator.mesh
  if accelerator.chip.platform not in PLATFORMS:
    raise ValueError(
      f'{name}: platform={accelerator.chip.platform!r}: must be one of'
      f' {", ".join(map(repr, PLATFORMS))}.'
    )
  sharding_config.check(mesh)
  if mesh.devices != accelerator.devices:
    raise ValueError(
      f'{name}: mesh.fsdp={mesh.fsdp} × mesh.tensor={mesh.tensor} is'
      f' {mesh.devices} devices, but {accelerator.hosts} hosts of'
      f' {accelerator.devices_per_host} have {accelerator.devices}.'
    )
  if accelerator.chip.platform == 'tpu':
    chips = math.prod(accelerator.torus)
    if chips != accelerator.devices:
      raise ValueError(
        f'{name}: topology={accelerator.topology!r} is {chips} chips, but'
        f' {accelerator.hosts} hosts of {accelerator.devices_per_host} have'
        f' {accelerator.devices}.'
      )
