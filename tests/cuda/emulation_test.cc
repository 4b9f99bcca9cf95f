// The emulation itself: where it is wrong, what it shows of kernels is worth nothing.
#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "tests/support/cuda_emulation/kernels/cuda/launch.cuh"

namespace jackscrew {
namespace {

using cuda::launch;

void count_threads(int* counts) {
  ++counts[blockIdx.x * 64 + threadIdx.x];
}

TEST(CudaEmulation, RunsEveryThreadOfEveryBlock) {
  std::vector<int> counts(3 * 64, 0);
  launch(count_threads, {{3, 1, 1}, {64, 1, 1}, 0, nullptr}, counts.data());
  EXPECT_EQ(counts, std::vector<int>(3 * 64, 1));
}

void reverse(const int* from, int* to) {
  __shared__ int shared[64];
  shared[threadIdx.x] = from[threadIdx.x];
  __syncthreads();
  to[threadIdx.x] = shared[63 - threadIdx.x];
}

TEST(CudaEmulation, ABarrierWaitsForAll) {
  std::vector<int> from(64), to(64);
  for (size_t i = 0; i < 64; ++i) from[i] = static_cast<int>(i);
  launch(reverse, {{1, 1, 1}, {64, 1, 1}, 0, nullptr}, from.data(), to.data());
  for (size_t i = 0; i < 64; ++i) EXPECT_EQ(to[i], 63 - static_cast<int>(i));
}

void diverge() {
  if (threadIdx.x < 32) __syncthreads();
}

TEST(CudaEmulation, RefusesABarrierThatSomeNeverReach) {
  EXPECT_DEATH(launch(diverge, {{1, 1, 1}, {64, 1, 1}, 0, nullptr}), "others never come");
}

void exchange(double* values) {
  values[threadIdx.x] = __shfl_xor_sync(0xFFFFFFFFu, values[threadIdx.x], 5);
}

TEST(CudaEmulation, ShufflesWithinAWarp) {
  std::vector<double> values(64);
  for (size_t i = 0; i < 64; ++i) values[i] = static_cast<double>(i) + 0.5;
  launch(exchange, {{1, 1, 1}, {64, 1, 1}, 0, nullptr}, values.data());
  for (size_t i = 0; i < 64; ++i) EXPECT_EQ(values[i], static_cast<double>(i ^ 5) + 0.5);
}

// Loads the fragments as the PTX ISA's formulas for single elements have it.
void multiply(const int8_t* a, const int8_t* b, int32_t* c) {
  const int lane = static_cast<int>(threadIdx.x);
  const int group = lane / 4;
  const int in_group = lane % 4;
  uint32_t a_words[4] = {};
  uint32_t b_words[2] = {};
  for (int i = 0; i < 16; ++i) {
    const int row = i < 4 || (i >= 8 && i < 12) ? group : group + 8;
    const int column = in_group * 4 + (i & 3) + (i < 8 ? 0 : 16);
    a_words[i / 4] |= static_cast<uint32_t>(static_cast<uint8_t>(a[row * 32 + column]))
                      << (i % 4 * 8);
  }
  for (int i = 0; i < 8; ++i) {
    const int row = in_group * 4 + (i & 3) + (i < 4 ? 0 : 16);
    b_words[i / 4] |= static_cast<uint32_t>(static_cast<uint8_t>(b[row * 8 + group]))
                      << (i % 4 * 8);
  }
  int32_t sums[4] = {7, 7, 7, 7};
  cuda::mma_s8(sums, a_words, b_words);
  for (int i = 0; i < 4; ++i) {
    c[(i < 2 ? group : group + 8) * 8 + in_group * 2 + (i & 1)] = sums[i];
  }
}

TEST(CudaEmulation, MultipliesAsTensorCoresDo) {
  std::mt19937 random(1);
  std::vector<int8_t> a(16 * 32), b(32 * 8);
  for (auto* values : {&a, &b}) {
    for (int8_t& value : *values) value = static_cast<int8_t>(random() % 256);
  }
  std::vector<int32_t> c(16 * 8);
  launch(multiply, {{1, 1, 1}, {32, 1, 1}, 0, nullptr}, a.data(), b.data(), c.data());
  for (size_t row = 0; row < 16; ++row) {
    for (size_t column = 0; column < 8; ++column) {
      int32_t sum = 7;
      for (size_t k = 0; k < 32; ++k) sum += a[row * 32 + k] * b[k * 8 + column];
      EXPECT_EQ(c[row * 8 + column], sum) << row << ", " << column;
    }
  }
}

// The same for bf16: small integers, whose products and sums are exact.
void multiply_halves(const float* a, const float* b, float* c) {
  const int lane = static_cast<int>(threadIdx.x);
  const int group = lane / 4;
  const int in_group = lane % 4;
  const auto pack = [](float low, float high) { return cuda::pack_bf16(low, high); };
  uint32_t a_words[4];
  uint32_t b_words[2];
  for (int i = 0; i < 8; i += 2) {
    const int row = i < 2 || (i >= 4 && i < 6) ? group : group + 8;
    const float* at = a + row * 16 + in_group * 2 + (i < 4 ? 0 : 8);
    a_words[i / 2] = pack(at[0], at[1]);
  }
  for (int i = 0; i < 4; i += 2) {
    const float* at = b + (in_group * 2 + (i < 2 ? 0 : 8)) * 8 + group;
    b_words[i / 2] = pack(at[0], at[8]);
  }
  float sums[4] = {7, 7, 7, 7};
  cuda::mma_bf16(sums, a_words, b_words[0], b_words[1]);
  for (int i = 0; i < 4; ++i) {
    c[(i < 2 ? group : group + 8) * 8 + in_group * 2 + (i & 1)] = sums[i];
  }
}

TEST(CudaEmulation, MultipliesHalvesAsTensorCoresDo) {
  std::mt19937 random(2);
  std::vector<float> a(16 * 16), b(16 * 8), c(16 * 8);
  for (auto* values : {&a, &b}) {
    for (float& value : *values) value = static_cast<float>(random() % 31) - 15.0f;
  }
  launch(multiply_halves, {{1, 1, 1}, {32, 1, 1}, 0, nullptr}, a.data(), b.data(), c.data());
  for (size_t row = 0; row < 16; ++row) {
    for (size_t column = 0; column < 8; ++column) {
      float sum = 7;
      for (size_t k = 0; k < 16; ++k) sum += a[row * 16 + k] * b[k * 8 + column];
      EXPECT_EQ(c[row * 8 + column], sum) << row << ", " << column;
    }
  }
}

// Of a [32, 8] in shared memory, as four matrices of 8 rows.
void load_four(bool transposed, uint32_t* words) {
  uint16_t* shared = cuda::dynamic_halves();
  for (int i = 0; i < 8; ++i) {
    shared[threadIdx.x * 8 + static_cast<unsigned>(i)] =
        static_cast<uint16_t>(threadIdx.x * 8 + static_cast<unsigned>(i));
  }
  __syncthreads();
  uint32_t mine[4];
  transposed ? cuda::load_matrices_transposed(mine, shared + threadIdx.x * 8)
             : cuda::load_matrices(mine, shared + threadIdx.x * 8);
  for (size_t m = 0; m < 4; ++m) words[threadIdx.x * 4 + m] = mine[m];
}

TEST(CudaEmulation, LoadsMatricesForTensorCores) {
  for (const bool transposed : {false, true}) {
    std::vector<uint32_t> words(32 * 4);
    launch(load_four, {{1, 1, 1}, {32, 1, 1}, 512, nullptr}, transposed, words.data());
    for (uint32_t lane = 0; lane < 32; ++lane) {
      for (uint32_t m = 0; m < 4; ++m) {
        const uint32_t row = lane / 4;
        const uint32_t column = lane % 4 * 2;
        const uint32_t low = m * 64 + (transposed ? column * 8 + row : row * 8 + column);
        const uint32_t high = low + (transposed ? 8 : 1);
        EXPECT_EQ(words[lane * 4 + m], low | high << 16) << lane << ", " << m;
      }
    }
  }
}

// Two groups of copies, of 16 bytes and of nothing, and of 4; what there is before anybody waits,
// with one group left and with none.
void copy_in_groups(const uint16_t* from, uint16_t* seen) {
  uint16_t* shared = cuda::dynamic_halves() + threadIdx.x * 16;
  for (int i = 0; i < 16; ++i) shared[i] = 7;
  cuda::copy_16_bytes(shared, from, true);
  cuda::copy_4_bytes(shared + 8, nullptr, false);
  cuda::commit_copies();
  cuda::copy_4_bytes(shared + 12, from, true);
  cuda::commit_copies();
  const auto look = [&](unsigned time) {
    for (unsigned i = 0; i < 16; ++i) seen[(threadIdx.x * 3 + time) * 16 + i] = shared[i];
  };
  look(0);
  cuda::wait_for_copies<1>();
  look(1);
  cuda::wait_for_copies<0>();
  look(2);
}

TEST(CudaEmulation, CopiesArriveWhenTheirGroupIsWaitedFor) {
  alignas(16) const uint16_t from[8] = {1, 2, 3, 4, 5, 6, 7, 8};
  std::vector<uint16_t> seen(32 * 3 * 16);
  launch(copy_in_groups, {{1, 1, 1}, {32, 1, 1}, 32 * 32, nullptr}, from, seen.data());
  constexpr uint16_t kNot = 0xFFFF;
  const std::vector<uint16_t> want = {
      kNot, kNot, kNot, kNot, kNot, kNot, kNot, kNot, kNot, kNot, 7, 7, kNot, kNot, 7, 7,  // before
      1,    2,    3,    4,    5,    6,    7,    8,    0,    0,    7, 7, kNot, kNot, 7, 7,
      1,    2,    3,    4,    5,    6,    7,    8,    0,    0,    7, 7, 1,    2,    7, 7};
  for (auto of_thread = seen.begin(); of_thread != seen.end(); of_thread += 48) {
    EXPECT_EQ(std::vector<uint16_t>(of_thread, of_thread + 48), want);
  }
}

void copy_one(const uint16_t* from) {
  cuda::copy_16_bytes(cuda::dynamic_halves(), from, true);
}

TEST(CudaEmulation, RefusesCopiesThatNobodyWaitsForOrThatAreNotAligned) {
  alignas(16) const uint16_t from[16] = {};
  const cuda::Launch one{{1, 1, 1}, {32, 1, 1}, 1024, nullptr};
  EXPECT_DEATH(launch(copy_one, one, from), "ended before its copies");
  EXPECT_DEATH(launch(copy_one, one, from + 4), "not aligned");
}

}  // namespace
}  // namespace jackscrew
