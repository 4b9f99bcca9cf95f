"""llama.cpp's own quantiser, from any build that exports llama_model_quantize, such as the extension module in the
package llama-cpp-cffi. No importance matrix. Standard library only."""

import ctypes
from pathlib import Path

# llama_ftype of each mixture, by the names of `storage`.
MIXTURES = {"q2_k": 10, "q3_k_s": 11, "q3_k_m": 12, "q3_k_l": 13, "q4_k_s": 14, "q4_k_m": 15, "q5_k_s": 16,
            "q5_k_m": 17, "iq4_nl": 25, "iq4_xs": 30}


class Parameters(ctypes.Structure):
    """The first members of llama_model_quantize_params, and room for the others of any version."""
    _fields_ = [("threads", ctypes.c_int32), ("file_type", ctypes.c_int), ("others", ctypes.c_byte * 256)]


def quantise(library: Path, source: Path, target: Path, mixture: str) -> None:
    """Rounds a GGUF file. Raises RuntimeError where the quantiser refuses."""
    # From the interpreter's names too: such a module takes them from there.
    llama = ctypes.PyDLL(str(library))
    llama.llama_model_quantize_default_params.restype = Parameters
    parameters = llama.llama_model_quantize_default_params()
    parameters.file_type = MIXTURES[mixture]
    if llama.llama_model_quantize(bytes(source), bytes(target), ctypes.byref(parameters)) != 0:
        raise RuntimeError(f"llama.cpp refuses to make {mixture} of {source}")
