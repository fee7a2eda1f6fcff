"""The recurrence without Python: for one query in C++ and in Rust, for one head in CUDA C++.

Three sources to be read beside `flashkit.online`: online.cpp, online.rs and flash.cu. They are
built where they are used, by the compilers of the machine; where one is missing, `BuildError`
says so, and nothing else needs it.
"""

from flashkit.native.build import BuildError, languages, source
from flashkit.native.cuda import cuda_attention
from flashkit.native.twins import online_attention, ulps

__all__ = ["BuildError", "cuda_attention", "languages", "online_attention", "source", "ulps"]
