"""A served folder's int8 error is that of its codes, and of nothing else."""

import dataclasses

import numpy as np
import pytest

from kaiju_jax.evaluation.gate import reader
from kaiju_jax.interchange import hugging_face
from kaiju_jax.interchange import stream
from kaiju_jax.quantization import config as quantization_config
from kaiju_jax.runs import load
from kaiju_jax.runs import play
from tests.interchange import family_folders
from tests.interchange import family_oracle
from tests.interchange import toys

TOKENS = np.random.default_rng(0).integers(0, 256, 48).astype(np.int32)


def rms(x):
  return float(np.sqrt(np.mean(x**2)))


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  config = dataclasses.replace(toys.PLAIN, d_ff=96)
  path = tmp_path_factory.mktemp('arcee') / 'folder'
  hugging_face.write(path, toys.params_of(config), config)
  return path


@pytest.mark.parametrize(('arm', 'kv'), [('all', 'int8'), ('weights', 'none')])
def test_an_oracle_that_codes_each_operand_has_the_same_logits(folder, arm, kv):
  parts = {'weight', 'table'}
  parts |= {'input', 'hidden'} if arm == 'all' else set()
  parts |= {'key', 'value'} if kv == 'int8' else set()

  def code(x, part):
    return family_oracle.coded(x, part) if part in parts else x

  arcee = family_folders.load(folder)
  exact = family_oracle.logits(*arcee, TOKENS)
  wanted = family_oracle.logits(*arcee, TOKENS, code)
  arms = quantization_config.for_serving(arm, kv)
  # Not rotated, as the oracle is not.
  params, config = hugging_face.read(
    folder, (), stream.form_for_decoding(), arms
  )
  loaded = load.from_anywhere(folder)._replace(params=params, config=config)
  decoder = play.decoder(loaded, None, rows=1, length=len(TOKENS))
  read = reader.Reader(decoder, len(TOKENS)).read(TOKENS)
  found = np.concatenate(list(read.logits))[:, : exact.shape[1]]
  error = rms(found - exact)
  assert error > 1e-3 * rms(exact)
  # In float32 a code may fall to the other side of a half, at a few tokens.
  apart_L = np.sqrt(np.mean((found - wanted) ** 2, axis=-1))
  assert np.median(apart_L) < 0.02 * error
  assert rms(apart_L) < 0.2 * error
