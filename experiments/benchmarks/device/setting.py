"""What a run is told, and what it knows of its device. Imports no jax."""

import dataclasses
from typing import Any

from . import order

# A case hangs where it takes so many times its estimate, and so many seconds.
_TIMES, _LEAST_S = 4, 120
# A rehearsal may share its cores with much else.
_DRY_S = 600
# Faults that a rehearsal can plant in the first case of a slice.
FAULTS = 'raise', 'kill', 'hang', 'interrupt'


@dataclasses.dataclass(frozen=True)
class Setting:
  """The same for all slices of a run; travels to a child as JSON.

  Attributes:
    out: folder of all files.
    dry: whether this is a rehearsal: tiny sizes, kernels interpreted.
    platform: the platform that a rehearsal plays; None for the one at hand.
    repeats: rounds of each timing.
    case_s: seconds after which a case counts as hung; None derives them from
      its estimate.
    most_cases: cases per slice; None for all.
    retry: whether cases that failed run again.
    faults: {slice: one of FAULTS}, for rehearsals.
  """

  out: str
  dry: bool = False
  platform: str | None = None
  repeats: int = 9
  case_s: float | None = None
  most_cases: int | None = None
  retry: bool = False
  faults: dict[str, str] = dataclasses.field(default_factory=dict)

  def limit(self, estimate: float) -> float:
    """Returns the seconds after which a case of an estimate counts as hung."""
    if self.case_s is not None:
      return self.case_s
    if self.dry:
      return _DRY_S
    return max(_TIMES * estimate, _LEAST_S)


def faults(words: list[str], dry: bool) -> dict[str, str]:
  """Returns {slice: fault} of the words of --faults.

  Raises:
    ValueError: names the word and what would be right.
  """
  found = {}
  for word in words:
    name, _, fault = word.partition(':')
    if name not in order.SLICES or fault not in FAULTS:
      raise ValueError(
        f'--faults: {word!r}: expected SLICE:FAULT, a fault one of'
        f' {", ".join(FAULTS)}.'
      )
    found[name] = fault
  if found and not dry:
    raise ValueError('--faults: only a rehearsal (--dry) plants them.')
  return found


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
