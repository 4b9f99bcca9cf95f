// What benchmarks share: clocks, filled tensors, the machine's own speed, and how they end.
#pragma once

#include <omp.h>

#include <algorithm>
#include <ctime>
#include <oneapi/dnnl/dnnl.hpp>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/error.h"
#include "base/half.h"
#include "base/parallel.h"
#include "base/philox.h"
#include "kernels/cpu/matmul_description.h"
#include "kernels/isa.h"
#include "tensor/memory.h"

namespace jackscrew {

inline double clock_seconds(clockid_t clock) {
  timespec time{};
  clock_gettime(clock, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// Elapsed time, or the threads' processor time shared out evenly: that is blind to threads that
// wait, but meaningful on a machine that other programs use too (with OMP_WAIT_POLICY=passive).
struct BenchClock {
  bool cpu = false;
  int threads = 2;
  double seconds() const {
    return cpu ? clock_seconds(CLOCK_PROCESS_CPUTIME_ID) / threads : clock_seconds(CLOCK_MONOTONIC);
  }
  const char* name() const { return cpu ? "processor" : "wall"; }
};

// Takes --clock=wall|cpu out of the arguments.
inline BenchClock take_clock(std::vector<std::string>& arguments) {
  BenchClock clock;
  clock.cpu = std::erase(arguments, "--clock=cpu") > 0;
  std::erase(arguments, "--clock=wall");
  return clock;
}

// What the benchmarks of kernels are told. The arguments left over are the caller's to read.
struct KernelRun {
  BenchClock clock;
  IsaLevel isa = IsaLevel::v3;
};
inline KernelRun take_kernel_run(std::vector<std::string>& arguments) {
  KernelRun out{take_clock(arguments), {}};
  std::string level = "auto";
  std::erase_if(arguments, [&](const std::string& argument) {
    const bool isa = argument.starts_with("--isa=");
    const bool threads = argument.starts_with("--threads=");
    if (isa) level = argument.substr(6);
    if (threads) out.clock.threads = std::max(1, std::atoi(argument.c_str() + 10));
    return isa || threads;
  });
  out.isa = choose_isa(level);
  return out;
}

// Values in [-1, 1): denormals or zeros would change the speed.
inline OwnedTensor filled(Memory& memory, DType dtype, int64_t rows, int64_t cols) {
  OwnedTensor out(memory, Purpose::activations, dtype, {rows, cols});
  const RandomStream stream = RandomStream::make(1, RandomPurpose::init, 0, 0);
  for (int64_t i = 0; i < rows * cols; ++i) {
    const float value = 2.0f * stream.uniform(static_cast<uint64_t>(i % 65536)) - 1.0f;
    if (dtype == DType::bf16) out.view().data<bf16>()[i] = to_bf16(value);
    if (dtype == DType::f32) out.view().data<float>()[i] = value;
    if (dtype == DType::i8) out.view().data<int8_t>()[i] = static_cast<int8_t>(i % 127);
  }
  return out;
}

// Bytes per second that all threads read from memory together, the best of several passes.
inline double read_bandwidth(const BenchClock& clock) {
  // Eight times the last-level cache of common machines.
  constexpr int64_t kWords = int64_t{32} << 20;
  constexpr int64_t kChunk = int64_t{1} << 18;
  constexpr int64_t kSums = 16;  // of which eight registers hold two each: none waits for itself
  constexpr int kPasses = 10;
  Memory memory("host", make_host_backing(), 0);
  const OwnedTensor data(memory, Purpose::activations, DType::f64, {kWords});
  const auto* words = static_cast<const uint64_t*>(data.view().raw());
  std::vector<uint64_t> all(kWords / kChunk);
  double best = 0.0;
  for (int pass = 0; pass < kPasses; ++pass) {
    const double begin = clock.seconds();
    parallel_for(clock.threads, kWords / kChunk, [&](int64_t chunk, int) {
      uint64_t sums[kSums] = {};
      for (int64_t i = chunk * kChunk; i < (chunk + 1) * kChunk; i += kSums) {
#pragma omp simd
        for (int64_t j = 0; j < kSums; ++j) sums[j] += words[i + j];
      }
      for (const uint64_t sum : sums) all[static_cast<size_t>(chunk)] += sum;
    });
    best = std::max(best, 8.0 * kWords / (clock.seconds() - begin));
  }
  if (all[0] != 0) fail(ErrorKind::generic, "fresh memory is not zero");
  return best;
}

// One whole-matrix oneDNN call with all threads.
class WholeGemm {
 public:
  WholeGemm(int threads, DType dtype, int64_t m, int64_t n, int64_t k, bool ta, bool tb, void* a,
            void* b, void* c)
      : threads_(threads), engine_(dnnl::engine::kind::cpu, 0), stream_(engine_) {
    using Dims = dnnl::memory::dims;
    using Type = dnnl::memory::data_type;
    const Type type = dtype == DType::f32    ? Type::f32
                      : dtype == DType::bf16 ? Type::bf16
                                             : Type::s8;
    const Type result = dtype == DType::i8 ? Type::s32 : Type::f32;
    const dnnl::memory::desc a_desc({m, k}, type, ta ? Dims{1, m} : Dims{k, 1});
    const dnnl::memory::desc b_desc({k, n}, type, tb ? Dims{1, k} : Dims{n, 1});
    const dnnl::memory::desc c_desc({m, n}, result, Dims{n, 1});
    const auto description = matmul_description(engine_, a_desc, b_desc, c_desc, {});
    name_ = description.impl_info_str();
    matmul_ = dnnl::matmul(description);
    arguments_ = {{DNNL_ARG_SRC, dnnl::memory(a_desc, engine_, a)},
                  {DNNL_ARG_WEIGHTS, dnnl::memory(b_desc, engine_, b)},
                  {DNNL_ARG_DST, dnnl::memory(c_desc, engine_, c)}};
  }
  void run() {
    omp_set_num_threads(threads_);
    matmul_.execute(stream_, arguments_);
    stream_.wait();
  }
  const std::string& name() const { return name_; }

 private:
  int threads_;
  dnnl::engine engine_;
  dnnl::stream stream_;
  dnnl::matmul matmul_;
  std::unordered_map<int, dnnl::memory> arguments_;
  std::string name_;
};

// The best of `runs` 2048^3 oneDNN products, in operations per second. Holds memory only meanwhile.
inline double gemm_peak(const BenchClock& clock, DType dtype, int runs) {
  constexpr int64_t kSize = 2048;
  Memory memory("host", make_host_backing(), 0);
  const OwnedTensor a = filled(memory, dtype, kSize, kSize);
  const OwnedTensor b = filled(memory, dtype, kSize, kSize);
  const OwnedTensor c = filled(memory, DType::f32, kSize, kSize);
  WholeGemm whole(clock.threads, dtype, kSize, kSize, kSize, false, false, a.view().raw(),
                  b.view().raw(), c.view().raw());
  double best = 0.0;
  for (int i = 0; i < runs; ++i) {
    const double begin = clock.seconds();
    whole.run();
    best = std::max(best, 2.0 * kSize * kSize * kSize / (clock.seconds() - begin));
  }
  return best;
}

// The exit code of `run()`; an Error becomes a line on stderr and its own code.
template <class Run>
int guarded(const char* bench, const Run& run) {
  try {
    return run();
  } catch (const Error& error) {
    fmt::print(stderr, "{}: {}\n", bench, error.what());
    return error.exit_code();
  }
}

}  // namespace jackscrew
