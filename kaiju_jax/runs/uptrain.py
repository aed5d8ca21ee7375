"""Makes a Kaiju student from a teacher's weights, for a run to begin with.

Uptraining (Ainslie et al. 2023) continues training with another model's weights
in a cheaper architecture; `interchange/surgery/` changes the weights.
Training restores the lost quality, best on the teacher's own distributions
(`experiments.teach`).
"""

from collections.abc import Iterator
import dataclasses
import functools
import os
import pathlib
from typing import Any
from typing import Literal
from typing import NamedTuple

from kaiju_jax.data import config as data_config
from kaiju_jax.model import config as model_config
from kaiju_jax.model import layers as layers_lib
from kaiju_jax.model import rope_scaling
from kaiju_jax.objectives import config as objective_config
from kaiju_jax.quantization import config as quantization_config

# The config of a run that begins with the student, in its folder.
CONFIG = 'config.py'
STARTS = ('mean', 'fitted')


class Student(NamedTuple):
  """The attention that a student is asked for; all else is the teacher's."""

  # The student's layers, such as 'L0 L0 L0 G3': L local or G global, and the
  # layer whose keys and values each reads; 'L L L G' lets a fitted start choose
  # pairs that share, and a layer may add a window, sinks and a logit, 'L:64+4s'
  # or 'L0:64+4s'. By default six local layers to a global one, shared by
  # three local and by two global ones.
  layout: str = ''
  # Positions that a local layer sees; 0 for the teacher's, or 128.
  window: int = 0
  # Heads of keys and values; a divisor of the teacher's.
  num_kv_heads: int = 1
  # Whether the student is int8.
  int8: bool = True


class Budget(NamedTuple):
  """The cache that a student's layout is found for (`kv_budget.py`)."""

  # KV bytes that a conversation of --kv_length tokens may take: layers and
  # heads are those that keep loss and needles, as measured on --text. 0 takes
  # --layout.
  kv_budget: int = 0
  # With --kv_budget: tokens of the conversation.
  kv_length: int = 8192


class FirstWeights(NamedTuple):
  """How a student's weights are made of the teacher's."""

  # Whether keys and values are means of the teacher's, or fitted over a text.
  start: Literal[*STARTS] = 'mean'
  # With --start=mean: what layers that share get, all means or the owner's.
  owners: Literal['mean', 'own'] = 'mean'
  # Text of a fitted start, which config.py names: a file, folder or glob.
  text: str = ''
  # Tokens of the text that the fit reads; with --kv_budget, at most 32,000.
  tokens: int = 262_144
  # Rows of the text's held-out part that each technique is measured on.
  check_rows: int = 4
  # Tokens of each of these rows.
  check_length: int = 512


KAIJU = Student()
MEAN = FirstWeights()
ANY = Budget()


def student_of(
  teacher: model_config.ModelConfig, wanted: Student = KAIJU
) -> model_config.ModelConfig:
  """Returns the student's config: the teacher's sizes in Kaiju's layers.

  A layer keeps the rotary angles that it was trained with: where all layers of
  the teacher are of one kind, both kinds of the student have theirs. It clamps
  what the teacher clamped: a model that was trained without limits has a few
  values far beyond them, which carry much of what it knows.
  """
  layers = teacher.layers()
  windows = {layer.window for layer in layers}
  default = model_config.ModelConfig()
  quantization = quantization_config.none()
  if wanted.int8:
    limits = quantization_config.clamps_of(teacher.quantization)
    quantization = quantization_config.QuantizationConfig(**limits)
  bases = {'rope_local': teacher.rope_local, 'rope_global': teacher.rope_global}
  scaling = teacher.rope_scaling
  if windows == {None}:
    bases['rope_local'] = teacher.rope_global
    scaling = dataclasses.replace(scaling, layers='all')
  elif None not in windows:
    bases['rope_global'] = teacher.rope_local
    if scaling.layers == 'global':
      scaling = rope_scaling.RopeScalingConfig(angles=scaling.angles)
  window = max((one for one in windows if one), default=default.window)
  return dataclasses.replace(
    teacher,
    **bases,
    rope_scaling=scaling,
    num_layers=len(layers),
    layout=wanted.layout,
    # A layout says them for itself.
    sinks=0 if wanted.layout else teacher.sinks,
    sink_logit=not wanted.layout and teacher.sink_logit,
    window=wanted.window or window,
    period=default.period,
    local_share=default.local_share,
    global_share=default.global_share,
    num_kv_heads=wanted.num_kv_heads,
    unroll=1,
    quantization=quantization,
  )


def write(
  teacher: str | os.PathLike[str],
  out: str | os.PathLike[str],
  wanted: Student = KAIJU,
  start: FirstWeights = MEAN,
  budget: Budget = ANY,
) -> str:
  """Writes a student as a new folder in our own format, with float32 masters.

  Args:
    teacher: the teacher's workdir, export, or Hugging Face folder.
    out: the new folder.
    wanted: the student's attention.
    start: how its weights are made.
    budget: of its cache; with one, layout and heads are found.

  Returns:
    A message for the user about teacher and student, and the command of a run
    that begins with the student: the folder holds that run's config (`CONFIG`).

  Raises:
    OSError, ValueError: the teacher cannot be read or shares keys and values,
      its weights do not fit the student, the text cannot be read, no layout
      meets the budget, or the folder exists.
    ImportError: a budget of a teacher with a chat template needs jinja2.
  """
  from kaiju_jax.interchange import own
  from kaiju_jax.interchange import plain
  from kaiju_jax.interchange import tokens
  from kaiju_jax.interchange.surgery import check
  from kaiju_jax.runs import load
  from kaiju_jax.runs import techniques

  _check_start(wanted, start, budget)
  found = load.from_anywhere(teacher)
  read_weights = functools.cache(
    lambda: plain.weights(found.params, found.config, found.replica)
  )
  searched, statistics = [], None
  if budget.kv_budget:
    wanted, searched, statistics = _search(
      found, read_weights, wanted, start, budget
    )
  letters = wanted.layout.split() if _is_open(wanted.layout) else ()
  config = student_of(
    found.config, wanted._replace(layout=_alone(wanted.layout))
  )
  check.check(found.config, config)
  weights = read_weights()
  config, make, said = _begin(
    found, weights, config, letters, start, statistics
  )
  made = make(config.layers(), config.num_kv_heads)
  params = plain.params(weights._replace(layers=made), config)
  if start.text:
    text = _held_out(found, start.text, or_all=True)
    size = start.check_rows, start.check_length
    said += techniques.measure(weights, found.config, config, make, text, size)
  # Only a run without a tokenizer is known to have read bytes.
  tokenizer = found.tokenizer or (None if found.experiment is None else '')
  if tokenizer == '' and config.vocab_size < tokens.BYTES:
    tokenizer = None
  beside = _files_beside(found, config, bool(tokenizer), start.text, teacher)
  own.write(out, params, config, tokenizer, masters=True, beside=beside)
  file = pathlib.Path(out) / CONFIG
  return '\n'.join(
    (
      f'{found.origin} → {out}',
      *searched,
      *_compare(found.config, config),
      *said,
      'A run that aligns its attention with the teacher first:',
      f'  python -m experiments.train --config={file}:align --workdir=ALIGNED',
      'A run that begins with it:',
      f'  python -m experiments.train --config={file} --workdir=WORKDIR',
    )
  )


def _files_beside(found, config, has_tokenizer: bool, text: str, teacher):
  """Returns what lies in the student's folder beside its weights."""
  from kaiju_jax.interchange import generation
  from kaiju_jax.interchange import tokens
  from kaiju_jax.runs import load
  from kaiju_jax.runs import student_config
  from kaiju_jax.training import frozen_model

  # Its template, the tokens that end a reply and its settings of sampling.
  beside = generation.copy(pathlib.Path(found.chats)) if found.chats else {}
  beside[CONFIG] = student_config.write(
    config,
    tokens.FILE if has_tokenizer else '',
    text,
    alignment_of(found.config, str(teacher)),
    bool(found.chats),
  )
  return beside | frozen_model.describe(load.digest(found), found.origin)


def _check_start(wanted: Student, start: FirstWeights, budget: Budget) -> None:
  """Refuses a start that cannot be made, before anything is read."""
  if budget.kv_budget < 0:
    raise ValueError(f'kv_budget={budget.kv_budget}: must be at least 0.')
  if budget.kv_budget and (wanted.layout or start.start != 'fitted'):
    raise ValueError(
      f'kv_budget={budget.kv_budget}: finds the layout of a fitted start; give'
      " it start='fitted', a text, and no layout."
    )
  if start.start not in STARTS:
    raise ValueError(
      f'start={start.start!r}: must be one of {", ".join(STARTS)}.'
    )
  for name, least in ('tokens', 1), ('check_rows', 1), ('check_length', 2):
    if getattr(start, name) < least:
      raise ValueError(
        f'{name}={getattr(start, name)}: must be at least {least}.'
      )
  if start.start == 'fitted' and not start.text:
    raise ValueError("start='fitted': needs a text; name it with --text.")
  if start.start == 'mean' and _is_open(wanted.layout):
    raise ValueError(
      f"layout={wanted.layout!r}: names no owners, which only start='fitted'"
      " can choose; write them, as in 'L0 L0 L0 G3'."
    )


def _search(found, read_weights, wanted: Student, start: FirstWeights, budget):
  """Returns the found student, lines about it, and the teacher's statistics."""
  from kaiju_jax.interchange.surgery import calibrate
  from kaiju_jax.runs import kv_budget

  def student(state: kv_budget.State) -> Student:
    seen = max(one.window or 0 for one in state.layers)
    return wanted._replace(
      layout=layers_lib.draw(state.layers),
      window=seen,
      num_kv_heads=state.heads,
    )

  search = kv_budget.Search(
    found.config,
    lambda state: student_of(found.config, student(state)),
    budget.kv_length,
  )
  windows = (wanted.window,) if wanted.window else kv_budget.WINDOWS
  windows = search.check(budget.kv_budget, windows)
  draws, said = _draw_rows(found, start.text)
  weights = read_weights()
  layers = range(len(weights.layers) - 1)
  statistics = calibrate.measure(
    weights,
    found.config,
    calibration_text(
      found, start.text, min(start.tokens, kv_budget.CALIBRATED)
    ),
    [(owner, owner + 1) for owner in layers],
  )
  state, lines = search.run(
    weights, statistics, draws, budget.kv_budget, windows
  )
  return student(state), said + lines, statistics


def _draw_rows(found, text: str):
  """Returns rows to measure on, and a line where none asks a question."""
  from kaiju_jax.runs import defaults
  from kaiju_jax.tasks.needle import trial_rows

  tokenizer, said = _tokenizer(found), []
  rest = _held_out(found, text), tokenizer, found.config
  if found.chats:
    try:
      format = defaults.read(found, tokenizer).format
      return trial_rows.draw_several(*rest, format), said
    except ValueError as error:
      said.append(f'  no question is asked in the chat template: {error}')
  return trial_rows.draw_several(*rest), said


def _is_open(layout: str) -> bool:
  """Returns whether a layout names kinds of layers and no owners."""
  return bool(layout) and all(
    word[0] in 'LGN' and not word[1:2].isdigit() for word in layout.split()
  )


def _alone(layout: str) -> str:
  """Returns the layout; one without owners in which no layer shares."""
  if not _is_open(layout):
    return layout
  words = layout.split()
  return ' '.join(f'{word[0]}{i}{word[1:]}' for i, word in enumerate(words))


def _begin(
  found, weights, config, letters, start: FirstWeights, statistics=None
):
  """Returns the student's config, what makes weights, lines for the user.

  Statistics are measured, unless a search measured them.
  """
  from kaiju_jax.interchange.surgery import calibrate
  from kaiju_jax.interchange.surgery import pool
  from kaiju_jax.interchange.surgery import rank
  from kaiju_jax.interchange.surgery import trial

  if start.start == 'mean':
    make = functools.partial(pool.pool_layers, weights, owners=start.owners)
    return config, make, []
  pairs = rank.candidates(letters)
  statistics = statistics or calibrate.measure(
    weights,
    found.config,
    calibration_text(found, start.text, start.tokens),
    [*pairs, *calibrate.pairs_of(config.layers())],
  )
  said = [f'  fitted to {statistics.tokens:,} tokens of {start.text}']
  if letters:
    lost = rank.residuals(weights, found.config, statistics, pairs)
    layout = rank.draw(letters, lost)
    config = dataclasses.replace(config, layout=layout)
    said += [
      f'  layers {owner} and {reader}: {share_:.1%} of keys and values lost'
      for (owner, reader), share_ in sorted(lost.items(), key=lambda x: x[1])
    ]
    said.append(f'  chosen: {layout}')
  fits = trial.Fits(weights, found.config, statistics)
  return config, lambda *of: fits.student(*of).weights, said


def calibration_text(teacher: Any, path: str, tokens: int) -> Iterator[Any]:
  """Yields `packing.Batch`es of a text, until they hold `tokens` tokens.

  Args:
    teacher: a `load.Loaded`, whose tokenizer reads the text.
    path: a file, folder or glob; documents that a run holds out are not read.
    tokens: how many tokens at least, unless the text is shorter.

  Raises:
    OSError, ValueError: see `documents.read`; or the text is empty.
  """
  from kaiju_jax.data import text
  from kaiju_jax.distillation import teach

  data, documents, _ = _documents(teacher, path)
  read = _tokenizer(teacher)
  corpus = text.corpus(documents, read)
  length = min(data.length, teacher.config.max_length)
  for one in teach.read_batches(corpus, length, data.batch, 0.25):
    yield one.batch
    tokens -= int((one.batch.source_BL >= 0).sum())
    if tokens <= 0:
      return


def _documents(teacher: Any, path: str):
  """Returns the settings of a run's data, its documents, those held out."""
  from kaiju_jax.data import holdout

  data = data_config.DataConfig()
  if teacher.experiment is not None:
    data = teacher.experiment.data
  documents, held_out = holdout.read(path, data.held_out, 'text')
  if not documents:
    raise ValueError(f'text={path!r}: the files hold no text.')
  return data, documents, held_out


def _held_out(teacher: Any, path: str, or_all: bool = False):
  """Returns the tokens that a run holds out, or all where it holds out none."""
  from kaiju_jax.data import text

  _, documents, held_out = _documents(teacher, path)
  if not held_out and not or_all:
    raise ValueError(f'text={path!r}: no document is held out.')
  return text.corpus(held_out or documents, _tokenizer(teacher)).tokens


def _tokenizer(teacher: Any):
  from kaiju_jax.data import tokenizer

  return tokenizer.load(teacher.tokenizer, teacher.config.vocab_size)


def _compare(teacher, student) -> list[str]:
  """Returns lines on the keys and values of teacher and student."""
  length = student.max_length
  rows = []
  for name, config in ('teacher', teacher), ('student', student):
    heads = config.num_kv_heads
    rows.append(
      f'  {name}: {layers_lib.draw(config.layers())};'
      f' {heads} head{"" if heads == 1 else "s"} of keys and values,'
      f' {kv_bytes(config, length):,.0f} bytes per token at'
      f' {length:,} tokens'
    )
  return rows


def kv_bytes(config: model_config.ModelConfig, length: int) -> float:
  """Returns a model's bytes of keys and values per token of `length`."""
  from kaiju_jax.costs import footprint

  return footprint.kv_caches(config, length)[0].per_token


def alignment_of(
  teacher: model_config.ModelConfig, path: str
) -> objective_config.AttentionAlignment:
  """Returns the settings by which a student's attention learns a teacher's."""
  layers = teacher.layers()
  return objective_config.AttentionAlignment(
    teacher=path,
    layout=layers_lib.draw(layers),
    num_kv_heads=teacher.num_kv_heads,
    window=max((one.window or 0 for one in layers), default=0),
  )
