"""experiments.train_head from its flags to a server that is moderated."""

import json
import re

import pytest

from kaiju_jax.classifiers import planted
from kaiju_jax.model import config as model_config
from kaiju_jax.runs import train
from kaiju_jax.serving.safety import moderation
from kaiju_jax.serving.safety import thresholds
from kaiju_jax.training import experiment as experiment_lib
from tests.experiments import forked
from tests.serving import planted as by_hand
from tests.serving.page import served

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
PARTS = '--choose=0.15', '--certify=0.65'
# Behind each planted word, a letter whose bytes are in no other text: the model
# has learned nothing, and a linear layer finds no words in it.
SIGNS = {'zorb': 'ж', 'quam': 'ю'}


def run(*commands):
  return forked.run([['experiments.train_head', *words] for words in commands])


def write_rows(path, count):
  """Writes so many violating texts of each kind, and as many benign ones.

  Each is a few words: the model's reading is most of the command's time.
  """
  rows = planted.draw_rows(count, count, 0)
  lines = []
  for row in rows.rows:
    text, labels = row.text, dict(zip(rows.names, row.labels))
    for name, sign in SIGNS.items():
      for marker in planted.MARKERS[name] if labels[name] else ():
        text = re.sub(rf'\b{marker}\b', f'{marker} {sign}', text)
    words = text.split()
    at = max(
      words.index(sign) if sign in words else 3 for sign in SIGNS.values()
    )
    text = ' '.join(words[max(0, at - 3) : at + 3])
    age = {} if len(row.tiers) > 1 else {'age': row.tiers[0]}
    lines.append(json.dumps({'text': text, 'labels': labels} | age) + '\n')
  path.write_text(''.join(lines))
  return f'--data={path}'


@pytest.fixture(scope='module')
def made(tmp_path_factory):
  """A run, labelled texts, and a gate as experiments.train_gate writes it."""
  pytest.importorskip('sklearn', reason='scikit-learn is not installed')
  folder = tmp_path_factory.mktemp('made')
  tiny = experiment_lib.Experiment()
  tiny.model = model_config.ModelConfig(
    layout='L0 G1', d_model=32, d_ff=64, num_heads=2, head_dim=16, window=64
  )
  # No character fits, so that texts stand alone: a third of the time.
  tiny.model.max_length = 512
  tiny.data.length, tiny.data.batch, tiny.loop.steps = 128, 2, 2
  train.train(tiny, folder / 'run')
  data = write_rows(folder / 'rows.jsonl', 1000)
  names = tuple(sorted(planted.MARKERS))
  gate = by_hand.gate([planted.MARKERS[name][0] for name in names], names)
  policy = by_hand.policy(by_hand.stage(gate.version, names), None)
  (folder / 'safety').mkdir()
  gate.save(folder / 'safety' / moderation.GATE)
  thresholds.write(folder / 'safety' / moderation.THRESHOLDS, policy)
  return folder, data


def flags_of(folder, out):
  return (
    f'--model={folder / "run"}',
    f'--safety={folder / "safety"}',
    f'--out={out}',
  )


def test_labelled_texts_give_a_moderated_server(made, tmp_path):
  folder, data = made
  out = tmp_path / 'moderated'
  words = data, *flags_of(folder, out), *PARTS
  done, again = run(words, words)
  assert done.returncode == 0, done.stderr + (out / 'report.md').read_text()
  assert 'see report.md' in done.stdout
  assert again.returncode == 1 and 'exists' in again.stderr

  server = tmp_path / 'server'
  with served.serve(folder / 'run', server, f'--safety={out}') as (
    _,
    address,
    said,
  ):
    assert 'Unmoderated' not in said

    def finish(*messages):
      body = {
        'model': 'run',
        'max_tokens': 4,
        'messages': [{'role': x, 'content': y} for x, y in messages],
      }
      path = '/v1/chat/completions'
      found = json.loads(served.got(address, path, **body))
      return found['choices'][0]['finish_reason']

    assert finish(('user', 'the old zorbifex ж sang')) == 'content_filter'
    # The gate reads all that is new, whoever is said to have written it.
    said = ('system', 'say quamlith ю again'), ('user', 'the old knight')
    assert finish(*said) == 'content_filter'
    finish(('user', 'the old knight'))
    metrics = served.got(address, '/metrics').decode()
  assert 'stage="gate",tier="minor"} 2.0' in metrics, metrics


def test_too_few_rows_exit_with_4(made, tmp_path):
  folder, _ = made
  data = write_rows(tmp_path / 'few.jsonl', 60)
  out, again = tmp_path / 'out', tmp_path / 'again'
  head = out / 'head.safetensors'
  all_done = run(
    [data, *flags_of(folder, out)],
    # The same head is certified once more.
    [data, *flags_of(folder, again), f'--head={head}'],
  )
  for done, made_in in zip(all_done, (out, again)):
    assert done.returncode == 4, done
    assert 'token head: not evaluated. ' in done.stderr
    assert not (made_in / 'thresholds.json').exists()
  versions = [one.stdout.rpartition('token head')[2] for one in all_done]
  assert versions[0] == versions[1] and 'see report.md' in versions[0]


def test_flags_that_are_wrong_are_one_line(made, tmp_path):
  folder, data = made
  out = tmp_path / 'out'
  flags = flags_of(folder, out)
  spans = [word for word in flags if not word.startswith('--safety')]
  cases = [
    ([data, *flags, '--confidence=0.99'], 'error: --confidence=0.99'),
    ([data, *flags, '--choose=0.9'], 'error: choose=0.9'),
    ([data, *flags, '--head=/nowhere'], '/nowhere'),
    (['--planted', *flags, '--model=/nowhere'], 'error: /nowhere'),
    (['--spans=/nowhere', *flags], 'has no effect with --spans'),
    (['--spans=/nowhere', *spans], "error: --spans='/nowhere': no such file"),
    ([data, *flags, f'--head={folder / "safety/gate.safetensors"}'], 'error: '),
  ]
  done = run(*(words for words, _ in cases))
  for (_, message), one in zip(cases, done):
    assert one.returncode == 1 and message in one.stderr, one
    assert len(one.stderr.splitlines()) == 1
  assert not out.exists()
