"""Checks what source 003 says against what follows from its other figures.

A claim recomputes a cell of the book from other cells. A flag is the outcome of
that arithmetic: correct a cell, and its flag goes (and those of cells that
follow from it may come). Source 003 prints two digits, so that 5 % is no
difference.
"""

from collections.abc import Iterator
from collections.abc import Sequence
import math
from typing import Any
from typing import NamedTuple

from kaiju_jax.fleet import book as book_lib
from kaiju_jax.fleet import queueing

TOLERANCE = 0.05
ROWS = {
  'V1': 'traffic from tokens per day',
  'V2': 'GPUs from sessions',
  'V3': 'prompts of 512 tokens, 200K tokens/s per GPU',
  'V4': 'decode dominates',
  'V5': '3,000 GPUs serve 50,000 messages/s within 20 B tokens a day',
  'V6': 'the cache at 60 %, and without affinity',
  'V7': 'messages per month, and the budget of each',
  'V8': 'a p99 three times as long is three times as cheap',
  'V9': 'bytes of keys and values, and the GPUs that hold them',
  'V10': 'an edit is warm again in two minutes',
  'V11': "the incidents' ledger",
  'V12': 'conversion, v5e, Llama 3 8B, the post of 2023',
}


class Claim(NamedTuple):
  """A cell of the book, and what follows from the others."""

  row: str  # A key of ROWS.
  cell: str
  said: float
  recomputed: float
  formula: str  # How it is recomputed, in words.
  relation: str = '='  # What `recomputed` must be of `said`: '=', '≤' or '≥'.

  @property
  def flagged(self) -> bool:
    """Whether the two figures disagree."""
    off = self.recomputed - self.said
    slack = TOLERANCE * max(abs(self.said), abs(self.recomputed))
    if self.cell.endswith('_year'):
      slack = 0.0
    return {'≤': off, '≥': -off, '=': abs(off)}[self.relation] > slack

  @property
  def factor(self) -> float:
    """The larger of the two figures over the other."""
    low, high = sorted((abs(self.said), abs(self.recomputed)))
    return high / low if low else math.inf


def check(book: book_lib.Book) -> list[Claim]:
  """Returns every claim about source 003's book with its outcome.

  Raises:
    ValueError: a cell lacks its label.
  """
  book_lib.check(book)
  b = book_lib.values(book)
  parts = _traffic, _capacity, _budgets, _memory, _ledger, _references
  return [
    Claim(row, cell, getattr(b, cell), *rest)
    for part in parts
    for row, cell, *rest in part(b)
  ]


def verdicts(found: Sequence[Claim]) -> Iterator[tuple[str, int, int, float]]:
  """Yields (row, claims that are flagged, all claims, largest factor)."""
  for row in ROWS:
    mine = [one for one in found if one.row == row]
    factors = [one.factor for one in mine if one.flagged]
    yield row, len(factors), len(mine), max(factors, default=1.0)


def kv_bytes(b: Any, heads: float, bytes_per_value: float) -> float:
  """Returns a request's bytes of keys and values, over all layers."""
  layers = round(b.parameters / (12 * b.width**2))
  return 2 * heads * b.context * b.head_dim * bytes_per_value * layers


def holders(b: Any, heads: float, bytes_per_value: float) -> float:
  """Returns the GPUs whose memory holds all sessions' keys and values."""
  return b.concurrent * kv_bytes(b, heads, bytes_per_value) / b.hbm


def work(b: Any, hit_rate: float) -> float:
  """Returns a message's work at a hit rate, over that at the book's own."""
  return sum(_seconds(b, hit_rate)) / sum(_seconds(b, b.hit_rate))


def slo_gain(b: Any, servers: float) -> float:
  """Returns the cost at the tight SLO over that at the loose one, by M/M/c."""
  loose, tight = (
    queueing.highest_load(int(servers), b.prefill_service, slo)
    for slo in (b.loose_slo, b.tight_slo)
  )
  return loose / tight


def _seconds(b, hit_rate: float) -> tuple[float, float]:
  """Returns a message's seconds of prefill and decode, on H100 ceilings."""
  prompt = b.prefix + b.history + b.message
  return (
    (1 - hit_rate) * prompt / b.h100_prefill_rate,
    b.output / b.h100_decode_rate,
  )


def _traffic(b):
  prefill = b.concurrent * (1 - b.hit_rate) * b.prefill_input
  gpus = prefill / b.prefill_rate
  decode = b.peak_rate * b.output
  return (
    ('V1', 'token_rate', b.tokens_per_day / 86_400, 'tokens / 86,400'),
    ('V1', 'message_rate', b.token_rate / b.output, 'tokens/s / 512'),
    ('V1', 'peak_rate', b.message_rate * b.peak_to_mean, 'mean × 2'),
    ('V2', 'prefill_demand', prefill, 'sessions × .4 × 512'),
    ('V2', 'prefill_gpus', gpus, 'sessions × .4 × 512 / 200K'),
    ('V2', 'decode_demand', decode, 'peak/s × 512'),
    ('V2', 'decode_gpus', decode / b.decode_rate, 'peak/s × 512 / 5K'),
    ('V3', 'prefill_input', b.prefix + b.message, 'prefix + message'),
    ('V3', 'prefill_rate', b.a100_paper_rate, 'A100 int8 peak', '≥'),
    ('V3', 'prefill_rate', b.h100_paper_rate, 'H100 int8 peak', '≥'),
  )


def _capacity(b):
  prefill, decode = _seconds(b, b.hit_rate)
  by_time = 'prefill s / decode s, 13b on H100, at its own hit rate'
  second = b.hourly / 3600
  factor = b.peak_cost * b.peak_claimed / second
  by_quotient = 'the factor that its own quotient has'
  now = second / b.message_rate
  tokens = b.mean_claimed * b.output * 86_400
  behind = b.message + (b.message + b.output) * (b.session_turns - 1)
  alone = b.prefix / (b.prefix + behind)
  return (
    ('V4', 'prefill_over_decode', prefill / decode, by_time, '≤'),
    ('V5', 'hourly', b.fleet * b.gpu_price, 'GPUs × $2'),
    ('V5', 'monthly', b.hourly * 730, '$/h × 730'),
    ('V5', 'peak_cost', second / b.peak_claimed, '$/h at 50K/s'),
    ('V5', 'mean_cost', second / b.mean_claimed, '$/h at 25K/s'),
    ('V5', 'messages_per_request', factor, by_quotient),
    ('V5', 'tokens_per_day', tokens, '25K/s × 512 × 86,400'),
    ('V5', 'free_ceiling', now, '$/h at 451 messages/s', '≤'),
    ('V5', 'decode_rate', b.token_rate / b.fleet, 'tokens/s / GPUs'),
    ('V6', 'effective_rate', b.peak_claimed * (1 - b.hit_rate), '50K × .4'),
    ('V6', 'hit_rate', alone, 'prefix alone, geometric sessions of 8'),
    ('V6', 'lost_load_ratio', 1 / (1 - b.hit_rate), 'prefill: 1 / .4'),
    ('V6', 'lost_load_ratio', work(b, 0.0), 'all work, 13b on H100'),
    ('V6', 'lost_hit_rate', b.random_hit_rate, 'prefixes, LRU by Che'),
  )


def _budgets(b):
  each = b.budget / b.month_messages
  gain = slo_gain(b, b.shard_gpus)
  return (
    ('V7', 'budget', b.subscription * (1 - b.margin), '$10 × .4'),
    ('V7', 'month_messages', b.user_messages * 30, '20 a day × 30'),
    ('V7', 'message_budget', each, 'budget / messages'),
    ('V7', 'free_ceiling', b.message_budget, 'one ceiling'),
    ('V7', 'paid_ceiling', b.message_budget, 'one ceiling'),
    ('V8', 'slo_gain', gain, "M/M/c, a shard's 30 GPUs pooled", '≥'),
  )


def _memory(b):
  warm = b.edit_users / b.peak_claimed
  return (
    ('V9', 'kv_mha', kv_bytes(b, b.heads, 2), '32 heads, all layers'),
    ('V9', 'kv_mqa', kv_bytes(b, 1, 2), 'one head, all layers'),
    ('V9', 'kv_int8', kv_bytes(b, 1, 1), 'one head, int8, all layers'),
    ('V9', 'kv_fleet', b.concurrent * b.kv_mha, 'sessions × bytes'),
    ('V9', 'mha_gpus', holders(b, b.heads, 2), 'all layers / 80 GB'),
    ('V9', 'mqa_gpus', holders(b, 1, 2), 'all layers / 80 GB'),
    ('V9', 'int8_gpus', holders(b, 1, 1), 'all layers / 80 GB'),
    ('V9', 'mqa_ratio', b.kv_mha / b.kv_mqa, 'MHA / MQA'),
    ('V9', 'int8_ratio', b.kv_mha / b.kv_int8, 'MHA / MQA in int8'),
    ('V10', 'rewarm', warm, '100K users / 50K/s'),
  )


def _ledger(b):
  hours = b.row1_minutes / 60
  gross = b.hourly * b.lost_load_ratio * hours
  net = b.hourly * (min(b.lost_load_ratio, 1) - 1) * hours
  delayed = (2 * b.row1_gross + 1.5 * b.row1_churn) / b.row1_total
  longer = 1 + 10 / b.row1_minutes
  # What a user who leaves is worth, and how many complaints make one leave.
  worth = b.subscription * b.ltv_months
  per_complaint = b.row2_churners / b.row2_complaints
  blocked, at_peak = (
    rate * b.row2_refused * 60 * b.row2_minutes
    for rate in (b.peak_claimed, b.peak_rate)
  )
  churn2 = at_peak * b.complaint_share * per_complaint * worth
  drained = b.shard_gpus * 0.5 * b.gpu_price
  fixed_fleet = 'a fixed fleet burns no more than all its GPUs'
  as_row2 = '200 × $10 × 12, as row 2 values a user'
  return (
    ('V11', 'row1_gross', gross, '$/h × 2.5 × ¼ h'),
    ('V11', 'row1_net', net, fixed_fleet),
    ('V11', 'row1_churn', b.row1_churners * b.subscription, 'users × $10'),
    ('V11', 'row1_ltv', b.row1_churners * worth, 'users × $10 × 12'),
    ('V11', 'row1_total', b.row1_gross + b.row1_churn, 'gross + churn'),
    ('V11', 'delay_ratio', delayed, '30 min / 15 min'),
    ('V11', 'delay_factor', longer, 'ten minutes more: 1 + 10 / MTTR'),
    ('V11', 'row2_blocked', blocked, '50K/s × .1 × 720 s'),
    ('V11', 'row2_blocked', at_peak, '902/s × .1 × 720 s'),
    ('V11', 'row2_total', b.row2_churners * worth, '500 × $10 × 12'),
    ('V11', 'row2_total', churn2, 'the same at 902/s'),
    ('V11', 'row3_gpu', drained, '30 GPUs × ½ h × $2'),
    ('V11', 'row3_churn', b.row3_churners * worth, as_row2),
    ('V11', 'row3_total', b.row3_gpu + b.row3_churn, 'GPUs + churn'),
  )


def _references(b):
  uptrained = b.uptraining_share
  return (
    ('V12', 'conversion_share', uptrained, 'uptraining / training'),
    ('V12', 'v5e_native', b.v5e_int8_ratio, 'v5e: int8 / bf16 operations'),
    ('V12', 'llama_mha', b.llama_kv_heads, 'heads of keys and values'),
    ('V12', 'blog_year', b.post_year, "the post's date"),
  )
