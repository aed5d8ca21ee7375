"""Checks what source 003 says against what follows from its other figures.

A claim names a cell of the book and recomputes it from other cells. A flag is
the outcome of that arithmetic: correct a cell, and its flag goes (and those of
cells that follow from it may come). Source 003 prints two digits, so that 5 %
is no difference.
"""

from collections.abc import Callable
from collections.abc import Iterator
import math
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
  """A cell that follows from others.

  Attributes:
    row: a key of ROWS.
    cell: its name in the book.
    compute: takes the book's values, returns the cell's from the others.
    formula: the same in words.
    relation: what the recomputed figure must be of the cell: '=', '≤' or '≥'.
  """

  row: str
  cell: str
  compute: Callable[..., float]
  formula: str
  relation: str = '='


class Finding(NamedTuple):
  """A claim's outcome.

  Attributes:
    claim: the claim.
    said: the cell's value.
    recomputed: the value that follows from the other cells.
    flagged: whether they disagree.
  """

  claim: Claim
  said: float
  recomputed: float
  flagged: bool

  @property
  def factor(self) -> float:
    """Returns the larger of the two figures over the other."""
    low, high = sorted((abs(self.said), abs(self.recomputed)))
    return high / low if low else math.inf


def findings(book: book_lib.Book) -> list[Finding]:
  """Returns the outcome of every claim about source 003's book.

  Raises:
    ValueError: a cell lacks its label.
  """
  book_lib.check(book)
  values = book_lib.values(book)
  found = []
  for claim in CLAIMS:
    said, recomputed = getattr(values, claim.cell), claim.compute(values)
    found.append(
      Finding(claim, said, recomputed, _differ(said, recomputed, claim))
    )
  return found


def verdicts(found: list[Finding]) -> Iterator[tuple[str, int, int, float]]:
  """Yields (row, claims that are flagged, all claims, largest factor)."""
  for row in ROWS:
    mine = [one for one in found if one.claim.row == row]
    flagged = [one for one in mine if one.flagged]
    worst = max((one.factor for one in flagged), default=1.0)
    yield row, len(flagged), len(mine), worst


def _differ(said: float, recomputed: float, claim: Claim) -> bool:
  slack = TOLERANCE * max(abs(said), abs(recomputed))
  if claim.cell.endswith('_year'):
    slack = 0.0
  if claim.relation == '≤':
    return recomputed > said + slack
  if claim.relation == '≥':
    return recomputed < said - slack
  return abs(said - recomputed) > slack


def layers(b) -> float:
  """Returns the layers of source 003's model, parameters / 12 D²."""
  return round(b.parameters / (12 * b.width**2))


def kv_bytes(b, heads: float, bytes_per_value: float) -> float:
  """Returns a request's bytes of keys and values, over all layers."""
  return 2 * heads * b.context * b.head_dim * bytes_per_value * layers(b)


def holders(b, heads: float, bytes_per_value: float) -> float:
  """Returns the GPUs whose memory holds all sessions' keys and values."""
  return b.concurrent * kv_bytes(b, heads, bytes_per_value) / b.hbm


def seconds(b, hit_rate: float) -> tuple[float, float]:
  """Returns a message's seconds of prefill and decode, on our ceilings."""
  prompt = b.prefix + b.history + b.message
  return (
    (1 - hit_rate) * prompt / b.h100_prefill_rate,
    b.output / b.h100_decode_rate,
  )


def work(b, hit_rate: float) -> float:
  """Returns a message's work at a hit rate, over that at the book's own."""
  return sum(seconds(b, hit_rate)) / sum(seconds(b, b.hit_rate))


def _prefill_over_decode(b) -> float:
  prefill, decode = seconds(b, b.hit_rate)
  return prefill / decode


def _session_hit_rate(b) -> float:
  behind = b.message + (b.message + b.output) * (b.session_turns - 1)
  return b.prefix / (b.prefix + behind)


def slo_gain(b, servers: float) -> float:
  """Returns the cost at the tight SLO over that at the loose one, by M/M/c."""
  loads = [
    queueing.highest_load(int(servers), b.prefill_service, slo)
    for slo in (b.loose_slo, b.tight_slo)
  ]
  return loads[0] / loads[1]


def _hourly_cost(b, rate: float) -> float:
  return b.hourly / (rate * 3600)


def _blocked(b, rate: float) -> float:
  return rate * b.row2_refused * 60 * b.row2_minutes


def _row2(b) -> float:
  per_complaint = b.row2_churners / b.row2_complaints
  complaints = _blocked(b, b.peak_rate) * b.complaint_share
  return complaints * per_complaint * b.subscription * b.ltv_months


_V1 = (
  ('token_rate', lambda b: b.tokens_per_day / 86_400, 'tokens / 86,400'),
  ('message_rate', lambda b: b.token_rate / b.output, 'tokens/s / 512'),
  ('peak_rate', lambda b: b.message_rate * b.peak_to_mean, 'mean × 2'),
)
_V2 = (
  (
    'prefill_demand',
    lambda b: b.concurrent * (1 - b.hit_rate) * b.prefill_input,
    'sessions × .4 × 512',
  ),
  (
    'prefill_gpus',
    lambda b: (
      b.concurrent * (1 - b.hit_rate) * b.prefill_input / b.prefill_rate
    ),
    'sessions × .4 × 512 / 200K',
  ),
  ('decode_demand', lambda b: b.peak_rate * b.output, 'peak/s × 512'),
  (
    'decode_gpus',
    lambda b: b.peak_rate * b.output / b.decode_rate,
    'peak/s × 512 / 5K',
  ),
)
_V3 = (
  ('prefill_input', lambda b: b.prefix + b.message, 'prefix + message'),
  ('prefill_rate', lambda b: b.a100_paper_rate, 'A100 int8 peak', '≥'),
  ('prefill_rate', lambda b: b.h100_paper_rate, 'H100 int8 peak', '≥'),
)
_V4 = (
  (
    'prefill_over_decode',
    _prefill_over_decode,
    'prefill s / decode s, 13b on H100, at its own hit rate',
    '≤',
  ),
)
_V5 = (
  ('hourly', lambda b: b.fleet * b.gpu_price, 'GPUs × $2'),
  ('monthly', lambda b: b.hourly * 730, '$/h × 730'),
  ('peak_cost', lambda b: _hourly_cost(b, b.peak_claimed), '$/h at 50K/s'),
  ('mean_cost', lambda b: _hourly_cost(b, b.mean_claimed), '$/h at 25K/s'),
  (
    'messages_per_request',
    lambda b: b.peak_cost * b.peak_claimed * 3600 / b.hourly,
    'the factor that its own quotient has',
  ),
  (
    'tokens_per_day',
    lambda b: b.mean_claimed * b.output * 86_400,
    '25K/s × 512 × 86,400',
  ),
  (
    'free_ceiling',
    lambda b: _hourly_cost(b, b.message_rate),
    '$/h at 451 messages/s',
    '≤',
  ),
  ('decode_rate', lambda b: b.token_rate / b.fleet, 'tokens/s / GPUs'),
)
_V6 = (
  ('effective_rate', lambda b: b.peak_claimed * (1 - b.hit_rate), '50K × .4'),
  ('hit_rate', _session_hit_rate, 'prefix alone, geometric sessions of 8'),
  ('lost_load_ratio', lambda b: 1 / (1 - b.hit_rate), 'prefill: 1 / .4'),
  ('lost_load_ratio', lambda b: work(b, 0.0), 'all work, 13b on H100'),
  ('lost_hit_rate', lambda b: b.random_hit_rate, 'prefixes, LRU by Che'),
)
_V7 = (
  ('budget', lambda b: b.subscription * (1 - b.margin), '$10 × .4'),
  ('month_messages', lambda b: b.user_messages * 30, '20 a day × 30'),
  (
    'message_budget',
    lambda b: b.budget / b.month_messages,
    'budget / messages',
  ),
  ('free_ceiling', lambda b: b.message_budget, 'one ceiling'),
  ('paid_ceiling', lambda b: b.message_budget, 'one ceiling'),
)
_V8 = (
  (
    'slo_gain',
    lambda b: slo_gain(b, b.shard_gpus),
    "M/M/c, a shard's 30 GPUs pooled",
    '≥',
  ),
)
_V9 = (
  ('kv_mha', lambda b: kv_bytes(b, b.heads, 2), '32 heads, all layers'),
  ('kv_mqa', lambda b: kv_bytes(b, 1, 2), 'one head, all layers'),
  ('kv_int8', lambda b: kv_bytes(b, 1, 1), 'one head, int8, all layers'),
  ('kv_fleet', lambda b: b.concurrent * b.kv_mha, 'sessions × bytes'),
  ('mha_gpus', lambda b: holders(b, b.heads, 2), 'all layers / 80 GB'),
  ('mqa_gpus', lambda b: holders(b, 1, 2), 'all layers / 80 GB'),
  ('int8_gpus', lambda b: holders(b, 1, 1), 'all layers / 80 GB'),
  ('mqa_ratio', lambda b: b.kv_mha / b.kv_mqa, 'MHA / MQA'),
  ('int8_ratio', lambda b: b.kv_mha / b.kv_int8, 'MHA / MQA in int8'),
)
_V10 = (
  ('rewarm', lambda b: b.edit_users / b.peak_claimed, '100K users / 50K/s'),
)
_V11 = (
  (
    'row1_gross',
    lambda b: b.hourly * b.lost_load_ratio * b.row1_minutes / 60,
    '$/h × 2.5 × ¼ h',
  ),
  (
    'row1_net',
    lambda b: b.hourly * (min(b.lost_load_ratio, 1) - 1) * b.row1_minutes / 60,
    'a fixed fleet burns no more than all its GPUs',
  ),
  ('row1_churn', lambda b: b.row1_churners * b.subscription, 'users × $10'),
  (
    'row1_ltv',
    lambda b: b.row1_churners * b.subscription * b.ltv_months,
    'users × $10 × 12',
  ),
  ('row1_total', lambda b: b.row1_gross + b.row1_churn, 'gross + churn'),
  (
    'delay_ratio',
    lambda b: (2 * b.row1_gross + 1.5 * b.row1_churn) / b.row1_total,
    '30 min / 15 min',
  ),
  (
    'delay_factor',
    lambda b: 1 + 10 / b.row1_minutes,
    'ten minutes more: 1 + 10 / MTTR',
  ),
  ('row2_blocked', lambda b: _blocked(b, b.peak_claimed), '50K/s × .1 × 720 s'),
  ('row2_blocked', lambda b: _blocked(b, b.peak_rate), '902/s × .1 × 720 s'),
  (
    'row2_total',
    lambda b: b.row2_churners * b.subscription * b.ltv_months,
    '500 × $10 × 12',
  ),
  ('row2_total', _row2, 'the same at 902/s'),
  (
    'row3_gpu',
    lambda b: b.shard_gpus * 0.5 * b.gpu_price,
    '30 GPUs × ½ h × $2',
  ),
  (
    'row3_churn',
    lambda b: b.row3_churners * b.subscription * b.ltv_months,
    '200 × $10 × 12, as row 2 values a user',
  ),
  ('row3_total', lambda b: b.row3_gpu + b.row3_churn, 'GPUs + churn'),
)
_V12 = (
  ('conversion_share', lambda b: b.uptraining_share, 'uptraining / training'),
  ('v5e_native', lambda b: b.v5e_int8_ratio, 'v5e: int8 / bf16 operations'),
  ('llama_mha', lambda b: b.llama_kv_heads, 'heads of keys and values'),
  ('blog_year', lambda b: b.post_year, "the post's date"),
)
CLAIMS = tuple(
  Claim(row, *claim)
  for row, claims in zip(
    ROWS,
    (_V1, _V2, _V3, _V4, _V5, _V6, _V7, _V8, _V9, _V10, _V11, _V12),
  )
  for claim in claims
)
