"""Guards that stop online rounds after a bad round.

They check a round's model once it is trained. All limits are our guess.
"""

from collections.abc import Sequence
import dataclasses
from typing import NamedTuple

from kaiju_jax.reporting import statistics


class Readings(NamedTuple):
  """Figures of a round's model on held-out prompts."""

  # KL of the model from the first one, nats per reply; None where no reply ends
  # by itself.
  kl: float | None
  length: float  # Tokens of its replies, by those of the first model.
  # In how many of the first model's groups the kept reply has the largest
  # reward, log p − log p of the first model.
  right: int
  choices: int  # The number of these groups.
  # How many of its replies were cut off. No round learns from them and KL
  # leaves them out, so that nothing else sees replies that never end.
  cut: int = 0
  replies: int = 0  # The number of its replies.

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
  length: float = 1.5  # Replies may be so many times as long, or as short.
  # The largest share of replies that may be cut off; one more surely is, if the
  # interval of 95 % lies above it.
  cut: float = 0.05
  # So many rounds in a row may have an accuracy whose interval of 95 % lies
  # below that of the best one so far.
  rounds: int = 3


def find_fault(history: Sequence[Readings], limits: Limits) -> str:
  """Returns which guard the last round violates and its value, '' for none.

  Args:
    history: the readings of all rounds, in their order.
    limits: the limits.
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
