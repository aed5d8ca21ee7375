"""A run's export, its import, and the two commands."""

import numpy as np
import pytest

from kaiju_jax.data import tokenizer as tokenizer_lib
from kaiju_jax.interchange import hugging_face
from kaiju_jax.interchange import losses
from kaiju_jax.interchange import own
from kaiju_jax.runs import defaults
from kaiju_jax.runs import exchange
from kaiju_jax.runs import load
from tests import toys as run_toys
from tests.interchange import family_folders
from tests.interchange import toys
from tests.runs import toys as folders


def test_a_plain_run_goes_out_and_comes_back(tmp_path):
  state = run_toys.write_run(tmp_path / 'run', toys.PLAIN)
  said = exchange.export(tmp_path / 'run', tmp_path / 'out')
  assert said.startswith('step 7 of ') and 'with the same logits' in said
  params, _ = hugging_face.read(tmp_path / 'out')
  run_toys.assert_equal(params, state.params)
  (tmp_path / 'file').touch()
  modes = {file.stat().st_mode for file in (tmp_path / 'out').iterdir()}
  assert modes == {(tmp_path / 'file').stat().st_mode}
  said = exchange.read(tmp_path / 'out', tmp_path / 'in')
  assert '3 layers of width 48, 35,856 parameters, a tokenizer' in said
  again, config = own.load(tmp_path / 'in/model.safetensors')
  assert config == toys.PLAIN
  run_toys.assert_equal(again, state.params)
  for name in 'tokenizer.json', 'tokenizer_config.json':
    ours, theirs = (tmp_path / folder / name for folder in ('in', 'out'))
    assert ours.read_bytes() == theirs.read_bytes()
  # A folder is new, and a tokenizer need not be there.
  with pytest.raises(FileExistsError, match='out: exists'):
    exchange.export(tmp_path / 'run', tmp_path / 'out')
  with pytest.raises(FileExistsError, match='in: exists'):
    exchange.read(tmp_path / 'out', tmp_path / 'in')
  said = exchange.read(tmp_path / 'out', tmp_path / 'bare', False)
  assert 'no tokenizer' in said
  assert [path.name for path in (tmp_path / 'bare').iterdir()] == [own.WEIGHTS]
  (tmp_path / 'out/tokenizer.json').unlink()
  assert 'no tokenizer' in exchange.read(tmp_path / 'out', tmp_path / 'again')


def test_what_arcee_cannot_say_goes_out_in_our_own_format(tmp_path):
  model = toys.changed(toys.KAIJU, {'wire_weights': 'ternary'}, layout='L0 L0')
  state = run_toys.write_run(tmp_path / 'run', model)
  said = exchange.export(tmp_path / 'run', tmp_path / 'own')
  assert '  windows: 2 of 2' in said and 'which loses nothing' in said
  params, config = own.load(tmp_path / 'own/model.safetensors')
  assert config == model
  held = state.replica.codes['blocks.layer_0.feedforward.w_in_DF']
  w = params['blocks']['layer_0']['feedforward']['w_in_DF']
  np.testing.assert_array_equal(w.codes, held)

  for format, accepted in ('arcee', []), ('auto', ['windows']):
    with pytest.raises(ValueError, match=r'cannot express(?s:.*)  shared_kv: '):
      exchange.export(tmp_path / 'run', tmp_path / 'out', format, accepted)
  assert not (tmp_path / 'out').exists()
  accepted = list(losses.list_losses(model))
  said = exchange.export(tmp_path / 'run', tmp_path / 'out', 'auto', accepted)
  assert 'as an Arcee folder, without these' in said
  assert (tmp_path / 'out/lost.json').exists()
  read, _ = hugging_face.read(tmp_path / 'out')
  # A ternary model's weights are the replica's.
  np.testing.assert_array_equal(
    read['blocks']['layer_0']['feedforward']['w_in_DF'][0],
    w.codes[0].astype(np.float32) * w.scales[0],
  )


def test_a_workdir_without_a_run_is_named(tmp_path):
  with pytest.raises(FileNotFoundError, match='A workdir is a folder that'):
    exchange.export(tmp_path, tmp_path / 'out')
  with pytest.raises(FileNotFoundError, match='A workdir is a folder that'):
    load.from_workdir(tmp_path)


def test_an_import_keeps_the_chat_template_and_the_settings(tmp_path):
  folder = folders.write_folder(tmp_path / 'in')
  exchange.read(folder, tmp_path / 'plain')
  exchange.read(folders.add_chat(folder, temperature=0.5), tmp_path / 'whole')
  tokenizer = tokenizer_lib.load(str(folder / 'tokenizer.json'))
  plain, whole, theirs = (
    defaults.read(load.from_anywhere(path), tokenizer)
    for path in (tmp_path / 'plain', tmp_path / 'whole', folder)
  )
  # Nobody trained the first one on our own format.
  assert plain.format is None and plain.generation.ends == (1, 2)
  assert whole.generation == theirs.generation
  assert whole.format.digest == theirs.format.digest
  assert whole.format.stop_tokens == theirs.format.stop_tokens


def test_a_family_is_imported_and_an_unknown_field_accepted(tmp_path):
  fields = family_folders.fields_of('qwen2')
  tensors = family_folders.tensors_of(fields)
  fields['made_by'] = 'us'
  folder = family_folders.write(tmp_path / 'in', fields, tensors)
  with pytest.raises(ValueError, match=r"config\.json: made_by='us': not a fi"):
    exchange.read(folder, tmp_path / 'out')
  said = exchange.read(folder, tmp_path / 'out', accepted=['made_by'])
  assert '2 layers of width 30' in said and 'no tokenizer' in said
  _, config = own.load(tmp_path / 'out/model.safetensors')
  assert (config.feedforward, config.qkv_bias) == ('swiglu', True)
