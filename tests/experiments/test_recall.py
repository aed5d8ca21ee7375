"""experiments.recall from its flags to a decision and its exit status."""

import dataclasses

import pytest

from kaiju_jax.reporting import decision
from tests import toys as run_toys
from tests.experiments import forked
from tests.interchange import family_folders
from tests.interchange import toys
from tests.interchange.templates import shapes


@pytest.mark.slow
def test_a_model_is_asked_in_words(tmp_path):
  model = dataclasses.replace(toys.KAIJU, max_length=512)
  run_toys.write_run(tmp_path / 'run', model)
  fields = family_folders.fields_of('qwen2') | {'vocab_size': 420}
  fields['max_position_embeddings'] = 512
  folder = family_folders.write(tmp_path / 'folder', fields)
  (folder / 'tokenizer.json').write_text(shapes.byte_tokenizer())
  words = ['--kinds=hops_0', '--lengths=10', '--questions=2', '--least=0.5']
  chats, continues = forked.run(
    [
      ['experiments.recall', f'--model={tmp_path / name}', *words,
       f'--out={tmp_path / name}.out']
      for name in ('run', 'folder')
    ]
  )  # fmt: skip
  for done, name in (chats, 'run'), (continues, 'folder'):
    assert done.returncode == 3, done
    assert '| hops_0 | 10 |' in done.stdout
    found = decision.load(tmp_path / f'{name}.out' / decision.FILE)
    assert found.figures['records'][0]['count'] == 2
