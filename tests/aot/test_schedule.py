"""A TPU kernel's stretches, cut from the compiler's text."""

import pytest

from kaiju_jax.aot import schedule

# The form that libtpu writes, with other names and few instructions.
_BUNDLES = """\
= control target key start
LH: loop header
= control target key end

     0   :  { %s1_s0 = inlined_call_operand.vmem [shape: f32[8,128]] }
   0x1   :  { %s2 = smov 0 } /* Start region 1 */
   0x2 LB: > { %v3 = vld [vmem:[%s1_s0] sm:$0xff]  ;;  %p4 = scmp.eq %s2, 0 }
   0x3   : > { %v5 = vmatmul.bf16.gmra.mxu0 %v3  ;;  %v6 = vadd.f32 %v3, %v3 }
   0x4   : > { %7 = sbr.rel (%p4) target = $region2 }
   0x5   :  {} /* End region 1 */
   0x6 PF: >> { %8 = vst [vmem:[%s1_s0] sm:$0xff] /*vst_source=*/%v6 }
"""
_USE = """\
== CAPACTIY:
MXU, VALU, SALU
    4     2    2
== UTILIZATION:
0 0 0
0 0 1
0 0 1
1 2 0
0 0 1
0 0 0
0 0 0
"""


def test_code_is_cut_at_branches_and_labels():
  found = schedule.stretches(_BUNDLES, _USE)
  assert [(x.depth, x.bundles) for x in found] == [
    (0, 2),
    (1, 2),
    (0, 2),
    (2, 1),
  ]
  assert found[1].busy == {'MXU': 1 / 8, 'VALU': 1 / 2, 'SALU': 1 / 4}


def test_an_unknown_form_is_refused():
  with pytest.raises(ValueError, match='7 bundles, but 6 counts'):
    schedule.stretches(_BUNDLES, _USE.removesuffix('0 0 0\n'))
