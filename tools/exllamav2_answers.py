"""Opens EXL2 directories with ExLlamaV2's own loader on the CPU, and writes what its kernels would be given.

The arguments are the directory of the package, an output directory and the models'. Called by
tools/calibrated_parity.py. ExLlamaV2 reads configuration and files, looks for the tensors of its modules and prepares
them: the order of columns, the map of groups. Its extension, which is CUDA throughout, is replaced by two functions:
one that reads bytes, and one that checks what the extension's make_q_matrix does. OUTPUT/MODEL.safetensors has words,
order, scales, scale_max, table and group_map of every quantised layer, and all other tensors as they are.
"""

import sys
import types
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file


def stloader_read(path: str, offset: int, size: int, target: torch.Tensor) -> None:
    raw = torch.from_numpy(np.fromfile(path, np.uint8, size, offset=offset))
    target.copy_(raw.view(target.dtype).view(target.shape))


def make_q_matrix(words, order, places, scales, scale_max, table, group_map, *_) -> tuple[int, int]:
    """Returns columns and rows, for which the extension has the address of its matrix."""
    assert words.dtype == scales.dtype == torch.int32 and scale_max.dtype == torch.float16
    assert {part.dtype for part in (order, places, table, group_map)} == {torch.int16}
    columns, rows = len(group_map) // 2, words.shape[1]
    assert order.shape == places.shape == (columns,)
    assert scales.shape == (len(scale_max), rows // 8) and len(table) == 2 * len(scale_max)
    return columns, rows


def main() -> None:
    package, output, *directories = sys.argv[1:]
    extension = types.ModuleType("exllamav2_ext")
    extension.stloader_read, extension.make_q_matrix = stloader_read, make_q_matrix
    sys.modules["exllamav2_ext"] = extension
    sys.path.insert(0, package)
    torch.cuda.synchronize = lambda: None
    from exllamav2 import ExLlamaV2, ExLlamaV2Config
    from exllamav2.ext import make_group_map_py
    from exllamav2.linear import ExLlamaV2Linear
    from exllamav2.util import unpack_4bit

    def tensors(module) -> dict[str, torch.Tensor]:
        module.set_device_idx(-1)  # the CPU
        if not isinstance(module, ExLlamaV2Linear):
            module.load()
            return {"weight": module.get_weight()}
        module.load(device_context=False)
        if module.q_handle is None:
            return {"weight": module.get_weight()}
        assert module.q_handle == module.matrix_shape(), (module.key, module.q_handle, module.matrix_shape())
        parts = module.q_tensors
        bias = {"bias": parts["bias"]} if module.has_bias else {}
        return bias | {"words": parts["q_weight"], "order": parts["q_perm"], "scales": unpack_4bit(parts["q_scale"]),
                       "scale_max": parts["q_scale_max"], "table": parts["q_groups"],
                       "group_map": parts["q_group_map"]}

    extension.make_group_map = make_group_map_py
    for directory in directories:
        modules = ExLlamaV2(ExLlamaV2Config(directory)).modules_dict
        found = {f"{name}.{part}": tensor for name, module in modules.items()
                 for part, tensor in tensors(module).items()}
        save_file(found, Path(output) / f"{Path(directory).name}.safetensors")


if __name__ == "__main__":
    main()
