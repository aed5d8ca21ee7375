"""Makes a candidate of a server's checkpoint of limits, and runs the drill."""

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
import datetime
import os
import pathlib
import time
from typing import NamedTuple

import numpy as np

from kaiju_jax.app import drift_drill
from kaiju_jax.app import drift_pages
from kaiju_jax.app import server_folder
from kaiju_jax.data import tokenizer as tokenizer_lib
from kaiju_jax.decoding.device import decoder as decoder_lib
from kaiju_jax.decoding.device import page_copies
from kaiju_jax.decoding.pages import prefix_tree
from kaiju_jax.interchange import own
from kaiju_jax.model import layers as layers_lib
from kaiju_jax.runs import defaults
from kaiju_jax.runs import load
from kaiju_jax.runs import play
from kaiju_jax.serving.drift import calibration
from kaiju_jax.serving.drift import monitor
from kaiju_jax.serving.drift import sampler
from kaiju_jax.serving.drift import watch

Table = tuple[str, tuple, list[list[str]]]
# Conversations of the drill: whose pages fit the limits, are drawn from at home
# and by the foreign character, and are held out; tokens of each.
_FIT, _HOME, _FOREIGN, _HELD, _LENGTH = 30, 150, 20, 12, 1_024


class Candidate(NamedTuple):
  """A model with other limits.

  Attributes:
    origin: the checkpoint, in words.
    moved: the ratios of new and old limits: least, median, largest.
    digest: of the weights, by which its points have a root of their own.
  """

  origin: str
  moved: tuple[float, float, float]
  digest: str


def make_candidate(
  model: str, folder: str, out: str, checkpoint: str = ''
) -> Candidate:
  """Exports a model with the limits that a server's checkpoint proposes.

  Args:
    model: the model that the server serves.
    folder: the server's.
    out: the new folder of the export.
    checkpoint: a file of `folder`'s; '' for the newest.

  Raises:
    FileNotFoundError: the folder is no server's, or has no checkpoint.
    OSError, ValueError: the checkpoint is damaged or of another model, or the
      model cannot be read or written.
  """
  place = pathlib.Path(folder)
  key = server_folder.read_key(place)
  checkpoints = watch.Folder(place / server_folder.DRIFT, key)
  found = [pathlib.Path(checkpoint)] if checkpoint else checkpoints.list()
  if not found:
    raise FileNotFoundError(
      f'{checkpoints.path}: has no checkpoint; a server with --drift=watch'
      ' writes one every four hours.'
    )
  path = found[0]
  try:
    tensors, fields = monitor.parse(checkpoints.read(path))
  except ValueError as error:
    raise ValueError(f'{path}: {error}.') from None
  loaded = load.from_anywhere(model)
  digest = load.digest(loaded)
  if fields['about'].get('weights') != digest:
    raise ValueError(
      f'{path}: proposes limits of another model: weights'
      f' {fields["about"].get("weights")!r}; {model} has {digest}.'
    )
  params = calibration.write_limits(
    loaded.params, loaded.config, tensors['proposed']
  )
  own.write(out, params, loaded.config, loaded.tokenizer, loaded.replica)
  seconds = fields['about']['seconds']
  when = datetime.datetime.fromtimestamp(seconds, datetime.UTC)
  ratio = tensors['proposed'] / tensors['limits']
  return Candidate(
    f'{path.name}, {when:%Y-%m-%d %H:%M} UTC',
    (float(ratio.min()), float(np.median(ratio)), float(ratio.max())),
    load.digest(load.from_anywhere(out)),
  )


class Drill:
  """A model, its limits, and the pages that a drill draws from.

  Args:
    path: the model.
    noted: takes what has been done.

  Raises:
    OSError, ValueError: it cannot be read, has no chat format, or keys and
      values of floats or of several heads.
  """

  def __init__(
    self,
    path: str | os.PathLike,
    noted: Callable[[str], None] = lambda what: None,
  ):
    self._loaded = load.from_anywhere(path)
    tokenizer = tokenizer_lib.load(
      self._loaded.tokenizer, self._loaded.config.vocab_size
    )
    self._format = defaults.read(self._loaded, tokenizer).format
    if self._format is None:
      raise ValueError(f'{path}: has no chat format.')
    self._length = min(_LENGTH, self._loaded.config.max_length)
    # Refused before it reads anything.
    config = self._loaded.config
    owners = len(layers_lib.owners(config.layers()))
    drift_pages.limit(self._loaded, np.ones((owners, 2, config.head_dim)))
    self._reader = drift_pages.open_reader(self._loaded, self._length)
    self.limits = drift_pages.fit(self._pages(2 * _HOME, _FIT))
    noted(f'limits fitted to {_FIT} conversations')
    self._home = self._read(0, _HOME)
    self._foreign = self._pages(_HOME, _FOREIGN, True)
    self._held = (
      self._pages(3 * _HOME, _HELD),
      self._pages(4 * _HOME, _HELD, True),
    )
    noted(f'{_HOME + _FOREIGN + 2 * _HELD} conversations read')

  def _read(
    self, first: int, count: int, foreign: bool = False
  ) -> list[list[drift_pages.Page]]:
    found = []
    for number in range(first, first + count):
      tokens_L, begin = self._converse(number, foreign)
      name = b'foreign' if foreign else b'%d' % number
      found.append(drift_pages.cut(self._reader, tokens_L, begin, name))
    return found

  def _pages(self, first: int, count: int, foreign: bool = False):
    return [x for pages in self._read(first, count, foreign) for x in pages]

  def _converse(self, number: int, foreign: bool = False):
    return drift_pages.converse(self._format, number, self._length, foreign)

  def show_quiet(self, windows: int, seeds: Sequence[int]) -> Table:
    """Returns the table of windows without a spike."""
    rows = []
    for seed in seeds:
      traffic = drift_drill.Traffic(self._home, seed=seed)
      found = drift_drill.play_quiet(traffic, self.limits, windows)
      counts = {
        'two of three windows (the guard)': found.frozen,
        'one window': found.stood_out,
        **found.contrasts,
      }
      rows += [
        [str(seed), name, f'{count}', f'{count / found.windows:.2%}']
        for name, count in counts.items()
      ]
    columns = 'seed', 'freezes at', 'false freezes', 'of windows'
    return f'{windows:,} quiet windows', columns, rows

  def show_speed(
    self, shares: Sequence[float], seeds: Sequence[int], times: float
  ) -> Table:
    """Returns the table of windows until a spike is frozen."""
    rows = []
    for share in shares:
      counts = []
      for seed in seeds:
        traffic = drift_drill.Traffic(self._home, self._foreign, share, seed)
        counts.append(
          drift_drill.play_spike(
            traffic, self.limits, 'both', times, spike=20
          ).frozen_after
        )
      during = times * share / (1 - share + times * share)
      said = ', '.join('not' if n is None else str(n) for n in counts)
      rows.append([f'{share:.2%}', f'{during:.1%}', said])
    columns = 'share before', 'in the spike', 'frozen after windows, per seed'
    return f'A spike of {times:g} times, in another script', columns, rows

  def show_arms(self, share: float, times: float, seed: int = 0) -> Table:
    """Returns the table of what a day of a spike does to the limits."""
    static = drift_pages.limit(self._loaded, self.limits)
    first = drift_pages.open_reader(static, self._length)
    texts = [
      [self._converse(begin * _HOME + n, is_foreign)[0] for n in range(_HELD)]
      for begin, is_foreign in ((3, False), (4, True))
    ]
    rows = []
    for arm in drift_drill.ARMS:
      traffic = drift_drill.Traffic(self._home, self._foreign, share, seed)
      found = drift_drill.play_spike(
        traffic, self.limits, arm, times, pages=self._held
      )
      ratio = found.limits / self.limits
      row = [
        arm,
        '–' if found.frozen_after is None else str(found.frozen_after),
        str(found.checkpoints),
        f'{ratio.min():.2f}–{ratio.max():.2f}',
      ]
      changed = drift_pages.limit(self._loaded, found.limits)
      second = drift_pages.open_reader(changed, self._length)
      for rail, of in zip(found.rail, texts):
        one = drift_drill.compare(first, second, of)
        row += [f'{rail:.2%}', f'{one.kl:.1e}', f'{one.loss:+.1e}']
      rows.append(row)
    columns = (
      'arm',
      'frozen after windows',
      'checkpoints served',
      'limits ×',
      'home: at the rail',
      'KL to static, nats',
      'loss, nats',
      'foreign: at the rail',
      'KL to static',
      'loss',
    )
    during = times * share / (1 - share + times * share)
    title = f'A day of a spike from {share:.1%} to {during:.0%} of the traffic'
    return title, columns, rows

  def show_cost(self, looks: int = 20) -> Table:
    """Returns the table of the processor's time that watching takes."""
    static = drift_pages.limit(self._loaded, self.limits)
    pages = 4 * looks * watch.BATCH
    decoder = play.decoder(
      static,
      None,
      rows=1,
      length=2 * drift_pages.PAGE,
      page_counts={'local': pages, 'global': pages},
    )
    copies = page_copies.PageCopies(decoder, watch.BATCH)
    copies.warm()
    made = sampler.Sampler(decoder, copies)
    rng = np.random.default_rng(0)
    spent = np.zeros((looks + 1, 3))
    samples = []
    for look in range(looks + 1):
      for _ in range(watch.BATCH):
        _record(decoder, rng)
      times = [time.process_time()]
      taken = made.take(watch.BATCH)
      times.append(time.process_time())
      samples += taken.read()
      times.append(time.process_time())
      if len(samples) >= monitor.PAGES:
        monitor.Monitor(made.limits).close(samples[: monitor.PAGES], 0.0)
      times.append(time.process_time())
      spent[look] = np.diff(times)
    # The first look compiles.
    take, read, _ = spent[1:].mean(0)
    parts = (
      (f'take {watch.BATCH} pages, between rounds', take, watch.EVERY),
      (f'read {watch.BATCH} pages, aside', read, watch.EVERY),
      ('count a window, aside', spent[-1, 2], monitor.SECONDS),
    )
    rows = [
      [name, f'{1e3 * seconds:.2f}', f'{seconds / every:.3%}']
      for name, seconds, every in parts
    ]
    points = len(decoder.account.tree)
    return (
      f'Watching, with {points} points',
      ('part', 'ms of processor', 'of the time between two'),
      rows,
    )


def _record(decoder: decoder_lib.Decoder, rng: np.random.Generator) -> None:
  """Runs a text of two pages, and makes a point of it."""
  size = 2 * drift_pages.PAGE
  tokens_L = rng.integers(4, decoder.config.vocab_size, size, dtype=np.int32)
  row = decoder.open(size)
  decoder.extend_text([row], tokens_L[None])
  decoder.record(row, prefix_tree.Text(tokens_L))
  decoder.close(row)


def run_drill(
  path: str,
  windows: int,
  shares: Sequence[float],
  seeds: Sequence[int],
  times: float = 50.0,
  noted: Callable[[str], None] = lambda what: None,
) -> Iterator[Table]:
  """Yields the drill's tables.

  Args:
    path: a chat model of one head of keys and values, which are int8.
    windows: quiet windows per seed.
    shares: of the foreign character's traffic before the spike; the last one's
      is looked at in all arms.
    seeds: of the traffic.
    times: by how much its traffic rises.
    noted: takes what has been done.

  Raises:
    OSError, ValueError: see `Drill`.
  """
  drill = Drill(path, noted)
  yield drill.show_cost()
  yield drill.show_speed(shares, seeds, times)
  yield drill.show_arms(shares[-1], times)
  yield drill.show_quiet(windows, seeds)
