"""Decides whether a quantized model may replace its baseline.

Source 003: an int8 checkpoint must keep a persona score of 4.0, because a
calibration can improve the average perplexity and lose the tokens that are
typical of a character. So both models play and read the same golden
conversations, and each figure has a limit. Source 003 names two: 4.0, and a
drop of 3 points of 100, which are 0.12 of 4; the others are our guess.
"""

from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import datetime
import pathlib
import statistics
from typing import Any
from typing import NamedTuple

import numpy as np

from kaiju_jax.data import tokenizer as tokenizer_lib
from kaiju_jax.evaluation import held_out
from kaiju_jax.evaluation.gate import divergence
from kaiju_jax.evaluation.gate import golden_tokens
from kaiju_jax.evaluation.gate import kv_channels
from kaiju_jax.evaluation.gate import reader
from kaiju_jax.evaluation.persona import golden
from kaiju_jax.evaluation.persona import judges
from kaiju_jax.evaluation.persona import responders
from kaiju_jax.evaluation.persona import scores
from kaiju_jax.gates import calibration_diff
from kaiju_jax.gates import needle_gate
from kaiju_jax.gates import persona
from kaiju_jax.gates import persona_judge
from kaiju_jax.gates import players
from kaiju_jax.gates import settings as settings_lib
from kaiju_jax.reporting import decision as decision_lib
from kaiju_jax.reporting import report
from kaiju_jax.reporting import statistics as statistics_lib
from kaiju_jax.storage import folders

NAME = 'quantization'


@dataclasses.dataclass(frozen=True)
class Limits:
  """The limits of the gate."""

  # A tier's least mean score and its largest drop, both with 95 % confidence.
  score: float = 4.0
  drop: float = 0.12
  bits: float = 0.005  # The largest relative rise of bits per byte.
  kl: float = 0.01  # The largest mean KL of a group of tokens, nats per token.
  kl_p99: float = 0.1  # The largest 99th percentile of it.
  agreement: float = 0.97  # The least share of equal likeliest tokens.
  rail: float = 0.01  # The largest share of codes at the rail.


LIMITS = Limits()


class Bits(NamedTuple):
  """Bits per byte of the same prose."""

  baseline: float
  candidate: float

  @property
  def rise(self) -> float:
    """The candidate's over the baseline's, minus 1."""
    return self.candidate / self.baseline - 1


class Read(NamedTuple):
  """The reading of both models."""

  groups: dict[tuple[str, str, str], divergence.Summary]
  bits: Bits  # Of prose; of the conversations without any.
  channels: dict[str, dict[tuple[int, str], kv_channels.Channels]]


class Pair(NamedTuple):
  """The two models of a gate."""

  baseline: players.Opened
  candidate: players.Opened


class Examined(NamedTuple):
  """What a gate found."""

  checks: list[decision_lib.Check]
  figures: dict[str, Any]  # As plain data.
  needle: str  # A sentence on what was recalled; '' if nothing was asked.


def examine(
  pair: Pair,
  conversations: Sequence[golden.GoldenConversation],
  prose: str = '',
  judge: judges.Judge | None = None,
  needle: tuple[str, int, int] | None = None,
) -> Examined:
  """Runs the requested tests (reading, recall, personas) on both models.

  Args:
    pair: the models.
    conversations, prose: as for `read`.
    judge: of the personas; None plays nothing.
    needle: name, questions and length of `needle_gate.measure`; None asks
      nothing.

  Raises:
    ValueError: as `players.check_same_tokens`, `read` and
      `needle_gate.measure`; or the judge is one of the two.
  """
  players.check_same_tokens(*pair)
  if judge:
    for one in pair:
      persona_judge.refuse_own(judge.identity, f'checkpoint {one.digest}')
  found = read(*pair, conversations, prose)
  checks, recalled, played = list(checks_of_reading(found)), None, ()
  if needle:
    recalled = needle_gate.measure(*pair, *needle)
    checks.append(needle_gate.check(recalled))
  else:
    reason = 'No needle was asked (--nopersona, or --needle is empty).'
    checks.append(decision_lib.abstain(reason))
  if judge:
    played = [
      persona.play(
        responders.Model(one.generator, one.format),
        conversations,
        judge,
        rows=one.decoder.rows,
      )
      for one in pair
    ]
    checks += checks_of_personas(*played)
  else:
    checks.append(
      decision_lib.abstain('Personas were not played (--nopersona).')
    )
  plain = {
    **figures(found, *played),
    'limits': dataclasses.asdict(LIMITS) | {'needle': needle_gate.MOST},
    'needle': needle_gate.figures(recalled) if recalled else None,
  }
  sentence = needle_gate.describe(recalled) if recalled else ''
  return Examined(checks, plain, sentence)


def run(settings: settings_lib.Gate) -> report.Report:
  """Examines both models, and returns the report with its decision.

  Raises:
    ImportError, OSError, RuntimeError, ValueError: something cannot be read, or
      is refused.
  """
  if settings.out:
    folders.refuse_existing(settings.out)
  conversations, source = settings.conversations.read()
  diff = calibration_diff.Diff(None, [])
  if settings.calibration_diff:
    diff = calibration_diff.measure(*settings.calibration_diff)
  prose = pathlib.Path(settings.text).read_text() if settings.text else ''
  calibration = settings_lib.load_decision(settings.judge.calibration)
  played = settings.player
  pair = Pair(
    baseline=players.open_model(
      settings.baseline,
      settings.rows,
      dataclasses.replace(played, **vars(settings.arm)),
    ),
    candidate=players.open_model(settings.candidate, settings.rows, played),
  )
  judge, needle, checks, name = None, None, [], ''
  if settings.persona:
    judge = settings.judge.read(played)
    name = judge.identity
    checks += persona_judge.calibration_checks(
      name, calibration, datetime.date.today()
    )
    if settings.needle:
      needle = settings.needle, settings.needles, settings.needle_length
  found = examine(pair, conversations, prose, judge, needle)
  figures = {**found.figures, 'calibration_diff': diff.figures}
  decision = decision_lib.decide(
    NAME,
    [*found.checks, *checks],
    figures,
    {
      'golden': source,
      'baseline': pair.baseline.digest,
      'candidate': pair.candidate.digest,
      'judge': name,
    },
  )
  title = f'{pair.candidate.origin} against {pair.baseline.origin}'
  page = make_page(title, figures, name, found.needle)
  return page.add(*diff.parts).decide(decision)


def read(
  baseline: players.Opened,
  candidate: players.Opened,
  conversations: Sequence[golden.GoldenConversation],
  prose: str = '',
) -> Read:
  """Reads the conversations and the prose with both models.

  Args:
    baseline, candidate: the models, which read the same tokens.
    conversations: the conversations.
    prose: a text to measure bits per byte on; '' for the conversations.

  Raises:
    ValueError: a conversation is longer than the models' positions, or the
      prose has fewer than two tokens.
  """
  format = baseline.format
  encoded = [golden_tokens.encode(one, format) for one in conversations]
  length = max(len(one.tokens_L) for one in encoded)
  for one, conversation in zip(encoded, conversations):
    if len(one.tokens_L) > baseline.decoder.config.max_length:
      raise ValueError(
        f'{conversation.id}: {len(one.tokens_L):,} tokens: the model has'
        f' {baseline.decoder.config.max_length:,} positions.'
      )
  both = {'baseline': baseline, 'candidate': candidate}
  readers = {x: reader.Reader(y.decoder, length) for x, y in both.items()}
  counters = {name: kv_channels.Counter() for name in both}

  def compare(tokens_L: np.ndarray) -> divergence.Differences:
    found = {name: one.read(tokens_L) for name, one in readers.items()}
    for name, one in found.items():
      counters[name].add(one.stored, len(tokens_L))
    return divergence.compare(
      found['baseline'].logits, found['candidate'].logits, tokens_L
    )

  pairs = [(one, compare(one.tokens_L)) for one in encoded]
  if prose:
    rows = _rows(format.tokenizer, prose, length)
  else:
    rows = [one.tokens_L for one in encoded]
  of_rows = map(compare, rows) if prose else (x for _, x in pairs)
  bits = _bits(format.tokenizer, rows, list(of_rows))
  channels = {name: one.summarize() for name, one in counters.items()}
  return Read(divergence.group(pairs), bits, channels)


def checks_of_reading(found: Read) -> Iterator[decision_lib.Check]:
  """Yields the checks of what both models read."""
  for key, one in found.groups.items():
    name = ' '.join(part for part in key if part != divergence.ALL)
    for what, value, most in (
      ('mean KL', one.kl, LIMITS.kl),
      ('99th percentile of KL', one.kl_p99, LIMITS.kl_p99),
    ):
      yield decision_lib.refuse_if(
        not value <= most,
        f'{name}: {what} is {value:.2g} nats per token; at most {most} is'
        ' allowed.',
      )
    yield decision_lib.refuse_if(
      not one.agreement >= LIMITS.agreement,
      f'{name}: {one.agreement:.1%} of the likeliest tokens are the same; at'
      f' least {LIMITS.agreement:.0%} must be.',
    )
  yield decision_lib.refuse_if(
    not found.bits.rise <= LIMITS.bits,
    f'bits per byte rise by {found.bits.rise:.2%}; at most {LIMITS.bits:.1%} is'
    ' allowed.',
  )
  baseline = found.channels['baseline']
  for (layer, name), one in found.channels['candidate'].items():
    yield decision_lib.refuse_if(
      one.at_rail is not None and one.at_rail > LIMITS.rail,
      f'layer {layer}: {one.at_rail or 0:.1%} of the codes of {name} are at the'
      f' rail; at most {LIMITS.rail:.0%} may be.',
    )
    before = baseline[layer, name].outliers if (layer, name) in baseline else 0
    yield decision_lib.refuse_if(
      one.outliers > before,
      f'layer {layer}: {one.outliers} channels of {name} are more than'
      f' {kv_channels.OUTLIER:.0f} times the median one; the baseline has'
      f' {before}.',
    )


def checks_of_personas(
  baseline: Sequence[persona.Judged], candidate: Sequence[persona.Judged]
) -> Iterator[decision_lib.Check]:
  """Yields the checks of the same conversations, played by both models."""
  before = {one.conversation.id: one.mean for one in baseline}
  for tier in golden.TIERS:
    of_tier = [x for x in candidate if x.conversation.tier == tier]
    if len(of_tier) < persona.NEEDED:
      yield decision_lib.abstain(
        f'{tier}: {len(of_tier)} conversations; at least {persona.NEEDED} are'
        ' needed.' + _power(persona.list_drops(of_tier, before))
      )
      continue
    found = statistics_lib.bootstrap_mean(
      [one.mean for one in of_tier], level=2 * scores.CONFIDENCE - 1
    )
    yield decision_lib.refuse_if(
      not found.low >= LIMITS.score,
      f'{tier}: the mean score is {found.value:.2f}, at least {found.low:.2f};'
      f' at least {LIMITS.score} must be shown.',
    )
    yield from persona.drop_checks(of_tier, before, LIMITS.drop, (tier,))


def figures(found: Read, *played: Sequence[persona.Judged]) -> dict[str, Any]:
  """Returns all figures as plain data.

  Args:
    found: the reading of both models.
    *played: the baseline's and the candidate's conversations, or nothing.
  """
  return report.plain(
    {
      'tokens': {' '.join(key): one for key, one in found.groups.items()},
      'bits_per_byte': {**found.bits._asdict(), 'rise': found.bits.rise},
      'channels': {
        who: {f'layer {n} {name}': one for (n, name), one in layers.items()}
        for who, layers in found.channels.items()
      },
      'personas': {
        who: persona.figures(judged)
        for who, judged in zip(Pair._fields, played)
      },
    }
  )


def make_page(
  title: str, found: Mapping[str, Any], judge: str, needle: str
) -> report.Report:
  """Returns the page of a gate's `figures`; `judge` is the judge's identity."""
  page = report.Report(title)
  page.table(
    [
      (
        ' '.join(x for x in name.split() if x != divergence.ALL),
        f'{one["count"]:,}',
        f'{one["kl"]:.2g}',
        f'{one["kl_p99"]:.2g}',
        f'{one["agreement"]:.1%}',
        f'{one["margin"]:.2g}',
      )
      for name, one in found['tokens'].items()
    ],
    ('tokens', 'count', 'KL', 'KL p99', 'same likeliest', 'largest margin'),
  )
  bits = found['bits_per_byte']
  page.say(
    f'Bits per byte {bits["baseline"]:.4f} → {bits["candidate"]:.4f}'
    f' ({bits["rise"]:+.2%}). KL and margins in nats.'
  )
  page.table(
    [
      (
        f'{who}, {name}',
        None if one['at_rail'] is None else f'{one["at_rail"]:.2%}',
        one['outliers'],
        f'{one["largest"]:.1f}',
      )
      for who, layers in found['channels'].items()
      for name, one in layers.items()
    ],
    ('keys and values', 'at the rail', 'outlier channels', 'largest / median'),
  )
  for who, one in found['personas'].items():
    persona.add_tables(page, f'Persona by {judge}: {who}', one)
  return page.say(needle) if needle else page


def _power(drops: Sequence[float]) -> str:
  """Returns the smallest drop that so many pairs show, as a sentence."""
  if len(drops) < 2:
    return ''
  least = scores.least_drop(drops)
  mean = statistics.fmean(drops)
  return f' These show a drop of {least:.2f} or more; it was {mean:+.2f}.'


def _rows(
  tokenizer: tokenizer_lib.Tokenizer, prose: str, length: int
) -> list[np.ndarray]:
  tokens_L = tokenizer.encode(prose)
  if len(tokens_L) < 2:
    raise ValueError(f'text: {len(tokens_L)} tokens: must be at least 2.')
  rows = [
    tokens_L[begin : begin + length]
    for begin in range(0, len(tokens_L), length)
  ]
  return [row for row in rows if len(row) > 1]


def _bits(
  tokenizer: tokenizer_lib.Tokenizer,
  rows: Sequence[np.ndarray],
  differences: Sequence[divergence.Differences],
) -> Bits:
  """Returns bits per byte of all tokens but the rows' first."""
  size = sum(len(tokenizer.decode(row[1:]).encode()) for row in rows)
  count = sum(len(row) - 1 for row in rows)
  losses = (
    np.concatenate([getattr(x, f'{name}_loss_L') for x in differences]).mean()
    for name in Bits._fields
  )
  return Bits(*(held_out.bits_per_byte(float(x), size / count) for x in losses))
