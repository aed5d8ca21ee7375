"""Writes a trained run as a Hugging Face folder, or in our own format.

    python -m experiments.export_hf --model=runs/tiny --out=exports/tiny
    python -m experiments.export_hf --model=runs/tiny --out=exports/tiny \\
        --format=arcee [--accept=windows,shared_kv]

`transformers` loads the folder as ArceeForCausalLM, of all its classes the one
with the nearest mathematics: squared ReLU without a gate, pre-RMSNorm, one head
of keys and values. Logits are the same where that class can say all that the
model does. What it cannot is named (`interchange/losses.py`), and then:

    --format=auto    our own format is written instead, which loses nothing
    --format=arcee   an error, unless --accept names all that is lost; a
                     lost.json beside the weights then lists it
    --format=kaiju   our own format in any case

The adapters of a run with lora.rank are merged into the codes of their base;
printed is the KL divergence of the merged model from the one that was trained.

The folder is new, and whole or not there at all.
"""

from collections.abc import Sequence

from absl import flags

from kaiju_jax.runs import command

_MODEL = flags.DEFINE_string('model', None, 'The workdir of a training run.')
_OUT = flags.DEFINE_string('out', None, 'A new folder.')
_FORMAT = flags.DEFINE_enum(
  'format',
  'auto',
  ['auto', 'arcee', 'kaiju'],
  'Format; see above.',
)
_ACCEPT = flags.DEFINE_list('accept', [], 'What an Arcee folder may lose.')


def main(argv: Sequence[str]) -> None:
  command.check(argv, _MODEL, _OUT)
  from kaiju_jax.runs import exchange  # Imports jax: not for --help.

  print(exchange.export(_MODEL.value, _OUT.value, _FORMAT.value, _ACCEPT.value))


if __name__ == '__main__':
  command.run(main)
