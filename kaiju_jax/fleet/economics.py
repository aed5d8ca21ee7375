"""Computes cost per message, per user, and margin, from one record of inputs.

    uncached  = (1 − hit rate) (prefix + history + message)
    s/message = uncached / prefill rate + output / decode rate
    $/message = s/message · price / 3600 / ρ · peak/mean
              + fixed + training / (messages in the model's life)

ρ is the load at which M/M/c's p99 of the time to a first token is the SLO; only
prefills queue. A text decodes in a full batch from its first token on.
"""

import dataclasses
import math
from typing import NamedTuple

from kaiju_jax.fleet import queueing

DAY, MONTH_DAYS = 86_400, 30
HOURS_OF_MONTH = 730


@dataclasses.dataclass(frozen=True)
class Inputs:
  """What a message's cost depends on; tokens are those of a mean message.

  Raises:
    ValueError: an input that no fleet has; names the field, its value and what
      would be right.
  """

  message_rate: float  # Messages per second, the mean of a day.
  # The busiest hour's rate over the mean; 1 if the fleet follows the traffic.
  peak_to_mean: float
  prefix: float  # Tokens of the character's prefix.
  history: float  # Tokens of the conversation so far.
  message: float  # Tokens of the user's text.
  output: float  # Tokens of the reply.
  hit_rate: float  # The fraction of prompt tokens that the prefix cache has.
  prefill_rate: float  # Tokens per second of one GPU.
  decode_rate: float  # Tokens per second of one GPU.
  gpu_price: float  # $ per GPU and hour.
  pooled: float  # GPUs that share one queue.
  slo: float  # Seconds, the p99 of the time to a first token.
  # $ per message for all that is no GPU: stores, network, classifiers.
  fixed: float
  training: float  # $ of the model's training.
  training_days: float  # Days that the model is served.
  user_messages: float  # Messages of an active user per day.
  subscription: float  # $ per month of a user who pays.
  paid_share: float  # The fraction of active users who pay.

  def __post_init__(self) -> None:
    for name, value in dataclasses.asdict(self).items():
      if not math.isfinite(value) or value < 0:
        raise ValueError(f'{name}={value:g}: must be a number of 0 or more.')
      if name in ('hit_rate', 'paid_share') and value > 1:
        raise ValueError(f'{name}={value:g}: must lie between 0 and 1.')
      if name in _ABOVE_ZERO and not value:
        raise ValueError(f'{name}=0: must be above 0.')
      if name in ('peak_to_mean', 'pooled') and value < 1:
        raise ValueError(f'{name}={value:g}: must be at least 1.')

  @property
  def prompt(self) -> float:
    """The tokens of a mean prompt."""
    return self.prefix + self.history + self.message

  @property
  def active_users(self) -> float:
    """The users of a day."""
    return self.message_rate * DAY / self.user_messages


_ABOVE_ZERO = {
  *('message_rate', 'prefix', 'output', 'prefill_rate', 'decode_rate'),
  *('gpu_price', 'slo', 'training_days', 'user_messages', 'subscription'),
}


class Cost(NamedTuple):
  """A message's cost."""

  prefill_s: float  # GPU seconds.
  decode_s: float  # GPU seconds.
  load: float  # ρ.
  gpus: float  # GPUs that the peak needs.
  gpu: float  # $, as the next two.
  fixed: float
  training: float

  @property
  def total(self) -> float:
    return self.gpu + self.fixed + self.training

  @property
  def bottleneck(self) -> str:
    """The part that takes more of a GPU's time."""
    return 'prefill' if self.prefill_s > self.decode_s else 'decode'


def cost(given: Inputs) -> Cost:
  """Returns the cost of a message.

  Raises:
    ValueError: a prefill alone takes longer than the SLO.
  """
  prefill = prefill_seconds(given)
  decode = given.output / given.decode_rate
  load = 1.0
  if prefill:
    load = queueing.highest_load(int(given.pooled), prefill, given.slo)
  seconds = (prefill + decode) / load * given.peak_to_mean
  lifetime = given.message_rate * DAY * given.training_days
  return Cost(
    prefill,
    decode,
    load,
    given.message_rate * seconds,
    seconds * given.gpu_price / 3600,
    given.fixed,
    given.training / lifetime,
  )


def prefill_seconds(given: Inputs, hit_rate: float | None = None) -> float:
  """Returns the GPU seconds of a message's prefill, at another hit rate too."""
  hit_rate = given.hit_rate if hit_rate is None else hit_rate
  return (1 - hit_rate) * given.prompt / given.prefill_rate


def work_ratio(given: Inputs, hit_rate: float) -> float:
  """Returns the GPU time per message at another hit rate, over that now."""
  decode = given.output / given.decode_rate
  return (prefill_seconds(given, hit_rate) + decode) / (
    prefill_seconds(given) + decode
  )


def point_of_hit_rate(given: Inputs) -> float:
  """Returns $ per month that one point less of hit rate costs."""
  less = dataclasses.replace(given, hit_rate=max(given.hit_rate - 0.01, 0.0))
  month = given.message_rate * DAY * MONTH_DAYS
  return month * (cost(less).gpu - cost(given).gpu)


def user_month(given: Inputs) -> float:
  """Returns $ per month that an active user costs."""
  return cost(given).total * given.user_messages * MONTH_DAYS


def margin(given: Inputs, paid_share: float) -> float:
  """Returns the gross margin, −∞ where nobody pays."""
  revenue = paid_share * given.subscription
  return 1 - user_month(given) / revenue if revenue else -math.inf


def crossover(own: Inputs, other: Inputs) -> float:
  """Returns the daily users from which a model of one's own pays.

  Args:
    own: the model that costs more to train and less per message.

  Returns:
    0 where its training costs no more, ∞ where its message costs no less.
  """
  saved = (cost(other).gpu + other.fixed) - (cost(own).gpu + own.fixed)
  if saved <= 0:
    return math.inf
  per_day = (
    own.training / own.training_days - other.training / other.training_days
  )
  return max(per_day, 0.0) / (saved * own.user_messages)


class SourceCost(NamedTuple):
  """The lines of source 003's calculator."""

  effective_rate: float
  batch_factor: float
  gpus: float
  hourly: float
  per_request: float
  monthly: float


def source_calculator(given: Inputs, rate: float = 50_000) -> SourceCost:
  """Computes as source 003's calculator does.

  It takes 3,000 GPUs at 20,000 uncached requests/s and 2.5 s as given. That the
  fleet grows as 2.5 s / SLO is our reading of its "3×".

  Args:
    given: the hit rate, the SLO and a GPU's price.
    rate: requests per second.

  Raises:
    ValueError: a rate of 0 or less.
  """
  if not rate > 0:
    raise ValueError(f'rate={rate:g}: must be above 0.')
  effective, factor = rate * (1 - given.hit_rate), 2.5 / given.slo
  gpus = 3000 * effective / 20_000 * factor
  hourly = gpus * given.gpu_price
  return SourceCost(
    effective,
    factor,
    gpus,
    hourly,
    hourly / (rate * 3600),
    hourly * HOURS_OF_MONTH,
  )
