"""A command says in a line what is wrong, without a traceback."""

import re

import pytest

from tests.experiments import forked
from tests.experiments import toys

# Under each command: further words → what is said. arms.py has arms, and the
# second line of CUT.jsonl is cut off.
BAD = """
ablate --config=arms.py --out=nowhere
  --arms=plain,nosuch → --arms=nosuch: must be one of plain, better
  --baseline=nosuch → --baseline=nosuch: must be one of plain
  --job=2 → --job=2: is no flag of ablate
  --config.loop.step=2 → step
  --config.loop.steps=many → steps
  --config.model.window=0 → window=0: must be at least 1
  --config.data.length=4096 → rows are longer than the positions
  --config.seed=7 → --config.seed=7: --seeds lists
  --config.loop.log_every=0 → loop.log_every=0: must be at least 1
  --config.loop.steps=0 → loop.steps=0: must be at least 1
  --config.optimizer.schedule=foo → optimizer.schedule='foo': must
  --config.data.path=/nope → data.path='/nope': no such file
  --config.data.tokenizer=/nope → data.tokenizer='/nope': no such
  --arms= → --arms=: must name some of plain, better, broken
  --out=gs://a/b → --out=gs://a/b: gs:// is an address
  --reading=eval_loss → arms.py: has no effect with --reading, which
  --least=0.5 → --least=0.5: has no effect without --reading.
  --out=/proc/x → /proc/x: the folder cannot be made: No such file
  --config.loop.log_every=5 → must be at most loop.steps=4
  --config.data.path=/nope --config.data.task=needle_text →
    data.path='/nope': no such file
  --config.data.path=CUT.jsonl → CUT.jsonl, line 2: not JSON
agreement
  – → --model is missing
  --model=nowhere → error: nowhere/config.json: not found
  --model=nowhere --of=answers --prompt=3 →
    --of=answers does not read --prompt; it reads --rows, --chunk,
  --model=nowhere --mode=fast →
    --of=cache does not read --mode; it reads --rows, --chunk, --prompt,
  --model=nowhere --of=kernels --attention=x →
    error: --attention: 'x' is not one of
align
  --model=nowhere --out=x → --user is missing
  --model=nowhere --user=me --out=x → error: --user=me: must be pl
  --model=nowhere --user=planted:fact --out=x --swipes=1 →
    error: --swipes=1: must be at least 2
  --model=nowhere --user=planted:fact --out=x →
    error: nowhere: no such file or folder.
aot_report --nocompile
  --preset=13b --accelerator=h200 → accelerator='h200': must be one
  --preset=13b --accelerator=h100_64 --fsdp=7 →
    model.d_model=5120: does not divide over mesh.fsdp=7
  --preset=13b --accelerator=h100_64 --fsdp=4 --tensor=4 →
    mesh.fsdp=4 × mesh.tensor=4 is 16 devices, but h100_64 has 64
  --preset=13b → --accelerator is missing
  --accelerator=cpu_8 → exactly one of --preset and --config
  --kernels --accelerator=v5e_256 --preset=13b → --preset=13b: has no effect wi
  --preset=13b --accelerator=cpu_8 --heads=3 →
    --heads=3: has no effect without --kernels.
  --preset=14b --accelerator=cpu_8 → --preset=14b: value should be one of
benchmarks.serve
  --peers=x → error: --peers: 'x' is not one of transformers:
benchmarks.step
  --table=vocabulary --chunks=1024 → error: --chunks=1024: must be below 1024
codecs
  --config.model.window=0 → window=0
convert
  --model=nowhere --out=x → error: nowhere/config.json: not
  --model=nowhere → --out is missing
  --out=x → --model is missing
  --check=nowhere --codes → --codes=True: has no effect with --check
  --model=nowhere --out=x --text=x → --text=x: has no effect without --check
critical_batch
  --model=gs://a → error: --model=gs://a: gs:// is an
  – → --model is missing
  --model=nowhere → error: nowhere/config.json: not found
  --model=nowhere --at=2 → --at: '2' is not a positive number below 1
  --model=nowhere --multiples=2,4 → --multiples=2,4: must have 1
describe --preset=110b
  --tensor=0 → error: tensor=0: must be at least 1.
  --tensor=3 → error: model.d_ff=51200: does not divide over mesh.tensor=3; thi
economics
  --set=hit_rate=1.2 → error: hit_rate=1.2: must lie between
  --json=gs://a → error: --json=gs://a: gs:// is an
  --detect=soon → error: detect='soon': must be a duration
  --set=gpu_price=-1 → error: gpu_price=-1: must be a number
facts
  --seeds= --out=nowhere → --seeds needs at least one
fleet
  --policies=best → error: --policies: 'best' is not one of random,
  --drill=lost --replicas=1 → error: replicas=1: the drill
  --calibrate → --model is missing
  --wall_clock --model=nowhere → --engine is missing
  --engine=nowhere → error: nowhere: no such file; --cal
gate
  – → --candidate is missing
  --baseline=x --candidate=x → --judge is missing
  --baseline=x --candidate=x --judge=rules --golden=x --generated=2 →
    either --golden
  --baseline=nowhere --candidate=nowhere --judge=rules → no such file or folder
  --baseline=x --candidate=x --judge=rules --calibration_diff=a → must name two
generate
  – → --model is missing
  --model=a → exactly one of --prompt and --interactive
  --model=/no/such --prompt=x → error: /no/such: no such file
  --model=a --prompt=x --top_p=2 → error: top_p=2.0: must be
  --model=a --prompt=x --dry_base=0 → error: dry_base=0.0: must be in 1…100.
  --model=a --prompt=x --logit_bias=5 → error: --logit_bias=5: must be
  --model=a --prompt=x --logit_bias=5:101 → error: logit_bias[5]=101.0: must be
  --model=a --prompt=x --tensor=0 → --tensor=0: 0 is not a positive integer
  --model=a --prompt=x --tensor=9 → error: mesh.tensor=9: must be 1…8, as many
judge
  – → --judge is missing
mix
  --sources=a=b --out=nowhere → --target is missing
  --target=x --sources=a --out=nowhere → error: --sources: 'a' is not NAME=PATH.
needle
  --arms=ful → --arms: 'ful' is not one of full, interleaved, kaiju
  --arms= → --arms needs at least one
  --seeds=-1 → --seeds: '-1' is not a non-negative integer
  --seeds=99999999999999999999 → seed=99999999999999999999: must lie in
  --out= → --out=: must name a folder
  --out=gs://a → --out=gs://a: gs:// is an address
  --out=/proc/x --arms=full → /proc/x/full/seed0: the folder cannot be made
  --data=folder → --data='folder': only --task=needle_text
  --task=needle_text --data=/nowhere → /nowhere
overlap
  --evaluation=a --out=nowhere → --training is missing
  --documents=a --out=nowhere --training=b →
    --training=['b']: has no effect without --evaluation.
persona
  --references → --judge is missing
  --judge=rules → exactly one of --model, --endpoint and --references
  --judge=rules --references --golden=x --generated=3 →
    either --golden or --generated
  --judge=rules --references --golden=nowhere → No such file
  --judge=rules --references --watch=nowhere → No such file
  --judge=rules --references --calibration=nowhere → No such file
  --judge=http://x/v1 --references → judge_model=
rates
  --transfer=x → error: --transfer: 'x' is not one of none, width
  --rates=1e-3,2e-3 --out=nowhere → a parabola needs three or more
  --seeds=-1 → --seeds: '-1' is not a non-negative integer
  --predict=96 → --predict=96: must be wider than all of --widths
  --widths=48,x → --widths: 'x' is not a positive whole number
recall
  --arms=x → --arms: 'x' is not one of full, global_3
  --model=a --endpoint=b → either --model or --endpoint
  --model=nowhere --kinds=x → --kinds: 'x' is not one of multi_key
  --model=nowhere --lengths=4 → lengths=[4]: no row of them
  --model=nowhere --dry_run → --dry_run=True: has no effect with --model
  --endpoint=http://x/v1 --jobs=3 → --jobs=3: has no effect with --endpoint
refusal
  --safety=x --planted → --out is missing
  --out=nowhere --planted → --safety is missing
  --out=nowhere --safety=x → either --planted, or both
  --out=nowhere --safety=x --planted --confidence=0.9 → --confidence=0.9
  --out=nowhere --safety=x --planted --judge=both → --model is missing
  --out=nowhere --safety=x --planted --show=1 → --show needs --blocked
  --out=nowhere --safety=x --planted → No such file
  --out=nowhere --add=x → --benign is missing
scaling
  --seeds=x → --seeds: 'x' is not a non-negative integer
  --widths=32,48 --out=nowhere → the law needs three or more
  --largest=64:10 → --largest=64:10: must be wider than 96
select
  --target=nowhere --source=a --count=3 --out=nowhere →
    error: --target='nowhere': no such file or folder
teach
  --out=nowhere → --teacher is missing
  --teacher=x --out=nowhere --draws=1 → error: draws=1: must be in
  --teacher=nowhere --out=nowhere → error: nowhere: no such file
train
  --config=tiny --workdir=nowhere --config.model.windw=3 →
    --config.model.windw=3: ModelConfig has no field 'windw'. Did you mean
  --config=tiny → --workdir is missing
  --workdir=nowhere → --config is missing
  --config=tiny --workdir=nowhere --config.optimizer.batch=0:2 →
    optimizer.batch='0:2': 2 microbatches must lie in 1…1
train_gate
  --out=nowhere → either --data or --planted
  --out=nowhere --planted --data=x → either --data or --planted
  --planted → --out is missing
  --out=nowhere --data=/no.jsonl → /no.jsonl: cannot be read: No such file
  --out=nowhere --planted --c=0 → --c=0
  --out=nowhere --planted --confidence=0.9 → --confidence=0.9
  --out=nowhere --planted --choose=0.9 → error: choose=0.9
  --out=nowhere --planted --head=/no → No such file or directory: '/no'
train_head
  --out=nowhere --planted --model=x → --safety is missing
  --safety=x --planted --model=x → --out is missing
  --safety=x --out=nowhere --planted → --model is missing
  --safety=x --out=nowhere --model=x → either --data or
  --safety=x --out=nowhere --model=x --planted --c=0 →
    error: --c=0.0: must be above 0
  --safety=absent --out=nowhere --model=x --planted → absent/gate.safetensors
uptrain
  --model=nowhere --out=x --kv_budget=9 → kv_budget=9: finds the layout of a
  --model=nowhere --out=x --kv_budget=-1 → kv_budget=-1: must be at least 0
  --model=nowhere --out=x → error: nowhere: no such file or
  --out=x → --model is missing
  --world=gated --model=nowhere → --model=nowhere: has no effect with --world
  --model=nowhere --out=x --steps=3 → --steps=3: has no effect without --world
  --world=gated --arms=none → error: --arms: 'none' is not one of scratch
"""


def _cases():
  """Yields each command's words, and what it says."""
  command = ''
  for line in BAD.replace(' →\n   ', ' →').strip().splitlines():
    words, arrow, said = line.partition(' → ')
    if not arrow:
      command = f'experiments.{line}'
      continue
    yield f'{command} {words.strip().removeprefix("–")}', said


CASES = dict(_cases())


@pytest.fixture(scope='module')
def said(tmp_path_factory):
  folder = tmp_path_factory.mktemp('named')
  (folder / 'arms.py').write_text(toys.ARMS)
  (folder / 'CUT.jsonl').write_text('{"text": "whole"}\n{"text": "cut')
  named = re.compile('(arms.py|CUT.jsonl)')
  commands = [named.sub(rf'{folder}/\1', line).split() for line in CASES]
  imported = *forked.JAX, 'matplotlib.figure'
  return dict(zip(CASES, forked.run(commands, imported=imported)))


@pytest.mark.parametrize('line', CASES)
def test_what_cannot_run_is_one_line(said, line):
  done, message = said[line], CASES[line]
  assert done.returncode == 1
  assert message in done.stderr + done.stdout
  assert 'Traceback' not in done.stderr
  assert not (forked.ROOT / 'nowhere').exists()
  if message.startswith('error'):
    assert len(done.stderr.splitlines()) == 1
