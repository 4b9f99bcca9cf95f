#!/usr/bin/env python3
"""What cuDNN's attention would take of a GPU: packed sequences, causal, deterministic, bf16.

    cudnn_attention.py

cuDNN plans for a GPU that is only described to it, so this needs none; in place of the driver's
library a stub is loaded, which the script compiles. Needs g++ and, by pip, nvidia-cudnn-cu13,
nvidia-cudnn-frontend, nvidia-cublas and nvidia-cuda-nvrtc.
"""

import ctypes
import json
import logging
import pathlib
import re
import subprocess
import tempfile

# Those that have a shape of their own in cuDNN's tables; bytes of shared memory that a block gets.
GPUS = {
    "sm_80": ("A100", 166912),
    "sm_86": ("RTX 30", 101376),
    "sm_89": ("RTX 40", 101376),
    "sm_90": ("H100", 232448),
    "sm_100": ("B200", 232448),
    "sm_120": ("RTX 50", 101376),
}
# Four full sequences' worth of tokens in up to eight; heads as in a Llama of 8B.
SEQUENCES, LONGEST, TOKENS, HEADS, KV_HEADS = 8, 1024, 4096, 32, 8

# What cuDNN wants to find in the driver's library.
DRIVER_STUB = pathlib.Path(__file__).parents[1] / "tests" / "cudnn" / "driver_stub.cc"


def load_driver_stub(directory):
    library = pathlib.Path(directory) / "libcuda.so.1"
    subprocess.run(["g++", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", DRIVER_STUB,
                    "-o", library], check=True)
    ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)


def description(level, shared_memory):
    return json.dumps({
        "deviceName": level, "cudaDeviceId": 0, "deviceVer": 10 * int(level[3:]),
        "driverVer": 13000, "multiProcessorCount": 128, "maxGridSize": [2**31 - 1, 65535, 65535],
        "maxBlockSize": [1024, 1024, 64], "regsPerBlock": 65536, "smClockRateKHz": 1900000,
        "memClockRateKHz": 2600000, "memoryBusWidth": 5120, "l2CacheSize": 50 << 20,
        "warpSize": 32, "maxSharedMemoryPerBlock": 49152,
        "maxSharedMemoryPerBlockOptin": shared_memory, "reservedSharedMemoryPerBlock": 1024,
        "maxRegistersPerSM": 65536, "maxCtasPerSM": 32, "maxThreadsPerBlock": 1024,
        "maxThreadsPerSM": 2048, "supportCoopLaunch": 1, "totalGlobalMem": 80 << 30,
        "pciDeviceId": 0, "isTccDriver": 0})


def plan(cudnn, level, shared_memory, head_dim, backward):
    """Bytes of workspace; None, with the reason, where cuDNN has no such kernel."""
    kinds = cudnn.data_type
    graph = cudnn.pygraph(
        io_data_type=kinds.BFLOAT16, intermediate_data_type=kinds.FLOAT,
        compute_data_type=kinds.FLOAT, sm_version=int(level[3:]),
        device_property=cudnn.create_device_properties(description(level, shared_memory)))

    def counts(size):
        return graph.tensor(dim=[size, 1, 1, 1], stride=[1, 1, 1, 1], data_type=kinds.INT32)

    offsets = {heads: counts(SEQUENCES + 1) for heads in (1, HEADS, KV_HEADS)}

    def dims(heads):
        return [SEQUENCES, heads, LONGEST, head_dim]

    def strides(heads):
        return [LONGEST * heads * head_dim, head_dim, heads * head_dim, 1]

    def rows(heads):
        return graph.tensor(dim=dims(heads), stride=strides(heads), data_type=kinds.BFLOAT16,
                            ragged_offset=offsets[heads])

    def gives(tensor, heads):
        tensor.set_output(True).set_dim(dims(heads)).set_stride(strides(heads))
        tensor.set_ragged_offset(offsets[heads])

    # As Ops::attention_forward() leaves it: [heads, tokens].
    lse_dims, lse_strides = [SEQUENCES, HEADS, LONGEST, 1], [LONGEST, TOKENS, 1, 1]
    q, k, v = rows(HEADS), rows(KV_HEADS), rows(KV_HEADS)
    options = {"attn_scale": head_dim**-0.5, "use_padding_mask": True, "use_causal_mask": True,
               "seq_len_q": counts(SEQUENCES), "seq_len_kv": counts(SEQUENCES),
               "max_total_seq_len_q": TOKENS, "max_total_seq_len_kv": TOKENS}
    try:
        if backward:
            lse = graph.tensor(dim=lse_dims, stride=lse_strides, data_type=kinds.FLOAT,
                               ragged_offset=offsets[1])
            gradients = graph.sdpa_backward(q, k, v, rows(HEADS), rows(HEADS), lse,
                                            use_deterministic_algorithm=True, **options)
            for tensor, heads in zip(gradients, (HEADS, KV_HEADS, KV_HEADS)):
                gives(tensor, heads)
        else:
            out, lse = graph.sdpa(q, k, v, generate_stats=True, **options)
            gives(out, HEADS)
            lse.set_output(True).set_dim(lse_dims).set_stride(lse_strides)
            lse.set_data_type(kinds.FLOAT).set_ragged_offset(offsets[1])
        graph.validate()
        graph.build_operation_graph()
        graph.create_execution_plans([cudnn.heur_mode.A])
        graph.check_support()
        graph.build_plans()
        return graph.get_workspace_size(), ""
    except (RuntimeError, cudnn.cudnnGraphNotSupportedError) as error:
        declined = re.search("backend declined: ([^;]*)", str(error))
        return None, declined[1] if declined else str(error).splitlines()[0]


def main():
    with tempfile.TemporaryDirectory() as directory:
        load_driver_stub(directory)
        import cudnn  # after the stub: it looks for the driver
        logging.disable(logging.WARNING)  # says of every refusal what the table says
        print(f"cuDNN {cudnn.backend_version()}: {TOKENS} tokens in up to {SEQUENCES} sequences of "
              f"{LONGEST}, {HEADS} heads, {KV_HEADS} of keys and values; bytes of workspace")
        for level, (name, shared_memory) in GPUS.items():
            for head_dim in (64, 128):
                for backward in (False, True):
                    size, reason = plan(cudnn, level, shared_memory, head_dim, backward)
                    print(f"{level:<8}{name:<8}head_dim {head_dim:<5}"
                          f"{'backward' if backward else 'forward':<10}"
                          f"{reason if size is None else f'{size:,}'}", flush=True)


if __name__ == "__main__":
    main()
