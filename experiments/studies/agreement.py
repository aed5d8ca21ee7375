"""Compares a trained run through its cache and kernels with a forward pass.

The forward pass runs whole rows; the cache runs a prompt in chunks and then one
token per call. In int8 or bfloat16 a sum in another order can change a code,
and that a logit, so that the two agree closely but not to the bit (except in
the decoder's `reference` mode).
"""

from collections.abc import Callable
import contextlib
import dataclasses
from typing import Any
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy import special

from kaiju_jax import visibility as visibility_lib
from kaiju_jax.decoding.device import cache as cache_lib
from kaiju_jax.decoding.device import decoder as decoder_lib
from kaiju_jax.decoding.device import placement
from kaiju_jax.evaluation import answers
from kaiju_jax.evaluation import cached_answers
from kaiju_jax.evaluation.gate import reader
from kaiju_jax.experiments.studies import settings as settings_lib
from kaiju_jax.kernels import dispatch
from kaiju_jax.kernels.visibility_attention import api
from kaiju_jax.model import config as model_config
from kaiju_jax.model import kv_heads
from kaiju_jax.model import transformer
from kaiju_jax.quantization import int8
from kaiju_jax.reporting import report
from kaiju_jax.runs import flags
from kaiju_jax.runs import load
from kaiju_jax.runs import play
from kaiju_jax.tasks import registry as tasks
from kaiju_jax.tasks.needle import questions as needle
from kaiju_jax.training import step
from kaiju_jax.wire import ternary_plan


def compare_cache(settings: settings_lib.Agreement) -> report.Table:
  """Returns how held-out text comes out through the cache."""
  found = load.from_workdir(settings.model)
  tokens_BL = tasks.texts(found.experiment, settings.rows)
  rows, length = tokens_BL.shape
  prompt = length // 2 if settings.prompt is None else settings.prompt
  counted = compare(
    found.params,
    found.experiment.model,
    tokens_BL,
    prompt=prompt,
    chunk=settings.chunk,
    page=settings.chunk,
    replica=found.replica,
    tensor=settings.tensor,
  )
  return report.Table(
    _counts(counted),
    ('compared', 'found'),
    f'{settings.model}: {rows} texts of {length} tokens, {prompt} of them'
    f' in chunks of {settings.chunk}',
  )


def _counts(counted):
  """Yields what was counted, in words and numbers."""
  yield 'loss, one forward pass', f'{counted.loss:.6f} nats per token'
  yield 'loss, through the cache', f'{counted.cached_loss:.6f} nats per token'
  yield 'relative difference', f'{counted.loss_difference:.1e}'
  yield 'largest logit', f'{counted.largest_logit:.3f}'
  yield 'largest difference', f'{counted.largest_difference:.2e}'
  tokens = counted.tokens
  yield 'greedy tokens', f'{counted.greedy_differs:,} of {tokens:,} differ'
  yield 'largest margin of those', f'{counted.greedy_margin:.2e}'
  sums = dict(counted.codes)
  if sums:
    sums['all'] = map(sum, zip(*sums.values()))
  for layer, (codes, differ) in sums.items():
    yield (
      f'codes, {layer if layer == "all" else f"layer {layer}"}',
      f'{differ:,} of {codes:,} differ ({100 * differ / codes:.3f} %)',
    )


def compare_answers(settings: settings_lib.Agreement) -> report.Table:
  """Returns how many answers are right through the cache."""
  found = load.from_workdir(settings.model)
  comparison = _Comparison(settings, found)
  for mode in settings.mode:
    decoder = play.decoder(
      found,
      None,
      rows=settings.rows,
      length=comparison.length,
      mode=mode,
      tensor=settings.tensor,
    )
    read = cached_answers.reader(decoder, settings.chunk)
    comparison.add(f'through the cache, {mode}', read)
  return comparison.table()


def compare_kernels(settings: settings_lib.Agreement) -> report.Table:
  """Returns how many answers each implementation of attention has right."""
  names = flags.choose('attention', settings.attention, api.RUNS_ON)
  comparison = _Comparison(settings, load.from_workdir(settings.model))
  for name in names:
    runs_here = dispatch.platform() in api.RUNS_ON[name]
    with contextlib.nullcontext() if runs_here else dispatch.interpret():
      comparison.add(
        f'{name}, {"compiled" if runs_here else "interpreted"}',
        comparison.forward(name),
      )
  return comparison.table()


class _Comparison:
  """The questions of a needle run, and who answers how many of them."""

  def __init__(self, settings: settings_lib.Agreement, found):
    self._settings, self._found = settings, found
    data = found.experiment.data
    self._task = tasks.questions(data)
    self._cells = needle.grid(self._task, data.length, settings.questions)
    self.length = max(cell.length for cell in self._cells)
    self._right = {}
    self.add('one forward pass', self.forward(found.experiment.model.attention))

  def forward(self, attention: str | None) -> Callable:
    """Returns what answers in one forward pass with this attention."""
    experiment = self._found.experiment
    model = dataclasses.replace(experiment.model, attention=attention)
    return answers.reader(
      answers.predictor(
        step.model_of(dataclasses.replace(experiment, model=model))
      ),
      self._found.params,
      {cell.length for cell in self._cells},
    )

  def add(self, name: str, read: Callable) -> None:
    """Asks all questions."""
    self._right[name] = needle.accuracy(
      read, self._task, self._cells, [self._settings.seed]
    )

  def table(self) -> report.Table:
    """Returns a row for each, with the points to the forward pass."""
    (name, own), *others = self._right.items()
    total = sum(cell.count for cell in self._cells)
    return report.Table(
      [
        (name, f'{100 * own:.2f}', ''),
        *(
          (name, f'{100 * right:.2f}', f'{100 * (right - own):+.2f}')
          for name, right in others
        ),
      ],
      ('how', 'right, %', 'points'),
      f'{self._settings.model}: {total:,} questions of up to {self.length}'
      ' tokens',
    )


class CacheAgreement(NamedTuple):
  """The measured differences between the two ways."""

  # Tokens whose successor is known; all other fields are about these.
  tokens: int
  loss: float  # The forward pass's loss, in nats per token.
  # The same tokens' loss through the cache, in nats per token.
  cached_loss: float
  largest_logit: float  # The largest magnitude in the forward pass.
  # The largest difference between the two logits of the same token and entry.
  largest_difference: float
  greedy_differs: int  # Tokens with another likeliest successor.
  # Of those tokens, the largest distance between the two largest logits in the
  # forward pass; 0 without such tokens.
  greedy_margin: float
  # {layer that makes keys and values: (codes that both hold, how many of these
  # differ)}; empty for a float cache.
  codes: dict[int, tuple[int, int]]

  @property
  def loss_difference(self) -> float:
    """The difference of the losses, relative to the forward pass's."""
    return abs(self.cached_loss - self.loss) / self.loss


def compare(
  params: Any,
  config: model_config.ModelConfig,
  tokens_BL: np.ndarray,
  *,
  prompt: int,
  chunk: int,
  page: int,
  replica: ternary_plan.State | None = None,
  tensor: int = 1,
) -> CacheAgreement:
  """Runs texts of equal length both ways.

  Args:
    params: float32 master weights.
    config: the model's config.
    tokens_BL: int32, one text per row.
    prompt: tokens of each text that run in chunks; the others run one by one.
    chunk: tokens of a chunk, at most `page`.
    page: slots of a page of the cache.
    replica: the training state's replica, where updates were ternary.
    tensor: devices that share the cache.

  Raises:
    ValueError: a prompt longer than the texts, or a chunk longer than a page,
      because a local layer's ring might drop keys before they are read here.
  """
  B, L = tokens_BL.shape
  if not 0 <= prompt <= L:
    raise ValueError(f'prompt={prompt}: must lie in 0…{L}, the texts.')
  if not 1 <= chunk <= page:
    raise ValueError(f'chunk={chunk}: must lie in 1…{page}, a page.')
  decoder = decoder_lib.Decoder(
    params,
    config,
    rows=B,
    length=L,
    page=page,
    replica=replica,
    mesh=placement.make(tensor),
  )
  whole_BLV = _whole(params, config, tokens_BL, replica)
  cached_BLV, cached = _run_cached(decoder, tokens_BL, prompt, chunk)
  codes = {}
  if config.quantization.kv == 'int8':
    codes = _count_codes(_whole_codes(decoder, tokens_BL), cached)
  return CacheAgreement(*_of_logits(whole_BLV, cached_BLV, tokens_BL), codes)


def _whole(params, config, tokens_BL, replica) -> np.ndarray:
  """Returns the logits of training's forward pass."""
  model = transformer.Transformer(config)
  variables = {'params': params, **ternary_plan.collections(replica)}
  rows, length = tokens_BL.shape
  visibility = visibility_lib.concatenate(
    [visibility_lib.causal(length)] * rows
  )
  return np.asarray(jax.jit(model.apply)(variables, tokens_BL, visibility))


def _whole_codes(decoder: decoder_lib.Decoder, tokens_BL):
  """Returns the forward pass's codes (k, v) [B, L, K] of each owning layer."""

  def made(params, tokens_BL):
    _, stored = reader.run(decoder, params, tokens_BL)
    return {owner: (k.codes, v.codes) for owner, (k, v) in stored.items()}

  return jax.device_get(decoder.jit(made)(decoder.params, tokens_BL))


def _run_cached(
  decoder: decoder_lib.Decoder, tokens_BL, prompt: int, chunk: int
):
  """Returns the logits through the cache, and the codes after each call."""
  B = len(tokens_BL)
  rows = [decoder.open() for _ in range(B)]
  read = decoder.jit(
    lambda cache, place_BL: _codes(cache, decoder, rows, place_BL)
  )
  logits, codes, done = [], [], 0
  for tokens, size in (
    (tokens_BL[:, :prompt], chunk),
    (tokens_BL[:, prompt:], 1),
  ):
    for hidden_BLD in cached_answers.prefill(decoder, rows, tokens, size):
      logits.append(np.asarray(decoder.logits(hidden_BLD)))
      end = done + hidden_BLD.shape[1]
      place_L = np.minimum(np.arange(done, done + size), end - 1)
      place_BL = np.broadcast_to(place_L, (B, size)).astype(np.int32)
      codes.append((place_BL, jax.device_get(read(decoder.cache, place_BL))))
      done = end
  return np.concatenate(logits, axis=1), codes


def _codes(cache: cache_lib.Cache, decoder, rows: list[int], place_BL):
  """Returns (k, v) [B, L, K] of each owning layer, and which are kept."""
  row_B = jnp.asarray(rows, jnp.int32)
  pools = decoder.network.pools
  slots = cache_lib.slots_of_text(cache, pools, row_B, place_BL, True)
  heads, result = decoder.config.num_kv_heads, {}
  for name, pool in pools.items():
    kind, slot_BL = cache.kinds[name], slots[name]
    table_BN = cache_lib.pages_of_heads(kind.table_RN[row_B], pool.heads)
    own_BL = kv_heads.repeat(slot_BL, pool.heads)
    place_B1 = np.arange(len(own_BL))[:, None]

    def kept(x, table_BN=table_BN, own_BL=own_BL, place_B1=place_B1, pool=pool):
      codes = x.codes if isinstance(x, int8.Quantized) else x
      pages = cache_lib.gather_pages(codes, table_BN, pool)
      row_BMK = pages.reshape(len(own_BL), pool.row_slots, -1)
      return kv_heads.gather(row_BMK[place_B1, own_BL], heads)

    is_kept_BL = kv_heads.repeat(slot_BL >= 0, heads)
    for owner, k, v in zip(pool.owners, kind.k, kind.v):
      result[owner] = (kept(k), kept(v)), is_kept_BL
  return result


def _count_codes(whole, cached) -> dict[int, tuple[int, int]]:
  """Returns {layer: (codes that both have, how many differ)}."""
  result = {}
  for place_BL, layers in cached:
    # A chunk's padding repeats its last place.
    place_L, first = np.unique(place_BL[0], return_index=True)
    for owner, (found, is_kept_BL) in layers.items():
      codes, differ = result.get(owner, (0, 0))
      is_kept_BL = is_kept_BL[:, first]
      for whole_BMK, x_BLK in zip(whole[owner], found):
        is_other_BLK = whole_BMK[:, place_L] != x_BLK[:, first]
        codes += int(is_kept_BL.sum()) * is_other_BLK.shape[-1]
        differ += int((is_other_BLK & is_kept_BL[:, :, None]).sum())
      result[owner] = codes, differ
  return result


def _of_logits(whole_BLV, cached_BLV, tokens_BL):
  """Returns the fields of `CacheAgreement` that follow from the logits."""
  whole_BLV, cached_BLV = whole_BLV[:, :-1], cached_BLV[:, :-1]
  difference_BL = np.abs(whole_BLV - cached_BLV).max(axis=-1)
  second_BL, first_BL = np.moveaxis(
    np.partition(whole_BLV, -2, axis=-1)[..., -2:], -1, 0
  )
  is_other_BL = whole_BLV.argmax(axis=-1) != cached_BLV.argmax(axis=-1)
  margin_BL = np.where(is_other_BL, first_BL - second_BL, 0)
  return (
    tokens_BL[:, 1:].size,
    _loss(whole_BLV, tokens_BL),
    _loss(cached_BLV, tokens_BL),
    float(np.abs(whole_BLV).max()),
    float(difference_BL.max()),
    int(is_other_BL.sum()),
    float(margin_BL.max()),
  )


def _loss(logits_BLV, tokens_BL) -> float:
  """Returns nats per token, computed in float64."""
  said_BLV = special.log_softmax(logits_BLV.astype(np.float64), axis=-1)
  target_BL1 = np.take_along_axis(said_BLV, tokens_BL[:, 1:, None], axis=-1)
  return float(-np.mean(target_BL1))
