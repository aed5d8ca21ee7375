"""Guards that stop the rounds after a bad one. All limits are our guess."""

from collections.abc import Sequence
import dataclasses
from typing import NamedTuple

from kaiju_jax.reporting import statistics


class Readings(NamedTuple):
  """Figures of a round's model on held-out prompts."""

  # KL from the first model, nats per reply; None where each reply is cut off.
  kl: float | None
  length: float  # Mean tokens of a reply, relative to the first model.
  # In how many groups of the first model's replies the kept one has the largest
  # reward, log p − log p of the first model; and the number of these groups.
  right: int
  choices: int
  # Replies that were cut off. No round trains on them and KL leaves them out,
  # so that nothing else detects replies that never end.
  cut: int = 0
  replies: int = 0

  @property
  def accuracy(self) -> float | None:
    """The fraction of held-out choices that are right; None without any."""
    return self.right / self.choices if self.choices else None

  @property
  def interval(self) -> statistics.Interval:
    """The accuracy's interval of 95 %; there must be choices."""
    return statistics.wilson(self.right, self.choices)


@dataclasses.dataclass(frozen=True)
class Limits:
  """The limits at which rounds stop."""

  kl: float = 12.0  # The most nats per reply.
  length: float = 1.5  # Replies may become this many times longer or shorter.
  # The largest share of replies that may be cut off; violated if the 95 %
  # interval of the share lies above it.
  cut: float = 0.05
  # Violated by so many rounds in a row whose accuracy has a 95 % interval below
  # that of the best round so far.
  rounds: int = 3


def find_fault(history: Sequence[Readings], limits: Limits) -> str:
  """Returns which limit the last round violates, with its value; '' for none.

  `history` holds the readings of all rounds, in order.
  """
  last = history[-1]
  if last.kl is not None and not last.kl <= limits.kl:
    return f'kl: {last.kl:.2f} nats per reply, more than {limits.kl:g}'
  if not 1 / limits.length <= last.length <= limits.length:
    return (
      f'length: replies are {last.length:.2f} times as long as at first, beyond'
      f' {1 / limits.length:.2f}…{limits.length:g}'
    )
  if last.replies and (
    statistics.wilson(last.cut, last.replies).low > limits.cut
  ):
    return (
      f'cut: {last.cut} of {last.replies} replies never end, more than'
      f' {limits.cut:g}'
    )
  known = [one for one in history if one.choices]
  best = max(known, key=lambda one: one.interval.low, default=None)
  tail = known[-limits.rounds :]
  if len(tail) == limits.rounds and all(
    one.interval.high < best.interval.low for one in tail
  ):
    return (
      f'accuracy: {tail[-1].accuracy:.2f} of held-out choices after'
      f' {best.accuracy:.2f}, and as low for {limits.rounds} rounds'
    )
  return ''
