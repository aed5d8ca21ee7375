"""From a policy's gates to a server: each step as a user runs it."""

import dataclasses
import datetime
import json

import pytest

from kaiju_jax.evaluation.persona import golden
from kaiju_jax.gates import promotion
from kaiju_jax.reporting import decision
from kaiju_jax.runs import exchange
from kaiju_jax.storage import files
from tests import toys as run_toys
from tests.evaluation.gate import small_models
from tests.experiments import forked
from tests.interchange import toys
from tests.serving.page import served


@pytest.mark.slow
def test_what_its_gates_promote_is_served_and_nothing_else(tmp_path):
  """The gates: the range of the rules, and that nothing was lost since."""
  model = dataclasses.replace(toys.KAIJU, vocab_size=256, max_length=1024)
  run_toys.write_run(tmp_path / 'run', model)
  exchange.export(tmp_path / 'run', tmp_path / 'export', 'kaiju')
  other = dataclasses.replace(model, window=6)
  run_toys.write_run(tmp_path / 'other_run', other)
  exchange.export(tmp_path / 'other_run', tmp_path / 'other', 'kaiju')
  files.write_json_lines(
    tmp_path / 'golden.jsonl',
    (
      dataclasses.asdict(small_models.conversation(n, tier))
      for n in range(2)
      for tier in golden.TIERS
    ),
  )
  asked = (
    f'--golden={tmp_path / "golden.jsonl"}',
    *('--forced', '--judge=rules', '--rows=8'),
  )
  watched = tmp_path / 'before' / decision.FILE
  policy = tmp_path / 'policy.json'
  gates = {
    'range': ['persona', '--references', '--generated=200', '--judge=rules'],
    'watch': ['persona', '--model={candidate}', *asked, f'--watch={watched}'],
  }
  gates = {name: [*words, '--out={out}'] for name, words in gates.items()}
  policy.write_text(
    json.dumps({'format': promotion.FORMAT, 'days': 31, 'gates': gates})
  )
  export, out = tmp_path / 'export', tmp_path / 'promotion'
  before, promoted = forked.run(
    [
      ['experiments.persona', f'--model={export}', *asked,
       f'--out={watched.parent}'],
      ['experiments.promote', f'--candidate={export}', f'--policy={policy}',
       f'--out={out}'],
    ]
  )  # fmt: skip
  assert before.returncode == 4, before
  assert promoted.returncode == 0, promoted
  found = decision.load(out / decision.FILE)
  assert {x['status'] for x in found.figures['gates'].values()} == {'passed'}
  flags = f'--policy={policy}', f'--promotion={out}'
  with served.serve(export, tmp_path / 'server', *flags) as started:
    assert served.got(started[1], '/readyz') == b'ready\n'
  old = datetime.date.fromisoformat(found.figures['date'])
  old -= datetime.timedelta(days=32)
  figures = {**found.figures, 'date': old.isoformat()}
  decision.write(
    tmp_path / 'stale.json', dataclasses.replace(found, figures=figures)
  )
  serve = ['experiments.serve', '--port=0', f'--policy={policy}']
  cases = (
    ([f'--model={export}'], 'demands a promotion, and none is given'),
    (
      [f'--model={export}', f'--promotion={tmp_path / "stale.json"}'],
      'days old: must be 0…31',
    ),
    (
      [f'--model={tmp_path / "other"}', f'--promotion={out}'],
      'is of other weights than those that are loaded',
    ),
  )
  done = forked.run(
    [
      [*serve, *words, f'--folder={tmp_path / f"refused{n}"}']
      for n, (words, _) in enumerate(cases)
    ]
  )
  for (_, message), one in zip(cases, done):
    assert one.returncode == 1 and message in one.stderr, one
    assert 'Traceback' not in one.stderr
