"""Who may ask a server that is started, and what its start refuses."""

import types

import numpy as np
import pytest

from kaiju_jax.app import built_in
from kaiju_jax.app import serve
from kaiju_jax.app import server_folder
from kaiju_jax.app import serving_engine
from kaiju_jax.app import settings as settings_lib
from kaiju_jax.characters.cards import card_fields
from kaiju_jax.data import chat
from kaiju_jax.data import tokenizer as tokenizer_lib
from kaiju_jax.decoding.device import decoder as decoder_lib
from kaiju_jax.decoding.engine import engine as engine_lib
from kaiju_jax.decoding.engine import pacing
from kaiju_jax.decoding.pages import prefix_tree
from kaiju_jax.interchange import tokens
from kaiju_jax.serving.http import auth
from kaiju_jax.serving.http import loopback
from kaiju_jax.serving.replies import worker as worker_lib
from kaiju_jax.serving.safety import moderation
from kaiju_jax.serving.safety import thresholds
from kaiju_jax.serving.stores import sharing
from kaiju_jax.serving.stores import sqlite_store
from tests.decoding import toys
from tests.interchange import toys as model_toys
from tests.serving import planted

URL = 'http://127.0.0.1:8000'


def opened(folder, **settings):
  """Returns who may ask; the store is closed."""
  found = server_folder.open_parts(
    settings_lib.Settings(folder=str(folder), **settings), None
  )
  found.store.close()
  return found


def greeted(access):
  context = types.SimpleNamespace(
    access=access,
    model=types.SimpleNamespace(
      name='toy', parameters=1, length=2, license='apache-2.0'
    ),
    moderator=moderation.Moderator(),
  )
  return '\n'.join(serve.greeting(context, URL))


def test_by_default_it_answers_whoever_has_the_key(tmp_path):
  access = opened(tmp_path / 'server').access
  assert access.key and not access.is_open
  said = greeted(access)
  assert f'{URL}/#key={access.key}\n' in said
  assert said.startswith('toy: 1 parameters, 2 tokens, license: apache-2.0.\n')
  assert 'small' in said
  assert f'base_url={URL}/v1, api_key={access.key}, model=toy' in said
  # The same after a restart, because browsers and programs have it.
  assert opened(tmp_path / 'server').access.key == access.key
  assert opened(tmp_path / 'other').access.key != access.key


def test_it_is_open_where_that_is_said(tmp_path):
  access = opened(tmp_path, open=True).access
  assert access.is_open and access.key is None
  said = greeted(access)
  assert f'{URL}/\n' in said and 'api_key=none' in said
  assert 'Open: ' in said and 'proxies' in said
  assert not (tmp_path / loopback.KEY_FILE).exists()


def test_with_require_token_no_key_counts(tmp_path):
  with pytest.raises(ValueError, match=r'require_token=True.*--add_token'):
    opened(tmp_path, require_token=True)
  auth.Tokens(tmp_path / auth.FILE).add('ann')
  access = opened(tmp_path, require_token=True).access
  assert access.key is None and not access.is_open
  said = greeted(access)
  assert f'{URL}/\n' in said and 'api_key=TOKEN' in said


@pytest.mark.parametrize(
  'settings',
  [{'open': True, 'require_token': True}, {'open': True, 'host': '0.0.0.0'}],
)
def test_what_contradicts_itself_is_refused(tmp_path, settings):
  with pytest.raises(ValueError, match='open=True: must be without'):
    opened(tmp_path, **settings)


def test_an_address_that_others_reach_has_no_key(tmp_path):
  with pytest.raises(ValueError, match='--add_token'):
    opened(tmp_path, host='0.0.0.0')
  assert not (tmp_path / loopback.KEY_FILE).exists()


def test_a_gate_without_a_head_is_refused_at_the_start(tmp_path):
  gate = planted.gate()
  gate.save(tmp_path / moderation.GATE)
  policy = planted.policy(planted.stage(gate.version), None)
  thresholds.write(tmp_path / moderation.THRESHOLDS, policy)
  with pytest.raises(ValueError, match='closed: no token-level head') as caught:
    opened(tmp_path / 'server', safety=str(tmp_path))
  assert '\n' not in str(caught.value)


def test_a_store_keeps_the_digest_that_its_characters_have(tmp_path):
  """Files are hashed; what a tokenizer does names the texts of old stores."""
  tokens.write(tmp_path, '', model_toys.PLAIN)
  tokenizer = tokenizer_lib.load(str(tmp_path / tokens.FILE))
  written = chat.format_of(tokenizer)
  of_file = tokenizer_lib.digest(tokenizer)
  assert of_file != tokenizer_lib.hash_use(tokenizer)
  for digest in of_file, tokenizer_lib.hash_use(tokenizer):
    store = sqlite_store.SqliteStore(tmp_path / f'{digest}.sqlite')
    # A new store takes the file's; one with characters of the other keeps it.
    assert built_in.digest(store, tokenizer, written) == of_file
    built_in.publish(store, written, digest, 4096)
    assert built_in.digest(store, tokenizer, written) == digest
    store.close()
  other = sqlite_store.SqliteStore(tmp_path / 'other.sqlite')
  built_in.publish(other, written, 'of another tokenizer', 4096)
  assert built_in.digest(other, tokenizer, written) == of_file
  other.close()


def word(folder, **settings):
  """Returns what the store has of the local user's word, after a start."""
  found = server_folder.open_parts(
    settings_lib.Settings(folder=str(folder), **settings), None
  )
  try:
    return found.store.agreement(auth.LOCAL)
  finally:
    found.store.close()


def test_the_person_before_the_machine_agrees_by_a_flag(tmp_path, capsys):
  assert word(tmp_path) is None
  assert word(tmp_path, age='adult') is None
  assert word(tmp_path, age='adult', feedback=True)
  assert word(tmp_path, age='adult')
  assert capsys.readouterr().out == ''
  # Who starts it without saying an age counts as under 18.
  assert word(tmp_path) is False
  assert 'withdrawn, because age=unknown' in capsys.readouterr().out
  # What is withdrawn is given again on the page alone, not by a script's flag.
  assert word(tmp_path, age='adult', feedback=True) is False
  assert 'withdrawn on the page' in capsys.readouterr().out


@pytest.mark.parametrize(
  'settings',
  [
    {},
    {'age': 'unknown'},
    {'age': 'minor'},
    {'age': 'adult', 'require_token': True},
  ],
)
def test_the_flag_speaks_for_an_adult_before_the_machine(tmp_path, settings):
  auth.Tokens(tmp_path / auth.FILE).add('ann')
  with pytest.raises(ValueError, match=r'feedback=True.*--age=adult'):
    word(tmp_path, feedback=True, **settings)
  assert word(tmp_path, age='adult') is None


def test_the_engine_has_the_settings_of_the_server(monkeypatch):
  made, size = {}, types.SimpleNamespace(length=9, pages={})
  for module, name, value in (
    (serving_engine.cache_plan, 'plan', lambda *_: size),
    (serving_engine.cache_plan, 'describe', lambda _: ''),
    (serving_engine.play, 'decoder', lambda *_, **__: None),
    (
      serving_engine.engine_lib,
      'Engine',
      lambda *_, **given: made.update(given),
    ),
  ):
    monkeypatch.setattr(module, name, value)
  pace = pacing.Pace(8, 30)
  settings = settings_lib.Settings(cache=1, chunk=7, top_logprobs=3, pace=pace)
  loaded = types.SimpleNamespace(config=toys.config())
  serving_engine.make(loaded, None, settings, None, lambda _: None)
  assert made['pace'] == pace
  assert (made['chunk'], made['alternatives']) == (7, 3)
  assert settings_lib.Settings().pace is None


def test_points_are_saved_and_taken_back_as_the_settings_say(tmp_path):
  """By the key in the folder; of the model and tokenizer that are served."""
  config = toys.config(layout='G0')
  decoder = decoder_lib.Decoder(
    toys.drawn(config), config, rows=1, length=64, page=4
  )
  worker = worker_lib.Worker(engine_lib.Engine(decoder, chunk=8))
  store = sqlite_store.SqliteStore(tmp_path / 'characters.sqlite')

  def made(weights='w', tokenizer='t', **settings):
    settings = settings_lib.Settings(folder=str(tmp_path), **settings)
    return serving_engine.open_points(
      worker, settings, store, tokenizer, weights
    )

  assert made(points='none') is None and made('') is None
  salts = [
    sharing.find_tree(store, 'local', version).salt.encode()
    for version in (
      store.publish('local', fields, tokens, 't', is_public=is_public)
      for fields, tokens, is_public in (
        (card_fields.Fields(name='A'), [1, 2], True),
        (card_fields.Fields(name='B'), [3, 4], False),
      )
    )
  ]
  account, tree = decoder.account, decoder.account.tree
  texts = [
    prefix_tree.Text(np.arange(9, dtype=np.int32), 9, cache_salt=salt)
    for salt in salts
  ]
  saved = made(points='all')
  for text in texts:
    row = account.open(9, text=text).row
    tree.record(text, account.pages_of(row))
    account.close(row)
  worker.start()
  assert saved.save() == 2
  worker.stop()
  found = []
  for settings in {}, {'points': 'all'}, {'points': 'all', 'weights': 'other'}:
    tree.clear()
    found.append(made(**settings).restore()[:2])
  assert found == [(1, 1), (2, 0), (0, 2)]
  tree.clear()
  (tmp_path / server_folder.KEY).write_bytes(
    b'another key of 32 bytes, as many'
  )
  assert made(points='all').restore()[:2] == (0, 2)
  store.close()
