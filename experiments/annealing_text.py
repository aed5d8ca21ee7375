"""Writes the two sources of the experiment on annealing, without a download.

    python -m experiments.annealing_text [--out=runs/annealing/text]

clean.jsonl holds docstrings of the standard library of the running Python,
noisy.jsonl those of other modules with half of their words made random letters
(`kaiju_jax/data/docstrings.py`). A line is a module. They differ between
versions of Python. `experiments/configs/annealing.py` reads them.
"""

from collections.abc import Sequence

from absl import flags

from kaiju_jax.runs import command

_OUT = flags.DEFINE_string(
  'out', 'runs/annealing/text', 'Folder; made where it does not exist.'
)


def main(argv: Sequence[str]) -> None:
  command.check(argv)
  from kaiju_jax.data import docstrings
  from kaiju_jax.storage import files

  folder = command.folder(_OUT)
  files.make_folder(folder)
  for name, texts in zip(('clean', 'noisy'), docstrings.read()):
    path = folder / f'{name}.jsonl'
    files.write_json_lines(path, ({'text': text} for text in texts))
    size = sum(len(text.encode()) for text in texts)
    print(f'{path}: {len(texts)} documents, {size:,} bytes.')


if __name__ == '__main__':
  command.run(main)
