// For tests that compute on cuda:0: a real GPU in test_gpu, an emulated one in test_cuda.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "cli/arguments.h"
#include "kernels/device.h"
#include "tests/support/test_ops.h"

namespace jackscrew {

// Why cuda:0 cannot be used, with this attention; empty where it can.
inline std::string gpu_missing(AttentionLibrary attention = AttentionLibrary::own) {
  try {
    open_device("cuda:0", {.threads = 1,
                           .isa = test_isa(),
                           .environments = python_environments(),
                           .attention = attention});
    return "";
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::device) throw;
    return error.what();
  }
}

}  // namespace jackscrew

// The first line of such a test.
#define SKIP_WITHOUT_GPU() \
  if (const auto missing = gpu_missing(); !missing.empty()) GTEST_SKIP() << missing
