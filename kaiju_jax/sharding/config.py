"""The shape of a device mesh; imports no jax."""

import dataclasses

AXES = ('fsdp', 'tensor')


@dataclasses.dataclass
class MeshConfig:
  """Widths of the mesh's axes."""

  # Devices that split the batch, and D of stored weights. By default weights
  # cross this axis as int8 and gradients in 6 bits.
  fsdp: int = 1
  # Devices that split F, H and V, and L between blocks; best within a node,
  # where the wire is fast.
  tensor: int = 1

  @property
  def devices(self) -> int:
    return self.fsdp * self.tensor


def check(config: MeshConfig) -> None:
  """Refuses widths below 1.

  Raises:
    ValueError: names the field, its value and what would be right.
  """
  for name in AXES:
    value = getattr(config, name)
    if value < 1:
      raise ValueError(f'mesh.{name}={value}: must be at least 1.')
