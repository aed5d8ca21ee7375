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
  """What a message's cost depends on.

  Attributes:
    message_rate: messages per second, the mean of a day.
    peak_to_mean: the busiest hour's rate over the mean; 1 if the fleet follows
      the traffic.
    prefix, history, message, output: tokens of a mean message: the character's
      prefix, the conversation so far, the user's text, the reply.
    hit_rate: the fraction of prompt tokens that the prefix cache has.
    prefill_rate, decode_rate: tokens per second of one GPU.
    gpu_price: $ per GPU and hour.
    pooled: GPUs that share one queue.
    slo: seconds, the p99 of the time to a first token.
    fixed: $ per message for all that is no GPU: stores, network, classifiers.
    training: $ of the model's training.
    training_days: days that the model is served.
    user_messages: messages of an active user per day.
    subscription: $ per month of a user who pays.
    paid_share: the fraction of active users who pay.
  """

  message_rate: float
  peak_to_mean: float
  prefix: float
  history: float
  message: float
  output: float
  hit_rate: float
  prefill_rate: float
  decode_rate: float
  gpu_price: float
  pooled: float
  slo: float
  fixed: float
  training: float
  training_days: float
  user_messages: float
  subscription: float
  paid_share: float

  def __post_init__(self):
    """Refuses inputs that no fleet has.

    Raises:
      ValueError: names the field, its value and what would be right.
    """
    for field in dataclasses.fields(self):
      value = getattr(self, field.name)
      if not math.isfinite(value) or value < 0:
        raise ValueError(
          f'{field.name}={value:g}: must be a number of 0 or more.'
        )
      if field.name in ('hit_rate', 'paid_share') and value > 1:
        raise ValueError(f'{field.name}={value:g}: must lie between 0 and 1.')
      if field.name in _ABOVE_ZERO and not value:
        raise ValueError(f'{field.name}=0: must be above 0.')
    for name in 'peak_to_mean', 'pooled':
      if getattr(self, name) < 1:
        value = getattr(self, name)
        raise ValueError(f'{name}={value:g}: must be at least 1.')

  @property
  def prompt(self) -> float:
    """Returns the tokens of a mean prompt."""
    return self.prefix + self.history + self.message

  @property
  def active_users(self) -> float:
    """Returns the users of a day."""
    return self.message_rate * DAY / self.user_messages


_ABOVE_ZERO = {
  *('message_rate', 'prefix', 'output', 'prefill_rate', 'decode_rate'),
  *('gpu_price', 'slo', 'training_days', 'user_messages', 'subscription'),
}


class Cost(NamedTuple):
  """A message's cost, in $.

  Attributes:
    prefill_s, decode_s: GPU seconds of a message.
    load: ρ.
    gpus: GPUs that the peak needs.
    gpu, fixed, training: the parts of `total`.
  """

  prefill_s: float
  decode_s: float
  load: float
  gpus: float
  gpu: float
  fixed: float
  training: float

  @property
  def total(self) -> float:
    return self.gpu + self.fixed + self.training

  @property
  def bottleneck(self) -> str:
    """Returns the part that takes more of a GPU's time."""
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


def margin(given: Inputs, paid_share: float | None = None) -> float:
  """Returns the gross margin, −∞ where nobody pays."""
  share = given.paid_share if paid_share is None else paid_share
  revenue = share * given.subscription
  return 1 - user_month(given) / revenue if revenue else -math.inf


def prefix_hit_rate(prefix: float, behind: float) -> float:
  """Returns the hit rate where characters' prefixes alone are cached."""
  return prefix / (prefix + behind)


def crossover(cheaper: Inputs, dearer: Inputs) -> float:
  """Returns the daily users from which the model that costs more to train pays.

  Args:
    cheaper: inputs of the model whose message costs less, trained at a price.
    dearer: the same of the other.

  Returns:
    0 where its training costs no more, ∞ where its message costs no less.
  """
  saved = (cost(dearer).gpu + dearer.fixed) - (
    cost(cheaper).gpu + cheaper.fixed
  )
  per_day = (
    cheaper.training / cheaper.training_days
    - dearer.training / dearer.training_days
  )
  if saved <= 0:
    return math.inf
  return max(per_day, 0.0) / (saved * cheaper.user_messages)


def mix(small: Inputs, large: Inputs, share: float) -> float:
  """Returns $ per message where a share of messages goes to the large model.

  Raises:
    ValueError: the share does not lie between 0 and 1.
  """
  if not 0 <= share <= 1:
    raise ValueError(f'share={share:g}: must lie between 0 and 1.')
  return (1 - share) * cost(small).total + share * cost(large).total


class SourceCost(NamedTuple):
  """The lines of source 003's calculator."""

  effective_rate: float
  batch_factor: float
  gpus: float
  hourly: float
  per_request: float
  monthly: float


def source_calculator(
  rate: float = 50_000,
  hit_rate: float = 0.6,
  slo: float = 2.5,
  price: float = 2.0,
) -> SourceCost:
  """Computes as source 003's calculator does.

  It takes 3,000 GPUs at 20,000 uncached requests/s and 2.5 s as given. That the
  fleet grows as 2.5 s / SLO is our reading of its "3×".

  Raises:
    ValueError: names the argument, its value and what would be right.
  """
  for name, value in (('rate', rate), ('slo', slo), ('price', price)):
    if not value > 0:
      raise ValueError(f'{name}={value:g}: must be above 0.')
  if not 0 <= hit_rate <= 1:
    raise ValueError(f'hit_rate={hit_rate:g}: must lie between 0 and 1.')
  effective, factor = rate * (1 - hit_rate), 2.5 / slo
  gpus = 3000 * effective / 20_000 * factor
  hourly = gpus * price
  return SourceCost(
    effective,
    factor,
    gpus,
    hourly,
    hourly / (rate * 3600),
    hourly * HOURS_OF_MONTH,
  )
