"""The flags and the end that the commands share which certify thresholds.

Only commands import it: `define` defines flags.
"""

from typing import Any
from typing import NamedTuple

from absl import app
from absl import flags

from kaiju_jax.reporting import decision

# absl then counts flags that a function here defines as its caller's flags.
flags.disclaim_key_flags()


class Texts(NamedTuple):
  """The flags that say which texts there are, and how they are divided."""

  data: flags.FlagHolder
  planted: flags.FlagHolder
  choose: flags.FlagHolder
  certify: flags.FlagHolder
  c: flags.FlagHolder
  seed: flags.FlagHolder

  def check(self) -> None:
    """Refuses flags that make no sense.

    Raises:
      app.UsageError: not exactly one of --data and --planted.
      ValueError: --c.
    """
    if bool(self.data.value) == self.planted.value:
      raise app.UsageError('either --data or --planted must be given.')
    if self.c.value <= 0:
      raise ValueError(f'--c={self.c.value}: must be above 0.')

  def read(self) -> Any:
    """Returns the labelled rows."""
    from kaiju_jax.classifiers import planted
    from kaiju_jax.classifiers import rows

    if self.planted.value:
      return planted.certifying(self.seed.value)
    return rows.read(self.data.value)

  @property
  def division(self) -> dict[str, Any]:
    """The fields that every task has."""
    names = 'choose', 'certify', 'c', 'seed'
    return {name: getattr(self, name).value for name in names}


def define(seed_text: str) -> Texts:
  """Defines --data, --planted, --choose, --certify, --c and --seed.

  Args:
    seed_text: help of --seed.
  """
  return Texts(
    flags.DEFINE_string('data', None, 'Labelled texts, a JSONL file.'),
    flags.DEFINE_bool(
      'planted', False, 'Make texts with planted marker words.'
    ),
    flags.DEFINE_float(
      'choose', 0.2, 'The part of the texts that chooses the thresholds.'
    ),
    flags.DEFINE_float(
      'certify', 0.4, 'The part of the texts that counts what they do.'
    ),
    flags.DEFINE_float(
      'c', 1.0, "Inverse of the regularization's strength, above 0."
    ),
    flags.DEFINE_integer('seed', 0, seed_text, lower_bound=0),
  )


def finish(out: str, name: str, version: str, outcome: Any) -> None:
  """Says what was written and whether it is certified.

  Args:
    out: the folder.
    name: of what was trained.
    version: its version.
    outcome: with the `decision`.

  Raises:
    SystemExit: it is not certified; status 3 or 4.
  """
  print(f'{out}: {name} {version[:12]}; see report.md.')
  decision.finish(outcome.decision)
