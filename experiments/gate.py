"""Compare a quantized model with its baseline, and decide promotion.

    python -m experiments.gate --baseline=runs/chat --candidate=chat.kaiju \\
      --judge=rules --generated=200 --out=gated

Both models play the same golden conversations and read them with the
references as replies. The candidate passes if, per tier of 200 conversations
and more, its mean score is shown to be at least 4.0 and not to have dropped by
more than 0.12; if KL, likeliest tokens and bits per byte stay within their
limits, for the character's prefix, the user's messages and the character's
replies apart; and if no layer has more codes at the rail or more outlier
channels; and if at most 2 of 100 questions that the baseline recalls are shown
to be lost. The exit status is 0 if it passes, 3 if it is refused, and 4 if
something was not evaluated, such as a score of too few conversations.

    --golden      your own conversations; experiments/golden/README says how
    --generated   so many generated ones per tier instead
    --judge       as in `experiments.persona`, with --judge_model, --calibration
    --needle      what is recalled: facts of the small chat model's characters,
                  or a kind of `experiments.recall`, with --needle_length; with
                  '' nothing is, and the exit status is 4 at best
    --calibration_diff=A,B
                  two models, such as one before and after it was calibrated
                  again: the report names each layer's scales and limits that
                  moved far. Or two JSONL files of the conversations that they
                  were calibrated on: which share of them is roleplay, and how
                  their words differ. Neither decides anything
    --nopersona   only reads: a model with random weights has no persona and
                  recalls nothing, and the exit status is 4 at best
    --text        prose whose bits per byte count; the conversations otherwise
    --int8, --kv, --dtype, --baseline_int8, --baseline_kv, --baseline_dtype
                  how the models of Hugging Face folders are served: the
                  candidate all in int8 and the baseline in floats by default
"""

from collections.abc import Sequence

from kaiju_jax.gates import settings as settings_lib
from kaiju_jax.runs import command
from kaiju_jax.runs import flags

FLAGS = flags.flags_of(settings_lib.Gate)


def main(argv: Sequence[str]) -> None:
  settings = FLAGS.read(argv)
  from kaiju_jax.gates import quantization_gate

  quantization_gate.run(settings).conclude(settings.out)


if __name__ == '__main__':
  command.run(main, ImportError, RuntimeError)
