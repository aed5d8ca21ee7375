"""A command says in a line what is wrong, without a traceback."""

import pytest

from tests.experiments import forked

BAD = [
  ('convert --model=nowhere --out=x', 'error: nowhere/config.json: not'),
  ('convert --model=nowhere', '--out is missing'),
  ('convert --out=x', '--model is missing'),
  ('align --model=nowhere --out=x', '--user is missing'),
  ('align --model=nowhere --user=me --out=x', 'error: --user=me: must be pl'),
  (
    'align --model=nowhere --user=planted:fact --out=x --swipes=1',
    'error: --swipes=1: must be at least 2',
  ),
  (
    'align --model=nowhere --user=planted:fact --out=x',
    'error: nowhere/config.json: not found',
  ),
  ('uptrain --model=nowhere --out=x', 'error: nowhere: no such file or'),
  ('uptrain --out=x', '--model is missing'),
  (
    'uptrain --world=gated --arms=none',
    "error: --arms: 'none' is not one of scratch",
  ),
  ('rates --transfer=x', "error: --transfer: 'x' is not one of none, width"),
  (
    'benchmarks.serve --peers=x',
    "error: --peers: 'x' is not one of transformers:",
  ),
  ('economics --set=hit_rate=1.2', 'error: hit_rate=1.2: must lie between'),
  ('economics --json=gs://a', 'error: --json=gs://a: gs:// is an'),
  ('economics --detect=soon', "error: detect='soon': must be a duration"),
  ('economics --set=gpu_price=-1', 'error: gpu_price=-1: must be a number'),
  ('fleet --policies=best', "error: --policies: 'best' is not one of random,"),
  ('fleet --drill=lost --replicas=1', 'error: replicas=1: the drill'),
  ('fleet --calibrate', '--model is missing'),
  ('fleet --wall_clock --model=nowhere', '--engine is missing'),
  ('fleet --engine=nowhere', 'error: nowhere: no such file; --cal'),
  ('critical_batch --model=gs://a', 'error: --model=gs://a: gs:// is an'),
  ('codecs --config.model.window=0', 'window=0'),
  (
    'train --config=experiments/configs/tiny.py --workdir=nowhere'
    ' --config.model.windw=3',
    "--config.model.windw=3: ModelConfig has no field 'windw'. Did you mean",
  ),
  ('train --config=experiments/configs/tiny.py', '--workdir is missing'),
  ('train --workdir=nowhere', '--config is missing'),
  ('mix --sources=a=b --out=nowhere', '--target is missing'),
  ('overlap --evaluation=a --out=nowhere', '--training is missing'),
  (
    'select --target=nowhere --source=a --count=3 --out=nowhere',
    "error: --target='nowhere': no such file or folder",
  ),
  ('teach --out=nowhere', '--teacher is missing'),
  ('teach --teacher=x --out=nowhere --draws=1', 'error: draws=1: must be in'),
  ('teach --teacher=nowhere --out=nowhere', 'error: nowhere: no such file'),
  (
    'train --config=experiments/configs/tiny.py --workdir=nowhere'
    ' --config.optimizer.batch=0:2',
    "optimizer.batch='0:2': 2 microbatches must lie in 1…1",
  ),
  ('rates --rates=1e-3,2e-3 --out=nowhere', 'a parabola needs three or more'),
  ('rates --seeds=-1', "--seeds: '-1' is not a non-negative integer"),
  ('scaling --seeds=x', "--seeds: 'x' is not a non-negative integer"),
  ('facts --seeds= --out=nowhere', '--seeds needs at least one'),
  ('rates --predict=96', '--predict=96: must be wider than all of --widths'),
  ('rates --widths=48,x', "--widths: 'x' is not a positive whole number"),
  ('scaling --widths=32,48 --out=nowhere', 'the law needs three or more'),
  ('scaling --largest=64:10', '--largest=64:10: must be wider than 96'),
  (
    'benchmarks.step --table=vocabulary --chunks=1024',
    'error: --chunks=1024: must be below 1024',
  ),
  ('train_head --out=nowhere --planted --model=x', '--safety is missing'),
  ('train_head --safety=x --planted --model=x', '--out is missing'),
  ('train_head --safety=x --out=nowhere --planted', '--model is missing'),
  ('train_head --safety=x --out=nowhere --model=x', 'either --data or'),
  (
    'train_head --safety=x --out=nowhere --model=x --planted --c=0',
    'error: --c=0.0: must be above 0',
  ),
  (
    'train_head --safety=absent --out=nowhere --model=x --planted',
    'absent/gate.safetensors',
  ),
  ('agreement', '--model is missing'),
  ('agreement --model=nowhere', 'error: nowhere/config.json: not found'),
  (
    'agreement --model=nowhere --of=answers --prompt=3',
    '--of=answers does not read --prompt; it reads --rows, --chunk,',
  ),
  (
    'agreement --model=nowhere --mode=fast',
    '--of=cache does not read --mode; it reads --rows, --chunk, --prompt.',
  ),
  (
    'agreement --model=nowhere --of=kernels --attention=x',
    "error: --attention: 'x' is not one of",
  ),
  ('critical_batch', '--model is missing'),
  ('critical_batch --model=nowhere', 'error: nowhere/config.json: not found'),
  (
    'critical_batch --model=nowhere --at=2',
    "--at: '2' is not a positive number below 1",
  ),
  (
    'critical_batch --model=nowhere --multiples=2,4',
    '--multiples=2,4: must have 1',
  ),
  ('gate', '--candidate is missing'),
  ('gate --baseline=x --candidate=x', '--judge is missing'),
  (
    'gate --baseline=x --candidate=x --judge=rules --golden=x --generated=2',
    'either --golden',
  ),
  (
    'gate --baseline=nowhere --candidate=nowhere --judge=rules',
    'no such file or folder',
  ),
  (
    'gate --baseline=x --candidate=x --judge=rules --calibration_diff=a',
    'must name two',
  ),
  ('judge', '--judge is missing'),
  ('persona --references', '--judge is missing'),
  (
    'persona --judge=rules',
    'exactly one of --model, --endpoint and --references',
  ),
  (
    'persona --judge=rules --references --golden=x --generated=3',
    'either --golden or --generated',
  ),
  ('persona --judge=rules --references --golden=nowhere', 'No such file'),
  ('persona --judge=rules --references --watch=nowhere', 'No such file'),
  ('persona --judge=rules --references --calibration=nowhere', 'No such file'),
  ('persona --judge=http://x/v1 --references', 'judge_model='),
  ('recall --arms=x', "--arms: 'x' is not one of full, global_3"),
  ('recall --model=a --endpoint=b', 'either --model or --endpoint'),
  ('recall --model=nowhere --kinds=x', "--kinds: 'x' is not one of multi_key"),
  ('recall --model=nowhere --lengths=4', 'lengths=[4]: no row of them'),
  ('refusal --safety=x --planted', '--out is missing'),
  ('refusal --out=nowhere --planted', '--safety is missing'),
  ('refusal --out=nowhere --safety=x', 'either --planted, or both'),
  (
    'refusal --out=nowhere --safety=x --planted --confidence=0.9',
    '--confidence=0.9',
  ),
  (
    'refusal --out=nowhere --safety=x --planted --judge=both',
    '--model is missing',
  ),
  (
    'refusal --out=nowhere --safety=x --planted --show=1',
    '--show needs --blocked',
  ),
  ('refusal --out=nowhere --safety=x --planted', 'No such file'),
  ('refusal --out=nowhere --add=x', '--benign is missing'),
  ('train_gate --out=nowhere', 'either --data or --planted'),
  ('train_gate --out=nowhere --planted --data=x', 'either --data or --planted'),
  ('train_gate --planted', '--out is missing'),
  (
    'train_gate --out=nowhere --data=/no.jsonl',
    "No such file or directory: '/no.jsonl'",
  ),
  ('train_gate --out=nowhere --planted --c=0', '--c=0'),
  ('train_gate --out=nowhere --planted --confidence=0.9', '--confidence=0.9'),
  ('train_gate --out=nowhere --planted --choose=0.9', 'error: choose=0.9'),
  (
    'train_gate --out=nowhere --planted --head=/no',
    "No such file or directory: '/no'",
  ),
]


@pytest.fixture(scope='module')
def said():
  commands = [f'experiments.{line}'.split() for line, _ in BAD]
  done = forked.run(commands, imported=forked.JAX)
  return dict(zip([line for line, _ in BAD], done))


@pytest.mark.parametrize('line, message', BAD)
def test_what_cannot_run_is_one_line(said, line, message):
  done = said[line]
  assert done.returncode == 1
  assert message in done.stderr + done.stdout
  assert 'Traceback' not in done.stderr
  assert not (forked.ROOT / 'nowhere').exists()
  if message.startswith('error'):
    assert len(done.stderr.splitlines()) == 1
