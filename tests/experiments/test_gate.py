"""experiments.gate and recall from their flags to a decision."""

import dataclasses

import jax
import pytest

from kaiju_jax.reporting import decision
from kaiju_jax.runs import exchange
from kaiju_jax.storage import files
from tests import toys as run_toys
from tests.evaluation.gate import small_models
from tests.experiments import forked
from tests.interchange import family_folders
from tests.interchange import toys
from tests.interchange.templates import shapes

COMMAND = ['experiments.gate', '--nopersona']


@pytest.fixture(scope='module')
def models(tmp_path_factory):
  """A run, its export, and a folder of another family with a template."""
  tmp_path = tmp_path_factory.mktemp('models')
  model = dataclasses.replace(toys.KAIJU, max_length=512)
  run_toys.write_run(tmp_path / 'run', model)
  exchange.export(tmp_path / 'run', tmp_path / 'export', 'kaiju')
  fields = family_folders.fields_of('qwen2') | {'vocab_size': 420}
  fields['max_position_embeddings'] = 512
  folder = family_folders.write(tmp_path / 'folder', fields)
  (folder / 'tokenizer.json').write_text(shapes.byte_tokenizer())
  (folder / 'chat_template.jinja').write_text(shapes.TEMPLATES['chatml'])
  talk = dataclasses.asdict(small_models.conversation())
  files.write_json_lines(tmp_path / 'golden.jsonl', [talk])
  return tmp_path


@pytest.mark.slow
def test_models_are_read_and_none_passes_without_a_persona(models):
  words = [*COMMAND, f'--golden={models / "golden.jsonl"}']
  run, export, folder = (models / x for x in ('run', 'export', 'folder'))
  same, arms, two, others = forked.run(
    [
      [*words, f'--baseline={run}', f'--candidate={export}',
       f'--out={models / "same"}'],
      [*words, f'--baseline={folder}', f'--candidate={folder}',
       f'--out={models / "arms"}', f'--calibration_diff={run},{export}'],
      [*words, f'--baseline={folder}', f'--candidate={folder}', '--tensor=2',
       f'--out={models / "two"}'],
      [*words, f'--baseline={run}', f'--candidate={folder}'],
    ]
  )  # fmt: skip
  assert same.returncode == 4, same
  assert 'Personas were not played' in same.stderr
  found = decision.load(models / 'same' / decision.FILE)
  for one in found.figures['tokens'].values():
    assert one['kl'] == one['loss'] == one['margin'] == 0
    assert one['agreement'] == 1
  needle, personas = found.reasons
  assert 'No needle was asked' in needle
  assert personas == 'Personas were not played (--nopersona).'
  assert 'bits per byte' in (models / 'same' / 'report.md').read_text().lower()
  assert arms.returncode in (3, 4), arms
  found = decision.load(models / 'arms' / decision.FILE)
  assert all(0 < one['kl'] < 0.5 for one in found.figures['tokens'].values())
  # Two devices read what one does.
  assert two.returncode == arms.returncode, two
  figures = decision.load(models / 'two' / decision.FILE).figures
  for part in 'tokens', 'bits_per_byte', 'channels':
    got, want = (jax.tree.leaves(x[part]) for x in (figures, found.figures))
    assert got == pytest.approx(want, rel=1e-3)
  # An export has its run's codes.
  assert found.figures['calibration_diff']
  for one in found.figures['calibration_diff']:
    assert one['median'] == one['largest'] == 1
  assert '# Calibration of' in arms.stdout and '0 of' in arms.stdout
  assert others.returncode == 1
  assert 'must have the tokenizer and chat template' in others.stderr


@pytest.mark.slow
@pytest.mark.parametrize('name', ['run', 'folder'])
def test_a_model_is_asked_in_words(models, name):
  """One that chats, and one that continues a text."""
  out = models / f'{name}.asked'
  words = f'experiments.recall --model={models / name} --out={out}'
  words += ' --kinds=hops_0 --lengths=10 --questions=2 --least=0.5'
  (done,) = forked.run([words.split()])
  assert done.returncode == 3, done
  assert '| hops_0 | 10 |' in done.stdout
  found = decision.load(out / decision.FILE)
  assert found.figures['records'][0]['count'] == 2
