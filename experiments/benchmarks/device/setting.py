"""What a run is told, and what it knows of its device. Imports no jax."""

import dataclasses
from typing import Annotated
from typing import Any
from typing import Literal

from kaiju_jax.runs import flags

from . import order

# A case hangs where it takes so many times its estimate, and so many seconds.
_TIMES, _LEAST_S = 4, 120
# A rehearsal may share its cores with much else.
_DRY_S = 600
# Faults that a rehearsal can plant in the first case of a slice.
FAULTS = 'raise', 'kill', 'hang', 'interrupt'


@dataclasses.dataclass(frozen=True)
class Setting:
  """The same for all slices of a run; travels to a child as JSON."""

  # Where everything is written.
  out: str = 'runs/device'
  # Rehearse on a CPU: tiny sizes, kernels interpreted.
  dry: bool = False
  # The platform that a rehearsal plays.
  platform: Literal['gpu', 'tpu'] = 'gpu'
  # Rounds of each timing.
  repeats: flags.Positive = 9
  # Seconds after which a case counts as hung; by default 4 times its estimate,
  # at least 120.
  case_s: Annotated[float | None, flags.Bounds(1)] = None
  # Cases of each slice; all by default.
  most_cases: flags.Positive | None = None
  # Run cases again that failed.
  retry: bool = False
  # Faults to rehearse, each SLICE:FAULT; a fault is one of raise, kill, hang
  # and interrupt.
  faults: tuple[str, ...] = ()

  def limit(self, estimate: float) -> float:
    """Returns the seconds after which a case of an estimate counts as hung."""
    if self.case_s is not None:
      return self.case_s
    if self.dry:
      return _DRY_S
    return max(_TIMES * estimate, _LEAST_S)

  def fault_of(self, name: str) -> str | None:
    """Returns the fault to plant in a slice's first case."""
    return dict(word.split(':') for word in self.faults).get(name)

  def check(self) -> None:
    """Refuses faults that cannot be planted.

    Raises:
      ValueError: names the word and what would be right.
    """
    for word in self.faults:
      name, _, fault = word.partition(':')
      if name not in order.SLICES or fault not in FAULTS:
        raise ValueError(
          f'--faults: {word!r}: expected SLICE:FAULT, a fault one of'
          f' {", ".join(FAULTS)}.'
        )
    if self.faults and not self.dry:
      raise ValueError('--faults: only a rehearsal (--dry) plants them.')


def device(setting: Setting) -> dict[str, Any]:
  """Returns what is at hand; starts JAX's backend.

  Raises:
    ValueError: there is only a CPU, and this is no rehearsal; or JAX does not
      start.
  """
  import jax

  try:
    first = jax.devices()[0]
    jax.devices('cpu')  # The definitions compute there.
  except RuntimeError as error:
    raise ValueError(f'JAX has no device: {error}') from error
  if first.platform == 'cpu' and not setting.dry:
    raise ValueError(
      'only a CPU is at hand, where times mean nothing: --dry rehearses every'
      ' slice. If this machine has a GPU, `nvidia-smi` must show it, and'
      ' `make gpu` installs the JAX that uses it; JAX_PLATFORMS must name no'
      ' other platform.'
    )
  return {
    'device': first.device_kind,
    'platform': jax.default_backend(),
    'plays': setting.platform if setting.dry else None,
    'driver': first.client.platform_version.splitlines()[0],
    'dry': setting.dry,
  }
