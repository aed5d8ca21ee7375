"""Reads the text of a run: its sources, their corpora, and their rows.

A run reads `data.path`, or it mixes `data.sources`. Documents are held out per
source.
"""

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
import contextlib
import dataclasses
import itertools
import math
import os
from typing import Any
from typing import NamedTuple

from kaiju_jax.data import config as data_config
from kaiju_jax.data import mix_file
from kaiju_jax.tasks import targets
from kaiju_jax.training import batch_schedule
from kaiju_jax.training import experiment as experiment_lib

# The folder in which runs keep their text encoded, for those that come later.
_STORES = 'KAIJU_STORES'


def keep_stores(folder: str | os.PathLike[str]) -> None:
  """Lets this process and those that it starts keep large text encoded.

  So several runs of one text encode it once. A folder that was named before, as
  by who started this process, stays.
  """
  os.environ.setdefault(_STORES, os.path.join(folder, '.stores'))


class Source(NamedTuple):
  """The text of `data.path`, or of one of `data.sources`."""

  # Its name, path and weights; the name of `data.path` is ''.
  config: data_config.SourceConfig
  training: Any  # The training `text.Corpus`.
  unseen: Any  # The held-out corpus, measured; None where nothing is held out.

  @property
  def is_mixed(self) -> bool:
    """Whether it is one of `data.sources`."""
    return bool(self.config.name)


def check(experiment: experiment_lib.Experiment) -> None:
  """Refuses text or a tokenizer that is missing, before any text is read.

  Raises:
    OSError, ValueError: names the source and what would be right.
  """
  from kaiju_jax.data.store import corpora
  from kaiju_jax.data.store import encoders

  data = experiment.data
  encoder = encoders.text_of(data, experiment.model.vocab_size)
  for one in _sources(data):
    with _name_source(one):
      corpora.check(_alone(data, one), encoder)
  targets.check(experiment)


def read(experiment: experiment_lib.Experiment) -> list[Source]:
  """Returns the text of every source.

  Raises:
    OSError, ValueError: see `corpora.load`; names the source.
  """
  from kaiju_jax.data.store import encoders

  data = experiment.data
  found = []
  for one in _sources(data):
    with _name_source(one):
      alone = _alone(data, one)
      parts = load(alone, encoders.text_of, experiment.model.vocab_size)
      found.append(Source(one, *parts))
  return found


def load(
  data: data_config.DataConfig, make: Callable[..., Any], vocab_size: int
) -> tuple[Any, Any]:
  """Returns the corpora of `data.path`, which later runs may read encoded.

  Args:
    data: names the files or the store.
    make: an `encoders.Make`.
    vocab_size: the model's.

  Raises:
    OSError, ValueError: see `corpora.load`.
  """
  from kaiju_jax.data.store import corpora
  from kaiju_jax.data.store import write

  encoder = make(data, vocab_size)
  if root := os.environ.get(_STORES):
    data = write.store_of(data, root, make)
  return corpora.load(data, encoder)


def describe(
  found: Sequence[Source], teacher: str = ''
) -> dict[str, dict[str, Any]]:
  """Returns {source's name: `same_text.describe`}, for the loader's state.

  Args:
    found: the sources.
    teacher: as in `same_text.describe`.

  Raises:
    ValueError: hosts have different texts, so that their rows would not be of
      one batch; names two of them.
  """
  from kaiju_jax.data import same_text
  from kaiju_jax.training import agreement

  texts = {
    one.config.name: same_text.describe(one.training, one.unseen, teacher)
    for one in found
  }
  sums = {name: {**one, 'files': None} for name, one in texts.items()}
  agreement.check({'text': sums})
  return texts


def rows(
  experiment: experiment_lib.Experiment, found: Sequence[Source], total: int
) -> Any:
  """Returns the training rows, a `loader.RowSource`.

  Args:
    experiment: the experiment that reads the text.
    found: the sources from `read`; several of them make a `mixture.Mixture`.
    total: rows of the whole run, over which the mixture's stages are spread.

  Raises:
    ValueError: a tree that is longer than a row.
  """
  from kaiju_jax.data import mixture
  from kaiju_jax.data import text

  data = experiment.data
  own = []
  for one in found:
    with _name_source(one.config):
      beside = targets.read_beside(experiment, one.training)
      own.append(
        text.Rows(one.training, data.length, experiment.seed, beside=beside)
      )
  if not found[0].is_mixed:
    return own[0]
  annealed = data_config.annealing_weights([one.config for one in found])
  parts = [
    mixture.Part(
      name=one.config.name,
      rows=rows,
      weight=one.config.weight,
      anneal=anneal,
      fill=rows.fill,
    )
    for one, rows, anneal in zip(found, own, annealed)
  ]
  return mixture.Mixture(
    parts,
    total,
    data.anneal_at,
    data.anneal_over,
    data.mix_block,
    experiment.seed,
  )


def common_rows(experiment: experiment_lib.Experiment) -> float:
  """Returns all rows of a text, or a mixture's whole blocks."""
  data = experiment.data
  if not data.sources:
    return math.inf
  weights = [one.weight for one in data.sources]
  if weights != data_config.annealing_weights(data.sources):
    return 0  # Shares before a change of weights prepare for it.
  rows = batch_schedule.schedule_of(experiment).rows
  begin = round(data.anneal_at * rows)
  return begin // data.mix_block * data.mix_block


def first(experiment: experiment_lib.Experiment, count: int) -> Any:
  """Returns int32 [B, L]: the first `count` long documents, cut to a row.

  They are held-out ones if the run has any, and come from all sources in turn.
  If there are fewer, the last rows hold documents one after another, which are
  repeated as often as needed.

  Raises:
    OSError, ValueError: the text is missing.
  """
  import numpy as np

  length = experiment.data.length
  of_sources, tokens = [], []
  for one in read(experiment):
    corpus = one.training if one.unseen is None else one.unseen
    long = corpus.begins[:-1][np.diff(corpus.begins) >= length]
    of_sources.append(
      [corpus.tokens[begin : begin + length] for begin in long[:count]]
    )
    tokens.append(corpus.tokens[: count * length])
  in_turn = itertools.chain(*itertools.zip_longest(*of_sources))
  texts = [one for one in in_turn if one is not None][:count]
  rest = np.resize(np.concatenate(tokens), (count - len(texts), length))
  return np.stack([*texts, *rest]).astype(np.int32)


def _sources(
  data: data_config.DataConfig,
) -> tuple[data_config.SourceConfig, ...]:
  """Returns `data.sources`, or `data.path` as one source without a name."""
  only = data_config.SourceConfig('', data.path)
  return mix_file.resolve(data).sources or (only,)


def _alone(
  data: data_config.DataConfig, source: data_config.SourceConfig
) -> data_config.DataConfig:
  return dataclasses.replace(data, path=source.path, sources=(), mix='')


@contextlib.contextmanager
def _name_source(source: data_config.SourceConfig) -> Iterator[None]:
  """Adds the source's name to an error about its text."""
  try:
    yield
  except (OSError, ValueError) as error:
    if not source.name:
      raise
    kind = ValueError if isinstance(error, ValueError) else type(error)
    raise kind(f'data.sources, {source.name!r}: {error}') from error
