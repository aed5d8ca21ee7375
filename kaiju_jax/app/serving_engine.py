"""Makes a server's engine, and what saves its points and watches its drift."""

from collections.abc import Callable
import pathlib
from typing import Any

from kaiju_jax.app import server_folder
from kaiju_jax.app import settings as settings_lib
from kaiju_jax.costs import cache_plan
from kaiju_jax.decoding.device import judge
from kaiju_jax.decoding.device import page_copies
from kaiju_jax.decoding.engine import admission
from kaiju_jax.decoding.engine import engine as engine_lib
from kaiju_jax.decoding.engine import saving as saving_lib
from kaiju_jax.decoding.requests import request as request_lib
from kaiju_jax.runs import play
from kaiju_jax.serving.drift import watch
from kaiju_jax.serving.http import auth
from kaiju_jax.serving.replies import saved_points
from kaiju_jax.serving.replies import worker as worker_lib
from kaiju_jax.serving.stores import conversing

# A guided request's beams, and its judged expansions per step; our guess.
_WIDTH, _CANDIDATES = 4, 8


def make(
  loaded: Any, tokenizer: Any, settings: Any, head: Any, say: Any
) -> engine_lib.Engine:
  """Returns an engine that is not warm; arguments as `serve.assemble`'s."""
  guide = guide_of(head)
  extra = 0 if guide is None else guide.extra(settings.guided)
  plan = play.plan_cache(
    loaded.config,
    settings.cache,
    settings.rows + settings.kept,
    settings.length,
    extra,
    settings.tensor,
  )
  say(cache_plan.describe(plan))
  decoder = play.decoder(
    loaded,
    tokenizer,
    rows=settings.rows,
    length=plan.length,
    extra=extra,
    page_counts=plan.pages,
    mode='reference' if settings.reference else 'fast',
    tensor=settings.tensor,
  )
  return engine_lib.Engine(
    decoder,
    tokenizer,
    chunk=settings.chunk,
    ahead=settings.ahead,
    limits=admission.Limits(settings.queue, settings.wait, settings.lease),
    head=head,
    candidates=0 if guide is None else guide.queries,
    alternatives=settings.top_logprobs,
    pace=settings.pace,
  )


def guide_of(head: judge.Head | None) -> request_lib.Guide | None:
  """Returns the guide, which steers beams away from all of the head's names."""
  if head is None:
    return None
  weights = {name: -1.0 for name in head[1].names}
  return request_lib.Guide(_WIDTH, _CANDIDATES, weights)


def open_points(
  worker: worker_lib.Worker,
  settings: settings_lib.Settings,
  store: conversing.Store | None,
  tokenizer: str,
  weights: str,
  place: str = '',
) -> saved_points.SavedPoints | None:
  """Returns what saves a worker's points; None if nothing does.

  Args:
    worker: not running yet.
    settings: the server's.
    store: its characters and sessions; None where nothing is saved.
    tokenizer, weights: digests of both; without the latter nothing is saved.
    place: the replica's name, if the server has several.

  Raises:
    OSError: the folder cannot be made or read.
    ValueError: the key is damaged.
  """
  if settings.points == 'none' or not weights:
    return None
  engine, folder = worker.engine, pathlib.Path(settings.folder)
  copies = page_copies.PageCopies(engine.decoder)
  copies.warm()
  tokens = auth.Tokens(folder / auth.FILE)
  root = saving_lib.digest_root(engine, copies, weights, tokenizer)
  return saved_points.SavedPoints(
    worker,
    saving_lib.Saving(engine, root, copies),
    server_folder.open_points(folder, settings.points_size, place),
    most=settings.points_size,
    texts=saved_points.SavedTexts(store, tokens, settings.points == 'all'),
  )


def restore_points(
  points: saved_points.SavedPoints | None, say: Callable[[str], None]
) -> None:
  """Restores the points of the last start, and prints how many."""
  found = points.restore() if points is not None else None
  if found and (found.points or found.refused):
    say(
      f'Points of the last start: {found.points} taken back in'
      f' {found.seconds:.1f} s; files refused: {found.refused}.'
    )


def watch_drift(
  worker: worker_lib.Worker,
  settings: settings_lib.Settings,
  weights: str,
  show: Callable[[float | None, float | None, bool], None],
) -> watch.DriftWatch | None:
  """Returns what watches a worker's traffic; None if the settings say so.

  Args:
    worker: not running yet.
    settings: the server's.
    weights: digest of the model.
    show: as in `watch.DriftWatch`.

  Raises:
    OSError: the folder cannot be made or read.
    ValueError: keys and values have no limits; or the key is damaged.
  """
  if settings.drift != 'watch':
    return None
  copies = page_copies.PageCopies(worker.engine.decoder, watch.BATCH)
  copies.warm()
  folder = server_folder.open_drift(pathlib.Path(settings.folder))
  made = watch.Sampler(worker.engine.decoder, copies)
  return watch.DriftWatch(worker, made, folder, weights, show)
