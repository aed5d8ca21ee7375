"""Smaller files of older code: each is read as what it was."""

import datetime
import pathlib
import types

import pytest

from experiments.benchmarks.device import book
from kaiju_jax.data import config as data_config
from kaiju_jax.data import documents
from kaiju_jax.data import mix_file
from kaiju_jax.data import text
from kaiju_jax.data import tokenizer as tokenizer_lib
from kaiju_jax.evaluation.persona import golden
from kaiju_jax.evaluation.persona import judges
from kaiju_jax.experiments.studies import synthesize
from kaiju_jax.fleet import calibration
from kaiju_jax.gates import promotion
from kaiju_jax.model import token_head
from kaiju_jax.reporting import decision
from kaiju_jax.runs import grid
from kaiju_jax.runs import load
from kaiju_jax.serving.safety import gate
from kaiju_jax.serving.safety import moderation
from kaiju_jax.synthesis import form as form_lib
from kaiju_jax.synthesis import settings as settings_lib
from kaiju_jax.training import workdir


def test_gates_and_heads_score_as_certified(here, expected):
  trained = gate.load('gate/gate.safetensors')
  assert trained.version == expected['gate']['version']
  scores = trained.score('the zorbifex sang')
  assert list(scores) == pytest.approx(expected['gate']['score'], rel=1e-6)
  assert decision.load(here / 'gate/decision.json').status == 'not evaluated'
  params, config = token_head.load('safety/head.safetensors', d_model=32)
  version = moderation.head_version(params, config.names)
  assert version == expected['head']['version']
  # Thresholds are taken with the classifiers with which they were certified.
  moderator = moderation.Moderator(moderation.Head(version, config.names))
  moderator.use('safety')
  assert moderator.mode == 'moderated'


def test_a_promotion_stands(here, expected):
  found = decision.load(here / 'promotion' / decision.FILE)
  assert found.status == expected['promotion']['status'] == 'passed'
  promotion.check(
    'policy.json',
    'promotion',
    expected['digests']['exports/chat'],
    datetime.date(2026, 11, 28),
  )


def test_a_judge_is_not_asked_again(here, expected):
  judge = judges.JudgeEndpoint(
    types.SimpleNamespace(base_url='http://judge'),
    'model',
    cache=pathlib.Path('judged'),
  )
  (first, *_) = golden.load('golden.jsonl')
  assert judge.score(first, ['a'] * 8) == expected['judged']


def test_corpora_have_the_same_tokens_and_held_out_documents(here, expected):
  wanted = expected['corpora']
  tokenizer = tokenizer_lib.load('tokenizer.json', 300)
  assert tokenizer.encode('seven green bottles').tolist() == wanted['tokens']
  corpus = text.corpus(documents.read('texts'), tokenizer)
  assert text.digest(corpus) == wanted['digest']
  mixed = data_config.DataConfig(mix='mix.json', anneal_at=0.5)
  even, odd = mix_file.resolve(mixed).sources
  assert (even.name, even.weight, even.anneal) == ('even', 2.0, -1.0)
  assert (odd.path, odd.anneal) == ('texts/[13579].txt', 3.0)


def test_what_was_measured_is_not_measured_again(here, expected):
  found = book.Book('device', 'slice')
  assert found.records() == expected['book']
  assert found.has('one') and not found.has('two')
  engine = calibration.read('engine.json')
  assert engine.shapes == ((1, 16), (2, 16)) and engine.law[0] == 4e-3
  experiment = workdir.load_experiment('runs/grid')
  job = grid.Job('grid', experiment, here / 'runs/grid')
  assert grid.is_done(job, grid.RESULT)
  assert grid.losses({'grid': job})['grid'] > 0


def test_a_synthesis_goes_on(here):
  """Its journal has all passages, so that no model is asked."""
  path = here / 'qa.jsonl.journal'
  before = path.read_bytes()
  settings = settings_lib.Settings(
    variations=2, question_tokens=8, answer_tokens=8, grounded=False,
    consistent=False, gain=-float('inf'), overlap=1.0,
    form=form_lib.Form(question='a', answer='b', end='c'),
  )  # fmt: skip
  loaded = load.from_anywhere('exports/chat')
  with pytest.raises(ValueError, match='no variation was kept'):
    synthesize.synthesize(loaded, 'passages.jsonl', 'qa.jsonl', settings)
  assert path.read_bytes() == before
