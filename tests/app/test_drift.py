"""From a server that watches to a candidate with other limits."""

import dataclasses

import numpy as np
import pytest

from kaiju_jax.app import drift
from kaiju_jax.app import serve
from kaiju_jax.app import server_folder
from kaiju_jax.app import serving_engine
from kaiju_jax.app import settings as settings_lib
from kaiju_jax.decoding.device import decoder as decoder_lib
from kaiju_jax.decoding.device import page_copies
from kaiju_jax.decoding.engine import engine as engine_lib
from kaiju_jax.decoding.engine import saving
from kaiju_jax.interchange import own
from kaiju_jax.runs import load
from kaiju_jax.serving.drift import calibration
from kaiju_jax.serving.drift import monitor as monitor_lib
from kaiju_jax.serving.drift import watch
from kaiju_jax.serving.http import metrics
from kaiju_jax.serving.replies import worker as worker_lib
from tests.decoding import toys

CONFIG = toys.config(
  quantization=toys.int8(kv_scale='channel'),
  layout='G0',
  num_layers=1,
  vocab_size=260,
)
SHAPE = 1, 2, CONFIG.head_dim
LIMITS = np.full(SHAPE, 2.0, np.float32)


@pytest.fixture
def model(tmp_path):
  """Returns the path of an export with limits."""
  params = calibration.write_limits(toys.drawn(CONFIG), CONFIG, LIMITS)
  own.write(tmp_path / 'model', params, CONFIG, '')
  return str(tmp_path / 'model')


def write_checkpoint(tmp_path, weights, now=1_000.0, level=63):
  """Writes a checkpoint of codes that use half of the limits."""
  folder = server_folder.open_drift(tmp_path / 'server')
  made = monitor_lib.Monitor(LIMITS)
  made.recent.codes[..., level] = 1e6
  made.recent.tokens[0] = 1.0
  about = {'weights': weights, 'seconds': int(now)}
  return folder.write(made.to_bytes(about), now)


@pytest.fixture
def server(tmp_path, model):
  """Returns the folder of a server with one checkpoint."""
  (tmp_path / 'server').mkdir()
  write_checkpoint(tmp_path, load.digest(load.from_anywhere(model)))
  return str(tmp_path / 'server')


def test_a_candidate_has_the_limits_of_the_checkpoint_alone(
  tmp_path, model, server
):
  out = str(tmp_path / 'candidate')
  found = drift.make_candidate(model, server, out)
  ours, theirs = (load.from_anywhere(path) for path in (model, out))
  limits = calibration.read_limits(theirs.params, theirs.config)
  np.testing.assert_allclose(limits, LIMITS * calibration.SHRINK)
  assert found.moved == pytest.approx((calibration.SHRINK,) * 3)
  back = calibration.write_limits(theirs.params, theirs.config, LIMITS)
  same = load.digest(ours._replace(params=back))
  assert same == load.digest(ours) != found.digest


def test_a_candidate_has_another_root(tmp_path, model, server):
  """So that no point of the former model serves it."""
  found = drift.make_candidate(model, server, str(tmp_path / 'candidate'))
  roots = []
  for path, weights in ((model, None), (tmp_path / 'candidate', found.digest)):
    loaded = load.from_anywhere(path)
    decoder = decoder_lib.Decoder(
      loaded.params, loaded.config, rows=1, length=64, page=4
    )
    engine = engine_lib.Engine(decoder, chunk=8)
    weights = weights or load.digest(loaded)
    copies = page_copies.PageCopies(decoder)
    roots.append(saving.digest_root(engine, copies, weights, 't'))
  assert roots[0] != roots[1]


def test_the_newest_checkpoint_counts_or_the_one_that_is_named(
  tmp_path, model, server
):
  weights = load.digest(load.from_anywhere(model))
  first = write_checkpoint(tmp_path, weights, 1_000.0)
  write_checkpoint(tmp_path, weights, 20_000.0, level=120)
  newest = drift.make_candidate(model, server, str(tmp_path / 'a'))
  assert newest.moved[0] == pytest.approx(120.5 / 127)
  assert '1970-01-01 05:33' in newest.origin
  older = drift.make_candidate(model, server, str(tmp_path / 'b'), str(first))
  assert older.moved[0] == pytest.approx(calibration.SHRINK)


def test_what_is_no_checkpoint_of_the_model_is_refused(tmp_path, model, server):
  out = tmp_path / 'candidate'

  def refuse(error, match, **options):
    with pytest.raises(error, match=match):
      drift.make_candidate(
        **{'model': model, 'folder': server, 'out': str(out)} | options
      )
    assert not out.exists()

  refuse(FileNotFoundError, 'no key', folder=str(tmp_path / 'nowhere'))
  write_checkpoint(tmp_path, 'other', 2_000.0)
  refuse(ValueError, 'limits of another model')
  damaged = write_checkpoint(tmp_path, 'other', 3_000.0)
  damaged.write_bytes(damaged.read_bytes()[:-1])
  refuse(ValueError, r'calibration-3000.drift: it is damaged')
  for path in (tmp_path / 'server' / 'drift').iterdir():
    path.unlink()
  refuse(FileNotFoundError, 'has no checkpoint; a server with --drift=watch')


def test_a_server_watches_as_the_settings_say(tmp_path, model):
  loaded = load.from_anywhere(model)
  decoder = decoder_lib.Decoder(
    loaded.params, loaded.config, rows=1, length=64, page=4
  )
  worker = worker_lib.Worker(engine_lib.Engine(decoder, chunk=8))
  counted = metrics.Metrics(lambda: None)

  def made(**settings):
    return serving_engine.watch_drift(
      worker,
      settings_lib.Settings(folder=str(tmp_path), **settings),
      'w',
      counted.show_drift,
    )

  assert made() is None
  found = made(drift='watch')
  np.testing.assert_array_equal(found.monitor.limits, LIMITS)
  text = counted.text().decode()
  assert 'kaiju_drift_frozen 0.0' in text and 'kaiju_drift_kl{' not in text
  counted.show_drift(0.5, 0.25, True)
  text = counted.text().decode()
  for line in (
    'kaiju_drift_frozen 1.0',
    'kaiju_drift_kl{what="tokens"} 0.5',
    'kaiju_drift_kl{what="codes"} 0.25',
  ):
    assert line in text
  # A checkpoint of a day ago: the next look writes another.
  found._written -= watch.CHECKPOINT
  worker.start()
  found.sample()
  worker.stop()
  assert len(list((tmp_path / 'drift').iterdir())) == 1


def test_a_scale_per_token_is_not_watched(tmp_path):
  config = dataclasses.replace(CONFIG, quantization=toys.int8(kv_scale='token'))
  loaded = load.Loaded(toys.drawn(config), config, None, '', 'toy')
  with pytest.raises(ValueError, match="kv_scale='token': must be 'int8' and"):
    serve.assemble(
      loaded, settings_lib.Settings(folder=str(tmp_path), drift='watch')
    )
