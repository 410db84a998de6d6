"""Set before torch is loaded, for every test."""

import os
import signal

# Some virtual machines announce AMX and then refuse its instructions: bfloat16 products would end the process.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
# CUDA kernels run on a CPU by Triton's interpreter, which must know before Triton is loaded.
os.environ.setdefault("TRITON_INTERPRET", "1")
# A shell starts background jobs with interrupts ignored, and children inherit that: tests of Ctrl-C would wait in vain.
signal.signal(signal.SIGINT, signal.default_int_handler)
