"""Set before torch is loaded, for every test."""

import os

# Some virtual machines announce AMX and then refuse its instructions: bfloat16 products would end the process.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
